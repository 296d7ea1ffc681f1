"""Separate expanded outputs: what is stored in full along an expanded axis gets a real one.

Loops then run over the axis as over any other, beside other outputs and reductions; a select
between a value and itself, which costs nothing, has the axis.  Readers of the output read the
expanded tensor, one element along the axis.  Runs after common_subexpressions, which would merge
the two again.

Before:
    T2_l_float[iS2{i0}, bS3{1}] = broadcast(T0_g_float[iS0{i0}], (False, True))
    T3_g_float[iS4{i0}, bS5{1 ex i1}] = expand(T2_l_float[iS2{i0}, bS3{1}])
    T4_g_float[iS6{i0}, bS7{1 ex i1}] = exp(T3_g_float[iS4{i0}, bS5{1 ex i1}])
After:
    T2_l_float[iS2{i0}, bS3{1}] = broadcast(T0_g_float[iS0{i0}], (False, True))
    T5_l_float[iS4{i0}, bS5{1 ex i1}] = expand(T2_l_float[iS2{i0}, bS3{1}])
    T6_l_bool[iS10{i0}, iS11{i1}] = full(True)
    T3_g_float[iS8{i0}, iS9{i1}] = where(T6_l_bool[iS10{i0}, iS11{i1}], T5_l_float[iS4{i0}, bS5{1 ex i1}], T5_l_float[iS4{i0}, bS5{1 ex i1}])
    T7_l_float[iS6{i0}, bS7{1 ex i1}] = exp(T5_l_float[iS4{i0}, bS5{1 ex i1}])
    T8_l_bool[iS14{i0}, iS15{i1}] = full(True)
    T4_g_float[iS12{i0}, iS13{i1}] = where(T8_l_bool[iS14{i0}, iS15{i1}], T7_l_float[iS6{i0}, bS7{1 ex i1}], T7_l_float[iS6{i0}, bS7{1 ex i1}])
"""  # noqa: E501  (the IR's own text)

from __future__ import annotations

from ..dtypes import DataType
from ..ir.domains import TensorDomain
from ..ir.exprs import Expr, FullOp, PointwiseOp
from ..ir.fusion import Fusion, plain_domain
from ..ir.vals import TensorView, Val
from ..ops.pointwise import constant, copy_axis, new_tensor
from ..ops.shape_builders import new_axis
from .rewriting import Rewriter, rewrite


def separate_expanded_outputs(fusion: Fusion) -> Fusion:
    """Gives each expanded output real axes, and its readers a tensor of their own."""
    read: dict[Val, TensorView] = {}

    def rule(rewriter: Rewriter, expr: Expr) -> None:
        expr.inputs = tuple(read.get(value, value) for value in expr.inputs)
        expanded = [
            value
            for value in expr.outputs
            if isinstance(value, TensorView)
            and rewriter.is_output(value)
            and value.has_expanded_axis
        ]
        if not expanded:
            rewriter.emit(expr)
            return
        for output in expanded:
            domain = output.domain
            own = TensorDomain(domain.logical, plain_domain(output.axes).contiguity, domain.root)
            read[output] = fusion.new_tensor(own, output.dtype)
        rewriter.emit(expr.rebuild(expr.inputs, [read.get(v, v) for v in expr.outputs]))
        for output in expanded:
            _store_in_full(rewriter, output, read[output])

    return rewrite(fusion, rule)


def _store_in_full(rewriter: Rewriter, output: TensorView, value: TensorView) -> None:
    """Makes an output a copy of an expanded tensor, with an axis of its own for each."""
    fusion, domain = rewriter.fusion, output.domain
    axes = [
        new_axis(fusion, axis.size) if axis.is_expanded else copy_axis(fusion, axis)
        for axis in output.axes
    ]
    everywhere = new_tensor(fusion, [copy_axis(fusion, axis) for axis in axes], DataType.Bool)
    rewriter.emit(FullOp((constant(fusion, True, DataType.Bool),), (everywhere,)))
    allocation = None
    if domain.allocation is not None:
        allocation = [axes[output.axes.index(axis)] for axis in domain.allocation]
    contiguity = plain_domain(allocation or axes).contiguity
    output.domain = TensorDomain(axes, contiguity, None, allocation)
    rewriter.emit(PointwiseOp((everywhere, value, value), (output,), "where"))
