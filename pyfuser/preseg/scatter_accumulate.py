"""Scatter-accumulate: the sum of a scatter into zeros becomes a scatter that adds.

Counting how often each class occurs, as sums of one-hot rows, then needs no matrix of rows and
classes.  The sum must be over all axes beside the one that the index selects from, and each row
must have one index (or the scatter must add): otherwise equal indices of a row would count several
times.  For integers only, whose sums don't depend on the order.  Runs after cast_chains, because a
sum of Int32 converts its operand, and before common_subexpressions, for which equal counts are one.

Before:
    T1_l_int64_t[iS1{i0}, bS2{1}] = broadcast(T0_g_int64_t[iS0{i0}], (False, True))
    T2_l_int64_t[iS3{i0}, iS4{10}] = full(0)
    1 = cast(1)
    T3_l_int64_t[iS5{i0}, bS6{1}] = full(1)
    T4_l_int64_t[iS7{i0}, iS8{10}] = scatter(T2_l_int64_t[iS3{i0}, iS4{10}], T1_l_int64_t[iS1{i0}, bS2{1}], T3_l_int64_t[iS5{i0}, bS6{1}], (0, None), (0, 1), set)
    T5_g_int64_t[rS9{i0}, iS10{10}] = sum(T4_l_int64_t[iS7{i0}, iS8{10}])
After:
    T1_l_int64_t[iS1{i0}, bS2{1}] = broadcast(T0_g_int64_t[iS0{i0}], (False, True))
    1 = cast(1)
    T3_l_int64_t[iS5{i0}, bS6{1}] = full(1)
    T6_l_int64_t[iS11{10}] = full(0)
    T7_l_int64_t[iS12{10}] = scatter(T6_l_int64_t[iS11{10}], T1_l_int64_t[iS1{i0}, bS2{1}], T3_l_int64_t[iS5{i0}, bS6{1}], (None,), (0, 1), sum)
    T5_g_int64_t[iS10{10}] = set(T7_l_int64_t[iS12{10}])
"""  # noqa: E501  (the IR's own text)

from __future__ import annotations

from ..dtypes import holds_every_value, is_integer
from ..ir.domains import IterDomain
from ..ir.exprs import Expr, FullOp, ReductionOp, ScatterOp
from ..ir.fusion import Fusion
from ..ir.scalars import ONE
from ..ir.vals import Scalar, TensorView
from ..ops.pointwise import cast_tensor, copy_axis, new_tensor
from .dead_code import dead_code
from .rewriting import Rewriter, has_natural_layout, is_cast, rewrite


def scatter_accumulate(fusion: Fusion) -> Fusion:
    """Replaces sums of scatters into zeros, and drops what is no longer read."""
    readers = {t: len(t.uses_list) + (t in fusion.outputs) for t in fusion.tensors}

    def rule(rewriter: Rewriter, expr: Expr) -> None:
        scatter = _summed_scatter(expr, readers)
        if scatter is None:
            rewriter.emit(expr)
        else:
            _accumulate(rewriter, expr, scatter)

    return dead_code(rewrite(fusion, rule))


def _summed_scatter(expr: Expr, readers: dict[TensorView, int]) -> ScatterOp | None:
    """The scatter into zeros that an expression sums over other axes, if it does."""
    if not isinstance(expr, ReductionOp) or expr.op != "sum":
        return None
    operand, output = expr.tensor_inputs[0], expr.tensor_outputs[0]
    made = operand
    while is_cast(made.expr):
        source = made.expr.inputs[0]
        if not isinstance(source, TensorView) or not holds_every_value(made.dtype, source.dtype):
            return None
        made = source
    scatter = made.expr
    if not isinstance(scatter, ScatterOp) or not is_integer(made.dtype):
        return None
    is_plain = has_natural_layout(output) and is_integer(output.dtype)
    if not is_plain or readers[made] > 1 or not _is_zero(scatter.base):
        return None
    is_kept = [not axis.is_reduction for axis in output.domain.root_or_logical]
    if is_kept != [d == scatter.dim for d in range(len(is_kept))] or not _is_for_all(scatter):
        return None
    # What is summed has no axis of the base left, so the index has to have it.
    if set(scatter.index_axes) != set(range(len(scatter.value.axes))):
        return None
    rows_have_one = all(scatter.value.axes[place].size is ONE for place in scatter.scattered)
    return scatter if scatter.how == "sum" or (scatter.how == "set" and rows_have_one) else None


def _is_for_all(scatter: ScatterOp) -> bool:
    """True if there is an index for each row of the base: no call is refused for its sizes."""
    pairs = zip(scatter.base.axes, scatter.base_axes, strict=True)
    axes = scatter.value.axes
    return all(place is None or axes[place].size is axis.size for axis, place in pairs)


def _is_zero(base: TensorView) -> bool:
    made = base.expr
    if not isinstance(made, FullOp) or not isinstance(made.inputs[0], Scalar):
        return False
    return made.inputs[0].constant == 0


def _accumulate(rewriter: Rewriter, expr: Expr, scatter: ScatterOp) -> None:
    fusion, output = rewriter.fusion, expr.tensor_outputs[0]
    start = len(fusion.exprs)
    axes: list[IterDomain] = [copy_axis(fusion, axis) for axis in output.axes]
    zeros = new_tensor(fusion, axes, output.dtype)
    assert isinstance(scatter.base.expr, FullOp)
    fusion.add_expr(FullOp(scatter.base.expr.inputs, (zeros,)))
    value = scatter.value
    if value.dtype is not output.dtype:
        value = cast_tensor(fusion, value, output.dtype)
    made = new_tensor(fusion, [copy_axis(fusion, axis) for axis in output.axes], output.dtype)
    inputs = (zeros, scatter.index, value)
    fusion.add_expr(ScatterOp(inputs, (made,), (None,), scatter.index_axes, "sum", scatter.op))
    new = fusion.exprs[start:]
    del fusion.exprs[start:]
    for one in new:
        rewriter.emit(one)
    rewriter.replace(output, made)
