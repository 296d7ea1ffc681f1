"""Expand and permute chains: consecutive ones become one, or none.

Front ends transpose there and back around operations on the last axis.  If nothing is left in
between, the two cancel and the tensor is read in only one order, which keeps it in one kernel.
Runs after cast_chains and identities, which remove operations in between.

Before:
    T1_l_float[iS2{i1}, iS3{i0}] = permute(T0_g_float[iS0{i0}, iS1{i1}], (1, 0))
    T2_l_float[iS4{i0}, iS5{i1}] = permute(T1_l_float[iS2{i1}, iS3{i0}], (1, 0))
    T3_g_float[iS6{i0}, iS7{i1}] = exp(T2_l_float[iS4{i0}, iS5{i1}])
After:
    T1_l_float[iS2{i1}, iS3{i0}] = permute(T0_g_float[iS0{i0}, iS1{i1}], (1, 0))
    T3_g_float[iS6{i0}, iS7{i1}] = exp(T0_g_float[iS0{i0}, iS1{i1}])
"""

from __future__ import annotations

from ..ir.exprs import ExpandOp, Expr, PermuteOp
from ..ir.fusion import Fusion
from ..ir.vals import TensorView
from .rewriting import Rewriter, rewrite, same_shape


def expand_permute(fusion: Fusion) -> Fusion:
    """Joins consecutive permutes, and consecutive expands."""
    return rewrite(fusion, _rule)


def _rule(rewriter: Rewriter, expr: Expr) -> None:
    match expr:
        case PermuteOp(inputs=(TensorView(expr=PermuteOp() as before),)):
            _join_permutes(rewriter, before, expr)
        case ExpandOp(inputs=(TensorView(expr=ExpandOp() as before),), outputs=outputs):
            rewriter.emit(ExpandOp(before.inputs, outputs))
        case ExpandOp(inputs=(TensorView() as source,), outputs=(TensorView() as output,)) if (
            same_shape(source, output)
        ):
            rewriter.replace(output, source)
        case _:
            rewriter.emit(expr)


def _join_permutes(rewriter: Rewriter, before: PermuteOp, expr: PermuteOp) -> None:
    source, output = before.tensor_inputs[0], expr.tensor_outputs[0]
    dims = tuple(before.dims[dim] for dim in expr.dims)
    if output.domain.root is not None:
        rewriter.emit(expr)
    elif dims == tuple(range(len(dims))) and output.domain.allocation is None:
        rewriter.replace(output, source)
    else:
        rewriter.emit(PermuteOp((source,), (output,), dims))
