"""Separate constants: each reader gets its own copy of a cheap tensor made from nothing.

An iota that is read as a row and as a column has one axis that would have to be two loops, and no
kernel computes this; two iotas can be computed anywhere at almost no cost.  The pass applies only
if some tensor is read in two orders.  Runs after common_subexpressions, which would join the copies
again.

Before:
    T1_l_int[iS1{i0}] = iota(0, 1)
    T2_l_int[bS2{1}, iS3{i0}] = broadcast(T1_l_int[iS1{i0}], (True, False))
    T3_l_int[iS4{i0}, bS5{1}] = broadcast(T1_l_int[iS1{i0}], (False, True))
    T4_g_int[iS6{i0}, iS7{i0}] = sub(T2_l_int[bS2{1}, iS3{i0}], T3_l_int[iS4{i0}, bS5{1}])
After:
    T1_l_int[iS1{i0}] = iota(0, 1)
    T2_l_int[bS2{1}, iS3{i0}] = broadcast(T1_l_int[iS1{i0}], (True, False))
    T5_l_int[iS8{i0}] = iota(0, 1)
    T3_l_int[iS4{i0}, bS5{1}] = broadcast(T5_l_int[iS8{i0}], (False, True))
    T4_g_int[iS6{i0}, iS7{i0}] = sub(T2_l_int[bS2{1}, iS3{i0}], T3_l_int[iS4{i0}, bS5{1}])
"""

from __future__ import annotations

from ..analysis.iteration_space import IterationSpace
from ..ir.exprs import Expr
from ..ir.fusion import Fusion
from ..ir.vals import TensorView, Val
from ..ops.pointwise import copy_axis, new_tensor
from .rewriting import Rewriter, note_cost, rewrite


def separate_constants(fusion: Fusion) -> Fusion:
    """Duplicates tensors that would be read in two orders, if they are cheap and need no input."""
    if not IterationSpace.of_fusion(fusion).conflicts:
        return fusion
    costs: dict[TensorView, int] = {}
    seen: set[TensorView] = set()

    def rule(rewriter: Rewriter, expr: Expr) -> None:
        operands: dict[Val, Val] = {}
        for tensor in dict.fromkeys(expr.tensor_inputs):
            if tensor in costs and tensor in seen:
                operands[tensor] = _copy(rewriter, tensor)
            seen.add(tensor)
        expr.inputs = tuple(operands.get(value, value) for value in expr.inputs)
        note_cost(expr, costs)
        rewriter.emit(expr)

    return rewrite(fusion, rule)


def _copy(rewriter: Rewriter, tensor: TensorView) -> TensorView:
    """A copy of the tensor, with copies of everything it is computed from."""
    expr = tensor.expr
    assert expr is not None
    inputs = [_copy(rewriter, v) if isinstance(v, TensorView) else v for v in expr.inputs]
    axes = [copy_axis(rewriter.fusion, axis) for axis in tensor.axes]
    made = new_tensor(rewriter.fusion, axes, tensor.dtype)
    rewriter.emit(expr.rebuild(inputs, (made,)))
    return made
