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

from ..analysis.costs import recomputation_cost
from ..analysis.iteration_space import IterationSpace
from ..ir.exprs import Expr
from ..ir.fusion import Fusion
from ..ir.vals import TensorView, Val
from ..ops.pointwise import copy_axis, new_tensor
from .rewriting import Rewriter, has_natural_layout, rewrite

# The cost that a copy may have, in additions per element: a position, scaled, cast and clamped.
_MOST_COST = 8


def separate_constants(fusion: Fusion) -> Fusion:
    """Duplicates tensors that would be read in two orders, if they are cheap and need no input."""
    if not IterationSpace([e for e in fusion.exprs if e.tensor_outputs]).conflicts:
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
        _note_cost(expr, costs)
        rewriter.emit(expr)

    return rewrite(fusion, rule)


def _note_cost(expr: Expr, costs: dict[TensorView, int]) -> None:
    """Records the cost of a tensor, including everything it is computed from, if it is small."""
    price = recomputation_cost(expr)
    if price is None or not all(t in costs and has_natural_layout(t) for t in expr.tensor_inputs):
        return
    total = price + sum(costs[tensor] for tensor in expr.tensor_inputs)
    if total <= _MOST_COST:
        costs.update((tensor, total) for tensor in expr.tensor_outputs)


def _copy(rewriter: Rewriter, tensor: TensorView) -> TensorView:
    """A copy of the tensor, with copies of everything it is computed from."""
    expr = tensor.expr
    assert expr is not None
    inputs = [_copy(rewriter, v) if isinstance(v, TensorView) else v for v in expr.inputs]
    axes = [copy_axis(rewriter.fusion, axis) for axis in tensor.axes]
    made = new_tensor(rewriter.fusion, axes, tensor.dtype)
    rewriter.emit(expr.rebuild(inputs, (made,)))
    return made
