"""Empty tensors: tensors that are known to have no elements aren't computed.

A tensor with an extent of 0 becomes a `full`, and so does a reduction over one, with its identity.
Runs after unify_extents, which finds the zeros, and before the others: whole graphs vanish, and no
scheduler has to consider reductions over nothing.

Before:
    T1_l_float[iS2{i0}, iS3{0}] = exp(T0_g_float[iS0{i0}, iS1{0}])
    T2_g_float[iS4{i0}, rS5{0}] = sum(T1_l_float[iS2{i0}, iS3{0}])
After:
    T1_l_float[iS2{i0}, iS3{0}] = full(0)
    T2_g_float[iS4{i0}] = full(0)
"""

from __future__ import annotations

import math

from ..ir.exprs import Expr, FullOp, ReductionOp, WelfordOp
from ..ir.fusion import Fusion
from ..ir.scalars import ZERO
from ..ir.vals import TensorView
from ..ops.table import REDUCTIONS
from .rewriting import Rewriter, fill, rewrite


def empty_tensors(fusion: Fusion) -> Fusion:
    """Fills instead of computing wherever an extent is 0."""
    return rewrite(fusion, _rule)


def is_empty(tensor: TensorView) -> bool:
    """True if an extent of the tensor is the constant 0."""
    return any(axis.size is ZERO for axis in tensor.axes)


def _rule(rewriter: Rewriter, expr: Expr) -> None:
    outputs = expr.tensor_outputs
    if not outputs or isinstance(expr, FullOp):
        rewriter.emit(expr)
    elif all(is_empty(tensor) for tensor in outputs):
        for tensor in outputs:
            fill(rewriter, tensor, 0)
    elif isinstance(expr, ReductionOp) and is_empty(expr.tensor_inputs[0]):
        fill(rewriter, outputs[0], REDUCTIONS[expr.op].identity(outputs[0].dtype))
    elif isinstance(expr, WelfordOp) and is_empty(expr.tensor_inputs[0]):
        for tensor, value in zip(outputs, (math.nan, 0.0, 0), strict=True):
            fill(rewriter, tensor, value)
    else:
        rewriter.emit(expr)
