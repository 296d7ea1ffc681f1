"""Added scatters: a scatter that adds into zeros, plus a tensor, adds into the tensor.

The gradient of an embedding that is also the last layer's weight is such a sum: without zeros, and
without reading both, it is half of the memory traffic.  The tensor must have all elements of the
sum, and nothing else may read the scatter.  Runs right after scatter_accumulate, which makes
scatters into zeros, and before common_subexpressions, for which equal sums are one.

Before:
    T1_l_float[iS1{10}] = full(0.0)
    f3 = cast(1.0)
    T3_l_float[iS3{i0}] = full(f3)
    T4_l_float[iS4{10}] = scatter(T1_l_float[iS1{10}], T0_g_int64_t[iS0{i0}], T3_l_float[iS3{i0}], (None,), (0,), sum)
    T5_g_float[iS5{10}] = add(T4_l_float[iS4{10}], T2_g_float[iS2{10}])
After:
    f3 = cast(1.0)
    T3_l_float[iS3{i0}] = full(f3)
    T5_g_float[iS5{10}] = scatter(T2_g_float[iS2{10}], T0_g_int64_t[iS0{i0}], T3_l_float[iS3{i0}], (None,), (0,), sum)
"""  # noqa: E501  (the IR's own text)

from __future__ import annotations

from ..ir.exprs import Expr, PointwiseOp, ScatterOp
from ..ir.fusion import Fusion
from ..ir.vals import TensorView, Val
from .dead_code import dead_code
from .rewriting import Rewriter, has_natural_layout, is_filled_with_zero, rewrite, same_shape


def added_scatters(fusion: Fusion) -> Fusion:
    """Replaces such sums, and drops what is no longer read."""
    if not any(isinstance(expr, ScatterOp) for expr in fusion.exprs):
        return fusion
    readers = {t: len(t.uses_list) + (t in fusion.outputs) for t in fusion.tensors}

    def rule(rewriter: Rewriter, expr: Expr) -> None:
        rewriter.emit(_added(expr, readers) or expr)

    return dead_code(rewrite(fusion, rule))


def _added(expr: Expr, readers: dict[TensorView, int]) -> ScatterOp | None:
    """The scatter that makes the same sum, if there is one."""
    if not isinstance(expr, PointwiseOp) or expr.op != "add":
        return None
    output, (left, right) = expr.tensor_outputs[0], expr.inputs
    for made, base in ((left, right), (right, left)):
        scatter = _into_zeros(made, readers)
        if scatter is None or not _is_base_of(base, output):
            continue
        return ScatterOp(
            (base, scatter.index, scatter.value),
            (output,),
            scatter.base_axes,
            scatter.index_axes,
            "sum",
            scatter.op,
        )
    return None


def _into_zeros(made: Val, readers: dict[TensorView, int]) -> ScatterOp | None:
    """The scatter that makes a value by adding into zeros, if nothing else reads the value."""
    scatter = made.expr
    if not isinstance(scatter, ScatterOp) or scatter.how != "sum":
        return None
    is_alone = readers[scatter.tensor_outputs[0]] == 1
    return scatter if is_alone and is_filled_with_zero(scatter.base) else None


def _is_base_of(base: Val, output: TensorView) -> bool:
    """True if the result of a scatter with this base has the output's elements."""
    if not isinstance(base, TensorView) or base.dtype is not output.dtype:
        return False
    is_whole = not any(axis.is_broadcast for axis in (*base.axes, *output.axes))
    return is_whole and has_natural_layout(output) and same_shape(base, output)
