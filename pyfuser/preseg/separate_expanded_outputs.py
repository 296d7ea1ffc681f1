"""Separate expanded outputs: readers of an expanded output read one element along its axes.

An output is stored in full along an expanded axis, but a tensor that one kernel stores for another
has one element there.  A tensor that is both would have a memory layout that its reader doesn't
expect.  Runs after common_subexpressions, which would merge the two again.

Before:
    T2_l_float[iS2{i0}, bS3{1}] = broadcast(T0_g_float[iS0{i0}], (False, True))
    T3_g_float[iS4{i0}, bS5{1 ex i1}] = expand(T2_l_float[iS2{i0}, bS3{1}])
    T4_g_float[iS6{i0}, bS7{1 ex i1}] = exp(T3_g_float[iS4{i0}, bS5{1 ex i1}])
After:
    T2_l_float[iS2{i0}, bS3{1}] = broadcast(T0_g_float[iS0{i0}], (False, True))
    T5_l_float[iS8{i0}, bS9{1 ex i1}] = expand(T2_l_float[iS2{i0}, bS3{1}])
    T3_g_float[iS4{i0}, bS5{1 ex i1}] = set(T5_l_float[iS8{i0}, bS9{1 ex i1}])
    T4_g_float[iS6{i0}, bS7{1 ex i1}] = exp(T5_l_float[iS8{i0}, bS9{1 ex i1}])
"""

from __future__ import annotations

from ..ir.exprs import Expr, PointwiseOp
from ..ir.fusion import Fusion
from ..ir.vals import TensorView, Val
from ..ops.pointwise import copy_axis, new_tensor
from .rewriting import Rewriter, rewrite


def separate_expanded_outputs(fusion: Fusion) -> Fusion:
    """Gives the readers of expanded outputs their own tensor."""
    read: dict[Val, TensorView] = {}

    def rule(rewriter: Rewriter, expr: Expr) -> None:
        expr.inputs = tuple(read.get(value, value) for value in expr.inputs)
        output = expr.output
        if not _is_both(rewriter, output):
            rewriter.emit(expr)
            return
        assert isinstance(output, TensorView)
        axes = [copy_axis(fusion, axis) for axis in output.axes]
        read[output] = made = new_tensor(fusion, axes, output.dtype)
        rewriter.emit(expr.rebuild(expr.inputs, (made,)))
        rewriter.emit(PointwiseOp((made,), (output,), "set"))

    return rewrite(fusion, rule)


def _is_both(rewriter: Rewriter, value: Val) -> bool:
    """True for an output with an expanded axis that is read as well."""
    if not isinstance(value, TensorView) or not rewriter.is_output(value):
        return False
    is_expanded = any(axis.expanded_extent is not None for axis in value.axes)
    return is_expanded and bool(value.uses_list) and value.domain.root is None
