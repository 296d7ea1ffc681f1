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

from ..ir.domains import TensorDomain
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
        both = [v for v in expr.outputs if isinstance(v, TensorView) and _is_both(rewriter, v)]
        for output in both:
            axes = [copy_axis(fusion, axis) for axis in output.domain.logical]
            read[output] = new_tensor(fusion, axes, output.dtype)
        if not both:
            rewriter.emit(expr)
            return
        rewriter.emit(expr.rebuild(expr.inputs, [read.get(v, v) for v in expr.outputs]))
        for output in both:  # now a copy, which reduces nothing
            domain = output.domain
            output.domain = TensorDomain(output.axes, domain.contiguity, None, domain.allocation)
            rewriter.emit(PointwiseOp((read[output],), (output,), "set"))

    return rewrite(fusion, rule)


def _is_both(rewriter: Rewriter, value: TensorView) -> bool:
    """True for an output with an expanded axis that is read as well."""
    if not rewriter.is_output(value):
        return False
    return value.has_expanded_axis and bool(value.uses_list) and value.domain.root is None
