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

from ..analysis.iteration_space import IterationSpace
from ..ir.exprs import Expr, PermuteOp, PointwiseOp
from ..ir.fusion import Fusion
from ..ir.vals import TensorView, Val
from ..ops.pointwise import copy_axis, new_tensor
from .rewriting import Rewriter, has_natural_layout, note_cost, rewrite


def move_permutes(fusion: Fusion) -> Fusion:
    """Permutes inputs instead of what is computed from them, if that lets kernels join."""
    if not _moved(fusion):
        return fusion
    conflicts = _conflicts(fusion)
    if not conflicts:
        return fusion
    moved, _ = fusion.clone()
    chosen = _moved(moved)

    def rule(rewriter: Rewriter, expr: Expr) -> None:
        if isinstance(expr, PermuteOp) and expr in chosen:
            _emit_permuted(rewriter, expr.tensor_inputs[0], expr.tensor_outputs[0], expr.dims)
        else:
            rewriter.emit(expr)

    rewrite(moved, rule)
    return moved if _conflicts(moved) < conflicts else fusion


def _conflicts(fusion: Fusion) -> int:
    """How many operands are read along axes in different orders."""
    return len(IterationSpace.of_fusion(fusion).conflicts)


def _moved(fusion: Fusion) -> set[Expr]:
    """The permutes of what is cheaply computed from inputs, and is read by others, too."""
    costs: dict[TensorView, int] = dict.fromkeys(fusion.input_tensors, 0)
    found: set[Expr] = set()
    for expr in fusion.exprs:
        if isinstance(expr, PointwiseOp):
            note_cost(expr, costs)
        elif isinstance(expr, PermuteOp) and expr.tensor_outputs[0].domain.root is None:
            source = expr.tensor_inputs[0]
            is_cheap = source in costs and has_natural_layout(source)
            if is_cheap and source.expr is not None and len(source.uses_list) > 1:
                found.add(expr)
    return found


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
