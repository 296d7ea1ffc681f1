"""Permutes are moved to the inputs, where a cheap tensor is read beside its own transpose.

No kernel computes both sides of `t + permute(t)` if t is computed: its axes would have to be two
loops each.  An input may be read in both ways, so what is computed from inputs at little cost, such
as a wider dtype, is computed again from their transposes.  The pass applies only if fewer tensors
are read in two orders afterwards.  Runs before expand_permute, which joins the permutes.

Before:
    T1_l_float[iS2{i0}, iS3{i0}] = cast(T0_g___bfloat[iS0{i0}, iS1{i0}])
    T2_l_float[iS4{i0}, iS5{i0}] = permute(T1_l_float[iS2{i0}, iS3{i0}], (1, 0))
    T3_g_float[iS6{i0}, iS7{i0}] = add(T1_l_float[iS2{i0}, iS3{i0}], T2_l_float[iS4{i0}, iS5{i0}])
After:
    T1_l_float[iS2{i0}, iS3{i0}] = cast(T0_g___bfloat[iS0{i0}, iS1{i0}])
    T4_l___bfloat[iS8{i0}, iS9{i0}] = permute(T0_g___bfloat[iS0{i0}, iS1{i0}], (1, 0))
    T2_l_float[iS4{i0}, iS5{i0}] = cast(T4_l___bfloat[iS8{i0}, iS9{i0}])
    T3_g_float[iS6{i0}, iS7{i0}] = add(T1_l_float[iS2{i0}, iS3{i0}], T2_l_float[iS4{i0}, iS5{i0}])
"""

from __future__ import annotations

from ..analysis.costs import recomputation_cost
from ..analysis.iteration_space import IterationSpace
from ..ir.exprs import Expr, PermuteOp, PointwiseOp
from ..ir.fusion import Fusion
from ..ir.vals import TensorView, Val
from ..ops.pointwise import copy_axis, new_tensor
from .rewriting import Rewriter, has_natural_layout, rewrite

# The cost that what is computed again may have, in additions per element.
_MOST_COST = 8


def move_permutes(fusion: Fusion) -> Fusion:
    """Permutes inputs instead of what is computed from them, if that lets kernels join."""
    is_candidate = any(isinstance(e, PermuteOp) and _is_moved(e) for e in fusion.exprs)
    conflicts = _conflicts(fusion) if is_candidate else 0
    if not conflicts:
        return fusion
    moved, _ = fusion.clone()
    rewrite(moved, _rule)
    return moved if _conflicts(moved) < conflicts else fusion


def _conflicts(fusion: Fusion) -> int:
    """How many operands are read along axes in different orders."""
    return len(IterationSpace([e for e in fusion.exprs if e.tensor_outputs]).conflicts)


def _is_moved(expr: PermuteOp) -> bool:
    source, output = expr.tensor_inputs[0], expr.tensor_outputs[0]
    cost = _cost(source)
    has_others = len(source.uses_list) > 1 and source.expr is not None
    return has_others and output.domain.root is None and cost is not None and cost <= _MOST_COST


def _cost(tensor: TensorView) -> int | None:
    """The cost of computing a tensor from inputs; None if that takes more than pointwise work."""
    if tensor.expr is None:
        return 0
    own = recomputation_cost(tensor.expr) if isinstance(tensor.expr, PointwiseOp) else None
    if own is None or not has_natural_layout(tensor):
        return None
    for operand in tensor.expr.tensor_inputs:
        cost = _cost(operand)
        if cost is None or own + cost > _MOST_COST:
            return None
        own += cost
    return own


def _rule(rewriter: Rewriter, expr: Expr) -> None:
    if isinstance(expr, PermuteOp) and _is_moved(expr):
        _emit_permuted(rewriter, expr.tensor_inputs[0], expr.tensor_outputs[0], expr.dims)
    else:
        rewriter.emit(expr)


def _emit_permuted(
    rewriter: Rewriter, tensor: TensorView, output: TensorView, dims: tuple[int, ...]
) -> None:
    """Computes the permuted tensor into `output` from permuted inputs."""
    if tensor.expr is None:
        rewriter.emit(PermuteOp((tensor,), (output,), dims))
        return

    def permuted(value: Val) -> Val:
        if not isinstance(value, TensorView):
            return value
        axes = [copy_axis(rewriter.fusion, value.axes[dim]) for dim in dims]
        made = new_tensor(rewriter.fusion, axes, value.dtype)
        _emit_permuted(rewriter, value, made, dims)
        return made

    operands = [permuted(value) for value in tensor.expr.inputs]
    rewriter.emit(tensor.expr.rebuild(operands, (output,)))
