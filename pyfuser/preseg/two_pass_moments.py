"""Two-pass moments: welford becomes a mean and a sum of squared deviations from it.

The second pass finds its elements in the cache if a row is persistent, needs no division per
element, and is more accurate.  Runs right after dead_code, so that nothing is made for an unused
count, and before segmentation, which then sees a normalisation like any other.  Welfords over
partial results (a user's rfactor) stay.

Before:
    T1_l_float[rS1{i0}], T2_g_float[rS2{i0}], T3_l_int64_t[rS3{i0}] = welford(T0_g_float[iS0{i0}])
After:
    T4_l_float[rS4{i0}] = sum(T0_g_float[iS0{i0}])
    T5_l_float[] = div(T4_l_float[rS4{i0}], i0)
    T6_l_float[bS5{1}] = broadcast(T5_l_float[], (True,))
    T7_l_float[iS6{i0}] = sub(T0_g_float[iS0{i0}], T6_l_float[bS5{1}])
    T8_l_float[iS7{i0}] = mul(T7_l_float[iS6{i0}], T7_l_float[iS6{i0}])
    T9_l_float[rS8{i0}] = sum(T8_l_float[iS7{i0}])
    T2_g_float[] = set(T9_l_float[rS8{i0}])
"""

from __future__ import annotations

from ..dtypes import DataType
from ..ir.exprs import Expr, WelfordOp
from ..ir.fusion import Fusion
from ..ir.vals import TensorView, Val
from ..ops import builders
from ..ops.reduction_builders import reduced_element_count, restored
from .rewriting import Rewriter, rewrite


def two_pass_moments(fusion: Fusion) -> Fusion:
    """Replaces every welford of plain values."""
    return rewrite(fusion, _rule)


def _rule(rewriter: Rewriter, expr: Expr) -> None:
    if not isinstance(expr, WelfordOp) or len(expr.inputs) != 1:
        rewriter.emit(expr)
        return
    fusion = rewriter.fusion
    start = len(fusion.exprs)
    (x,) = expr.tensor_inputs
    mean, squares, count = expr.tensor_outputs
    axes = mean.domain.root_or_logical
    dims = [d for d, axis in enumerate(axes) if axis.is_reduction]
    number = reduced_element_count(fusion, x, dims)
    average = builders.div(fusion, builders.sum(fusion, x, dims), number)
    centred = builders.sub(fusion, x, restored(fusion, average, dims, x.ndim))
    total = builders.sum(fusion, builders.mul(fusion, centred, centred), dims)
    made = {mean: average, squares: total}
    if count.uses_list or rewriter.is_output(count):
        made[count] = _filled(fusion, average, number)
    new = fusion.exprs[start:]
    del fusion.exprs[start:]
    for one in new:
        rewriter.emit(one)
    for old, value in made.items():
        assert isinstance(value, TensorView)
        rewriter.replace(old, value)


def _filled(fusion: Fusion, like: TensorView, number: Val | int) -> TensorView:
    """A number in the shape of a tensor, expanded where the tensor is."""
    sizes = builders.shape(fusion, like)
    single = [1 if a.is_broadcast else size for a, size in zip(like.axes, sizes, strict=True)]
    made = builders.full(fusion, single, number, DataType.Int)
    return builders.expand(fusion, made, sizes) if like.has_expanded_axis else made
