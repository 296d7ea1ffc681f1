"""One-pass moments: a mean and the squared deviations from it become a welford again.

The reverse of two_pass_moments, for moments whose two sums would be two kernels: the second one
reads the tensor from memory again.  Runs after a first cut, for targets whose memory is slower than
the additional arithmetic, and the fusion is cut again.

Before:
    T1_l_float[rS1{i0}] = sum(T0_g_float[iS0{i0}])
    T2_l_float[] = div(T1_l_float[rS1{i0}], i0)
    T3_l_float[bS2{1}] = broadcast(T2_l_float[], (True,))
    T4_l_float[iS3{i0}] = sub(T0_g_float[iS0{i0}], T3_l_float[bS2{1}])
    T5_l_float[iS4{i0}] = mul(T4_l_float[iS3{i0}], T4_l_float[iS3{i0}])
    T6_g_float[rS5{i0}] = sum(T5_l_float[iS4{i0}])
After:
    T7_l_float[rS6{i0}], T8_l_float[rS7{i0}], T9_l_int64_t[rS8{i0}] = welford(T0_g_float[iS0{i0}])
    T6_g_float[] = set(T8_l_float[rS7{i0}])
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ..dtypes import DataType
from ..ir.exprs import BroadcastOp, Expr, PointwiseOp, ReductionOp
from ..ir.fusion import Fusion
from ..ir.scalars import Integer, product
from ..ir.segmented import SegmentedFusion
from ..ir.vals import Scalar, TensorView, Val
from ..ops import builders
from ..ops.reduction_builders import restored
from .dead_code import dead_code
from .rewriting import Rewriter, rewrite


@dataclass(frozen=True, slots=True)
class Moments:
    """The sum of a tensor's elements over axes (`dims`), their mean, and the sum of the squared
    deviations from it.  The mean may have the reduced axes with size 1.
    """

    of: TensorView
    dims: list[int]
    total: TensorView
    mean: TensorView
    squares: TensorView


def moments(fusion: Fusion) -> list[Moments]:
    """The moments that a fusion computes in two passes."""
    found = (_moments(expr) for expr in fusion.exprs)
    return [each for each in found if each is not None]


def cut_apart(segmented: SegmentedFusion) -> set[int]:
    """The names of the squared deviations that aren't computed beside the sum of the elements."""
    makers: dict[TensorView, set[int]] = {}
    for number, segment in enumerate(segmented.segments):
        for expr in segment.exprs:
            for tensor in expr.tensor_outputs:
                makers.setdefault(tensor, set()).add(number)
    found = [m for m in moments(segmented.fusion) if {m.total, m.squares} <= makers.keys()]
    return {m.squares.name for m in found if makers[m.total].isdisjoint(makers[m.squares])}


def one_pass_moments(fusion: Fusion, names: Collection[int]) -> Fusion:
    """A copy of a fusion with a welford for the squared deviations of these names."""
    copy, _ = fusion.clone()
    chosen = [each for each in moments(copy) if each.squares.name in names]
    of_total = {each.total: each for each in chosen}
    replaced: dict[TensorView, TensorView] = {}

    def rule(rewriter: Rewriter, expr: Expr) -> None:
        outputs = expr.tensor_outputs
        if outputs and outputs[0] in replaced:
            rewriter.replace(outputs[0], replaced[outputs[0]])
            return
        each = of_total.get(outputs[0]) if outputs else None
        if each is None:
            rewriter.emit(expr)
            return
        start = len(copy.exprs)
        mean, squares, _ = builders.welford(copy, each.of, each.dims)
        if each.mean.ndim == each.of.ndim:
            mean = restored(copy, mean, each.dims, each.of.ndim)
        made = copy.exprs[start:]
        del copy.exprs[start:]
        for one in made:
            rewriter.emit(one)
        replaced[each.mean], replaced[each.squares] = mean, squares

    return dead_code(rewrite(copy, rule))


def _moments(expr: Expr) -> Moments | None:
    """The moments whose squared deviations an expression adds up."""
    if not _is_sum(expr):
        return None
    match expr.tensor_inputs[0].expr:
        case PointwiseOp(op="mul", inputs=(TensorView() as centred, same)) if centred is same:
            pass
        case _:
            return None
    match centred.expr:
        case PointwiseOp(op="sub", inputs=(TensorView() as of, TensorView() as repeated)):
            dims = _reduced(expr.tensor_outputs[0])
        case _:
            return None
    mean = _unrepeated(repeated, of, dims) or repeated
    match mean.expr:
        case PointwiseOp(op="div", inputs=(TensorView() as divided, Scalar() as count)):
            pass
        case _:
            return None
    total = _unrepeated(divided, of, dims) if mean is repeated else divided
    if total is None or not _is_only_divided(total, mean) or not _counts(count, of, dims):
        return None
    is_pair = total.expr.tensor_inputs[0] is of and _reduced(total) == dims  # type: ignore[union-attr]
    is_plain = of.dtype in (DataType.Float, DataType.Double)
    return Moments(of, dims, total, mean, expr.tensor_outputs[0]) if is_pair and is_plain else None


def _unrepeated(tensor: TensorView, of: TensorView, dims: list[int]) -> TensorView | None:
    """What a tensor repeats along the reduced axes of another one; None if it isn't that."""
    expr, flags = tensor.expr, tuple(d in dims for d in range(of.ndim))
    return expr.tensor_inputs[0] if isinstance(expr, BroadcastOp) and expr.flags == flags else None


def _is_only_divided(total: TensorView, mean: TensorView) -> bool:
    """True for a sum that nothing reads but the mean."""
    if total.expr is None or not _is_sum(total.expr):
        return False
    outputs, reader = total.fusion.outputs, mean.expr
    (divided,) = reader.tensor_inputs if reader is not None else (total,)
    readers = [total] if divided is total else [total, divided]
    return all(len(each.uses_list) == 1 and each not in outputs for each in readers)


def _is_sum(expr: Expr) -> bool:
    return isinstance(expr, ReductionOp) and expr.op == "sum"


def _reduced(tensor: TensorView) -> list[int]:
    """The dims of its operand that a reduction has reduced."""
    return [d for d, axis in enumerate(tensor.domain.root_or_logical) if axis.is_reduction]


def _counts(count: Val, tensor: TensorView, dims: list[int]) -> bool:
    """True if a scalar is how many elements of a tensor are reduced into one."""
    axes = [tensor.axes[d] for d in dims]
    if any(axis.is_broadcast or axis.is_expanded for axis in axes) or not isinstance(count, Scalar):
        return False
    number = product(axis.extent for axis in axes)
    if count.constant is not None:
        return isinstance(number, Integer) and number.value == count.constant
    return count.extent is number or count.extent == number
