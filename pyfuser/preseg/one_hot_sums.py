"""One-hot sums: adding up a row that is zero everywhere except at one position needs no pass.

A row in which one position differs from the others is a comparison of the positions with a number
of the row. If the others are zero, their sum is the value there, or nothing if the number isn't a
position. The backward of a cross entropy adds up such rows: every class but the target's has a
gradient of zero. Runs after identities and before broadcast_squeeze, which removes the axis of size
1 that the sum is read along.

Zeros that are products (0 * x) are NaN where x is infinite or NaN, so one of them is added, unless
the row has no other position. Constants and the row's own values only: a value that differs along
the row would be a read at a computed position.

Before:
    T2_l_int64_t[iS2{i0}] = iota(0, 1)
    T3_l_bool[iS3{i0}] = eq(T2_l_int64_t[iS2{i0}], T0_g_int64_t[bS0{1}])
    T4_l_double[iS4{i0}] = where(T3_l_bool[iS3{i0}], -1.0, 0.0)
    T5_g_double[rS5{i0}] = sum(T4_l_double[iS4{i0}])
After:
    T2_l_int64_t[iS2{i0}] = iota(0, 1)
    T3_l_bool[iS3{i0}] = eq(T2_l_int64_t[iS2{i0}], T0_g_int64_t[bS0{1}])
    T4_l_double[iS4{i0}] = where(T3_l_bool[iS3{i0}], -1.0, 0.0)
    T6_l_bool[bS6{1}] = ge(T0_g_int64_t[bS0{1}], 0)
    T7_l_bool[bS7{1}] = lt(T0_g_int64_t[bS0{1}], i0)
    T8_l_bool[bS8{1}] = logical_and(T6_l_bool[bS6{1}], T7_l_bool[bS7{1}])
    T9_l_double[bS9{1}] = where(T8_l_bool[bS8{1}], -1.0, 0.0)
    T10_l_double[] = squeeze(T9_l_double[bS9{1}], (True,))
    T5_g_double[] = set(T10_l_double[])
"""

from __future__ import annotations

import cmath
from dataclasses import dataclass

from ..dtypes import DataType, is_complex, is_floating, is_integer
from ..ir.exprs import BroadcastOp, ExpandOp, Expr, FullOp, IotaOp, PointwiseOp, ReductionOp
from ..ir.fusion import Fusion
from ..ir.vals import PythonNumber, Scalar, TensorView, Val
from ..ops import builders
from ..ops.binding import convert_number
from .rewriting import Rewriter, is_constant, rewrite, same_shape

# Expressions that a row is followed through.
_MOST_STEPS = 32


def one_hot_sums(fusion: Fusion) -> Fusion:
    """Replaces sums of rows with one element by that element."""
    return rewrite(fusion, _rule)


@dataclass(frozen=True, slots=True)
class _Row:
    """What a row has at one position, and at the others.  `is_zero`: 0, or NaN, at the others.

    Both are constants or have size 1 along the row.
    """

    there: Val
    others: Val
    is_zero: bool = False


def _rule(rewriter: Rewriter, expr: Expr) -> None:
    total = expr.output
    if not (isinstance(expr, ReductionOp) and expr.op == "sum" and isinstance(total, TensorView)):
        rewriter.emit(expr)
        return
    fusion, first = rewriter.fusion, len(rewriter.fusion.exprs)
    made = _sum(fusion, expr.tensor_inputs[0], total)
    new, fusion.exprs[first:] = fusion.exprs[first:], []
    if made is None or made.dtype is not total.dtype or not same_shape(made, total):
        rewriter.emit(expr)
        return
    for each in new:
        rewriter.emit(each)
    rewriter.replace_or_copy(total, made)


def _sum(fusion: Fusion, summed: TensorView, total: TensorView) -> TensorView | None:
    """The sum of rows with one element; None if these are others."""
    dims = [d for d, axis in enumerate(total.domain.root_or_logical) if axis.is_reduction]
    if len(dims) != 1 or summed.axes[dims[0]].is_broadcast or is_complex(summed.dtype):
        return None
    found = _Rows(fusion, dims[0])
    row = found.split(summed)
    if row is None or not row.is_zero or found.position is None:
        return None
    length = builders.size(fusion, summed, dims[0])
    inside = builders.logical_and(
        fusion,
        builders.ge(fusion, found.position, 0),
        builders.lt(fusion, found.position, length),
    )
    zero = _number(fusion, 0, summed.dtype)
    result = builders.where(fusion, inside, row.there, zero)
    if not is_constant(row.others, 0):
        taken = builders.where(fusion, inside, 1, 0)
        is_any = builders.lt(fusion, taken, length)
        result = builders.add(fusion, result, builders.where(fusion, is_any, row.others, zero))
    if is_floating(summed.dtype) and not isinstance(row.there, Scalar):
        result = builders.add(fusion, result, zero)  # a sum that is zero is +0
    return builders.squeeze(fusion, result, dims) if isinstance(result, TensorView) else None


class _Rows:
    """Splits what is computed from a comparison of positions along a dimension.

    `position` is the number that they are compared with, once a comparison was found.
    """

    def __init__(self, fusion: Fusion, dim: int) -> None:
        self.fusion, self.dim = fusion, dim
        self.position: TensorView | None = None
        self._left = _MOST_STEPS

    def split(self, value: Val) -> _Row | None:
        """The two values of a row; None if it has more, or another structure."""
        self._left -= 1
        return self._split(value) if self._left >= 0 else None

    def _split(self, value: Val) -> _Row | None:
        constant = _constant(value)
        if constant is not None:
            number = _number(self.fusion, constant, value.dtype)
            return _Row(number, number, is_constant(number, 0))
        if not isinstance(value, TensorView):
            return None
        if self._is_repeated(value):
            return _Row(value, value)
        row = self._operation(value.expr)
        if row is None:
            return None
        there, others = (self._as(each, value.dtype) for each in (row.there, row.others))
        return _Row(there, others, row.is_zero)

    def _operation(self, expr: Expr | None) -> _Row | None:
        if not isinstance(expr, PointwiseOp):
            return None
        match expr.op, expr.inputs:
            case ("eq", (a, b)):
                return self._compared(a, b) or self._compared(b, a)
            case (("set" | "cast"), (x,)):
                return self.split(x)
            case ("where", (chosen, a, b)):
                return self._chosen(chosen, a, b)
            case ("mul", (a, b)):
                return self._product(a, b)
        return None

    def _as(self, value: Val, dtype: DataType) -> Val:
        """A value of a row in the dtype of the tensor that has it: a constant is rounded to it."""
        if isinstance(value, Scalar) and value.constant is not None:
            return _number(self.fusion, value.constant, dtype)
        if value.dtype is dtype:
            return value
        made: Val = builders.cast(self.fusion, value, dtype)
        return made

    def _is_repeated(self, value: TensorView) -> bool:
        axis = value.axes[self.dim] if value.ndim > self.dim else None
        return value.ndim == 0 or (axis is not None and axis.is_broadcast and not axis.is_expanded)

    def _is_own(self, value: Val) -> bool:
        return (
            isinstance(value, TensorView) and is_integer(value.dtype) and self._is_repeated(value)
        )

    def _is_position(self, value: Val) -> bool:
        """True for the positions 0, 1, ... along the dimension."""
        if value.dtype not in (DataType.Int, DataType.Int32):
            return False
        expr = value.expr
        while isinstance(expr, PointwiseOp) and expr.op == "set":
            expr = expr.inputs[0].expr
        match expr:
            case BroadcastOp(inputs=(TensorView(expr=IotaOp(inputs=(start, step))),)):
                is_along = not expr.flags[self.dim]
            case IotaOp(inputs=(start, step)):
                is_along = self.dim == 0
            case _:
                return False
        return is_along and is_constant(start, 0) and is_constant(step, 1)

    def _compared(self, positions: Val, position: Val) -> _Row | None:
        if not (self._is_position(positions) and self._is_own(position)):
            return None
        if self.position is not None and self.position is not position:
            return None
        assert isinstance(position, TensorView)
        self.position = position
        yes, no = (_number(self.fusion, each, DataType.Bool) for each in (True, False))
        return _Row(yes, no, is_zero=True)

    def _chosen(self, chosen: Val, a: Val, b: Val) -> _Row | None:
        condition, first, second = self.split(chosen), self.split(a), self.split(b)
        if condition is None or first is None or second is None:
            return None
        if is_constant(condition.there, True) and is_constant(condition.others, False):
            return _Row(first.there, second.others, second.is_zero)
        return None

    def _product(self, a: Val, b: Val) -> _Row | None:
        first, second = self.split(a), self.split(b)
        if first is None or second is None:
            return None
        there = self._times(first.there, second.there)
        others = self._times(first.others, second.others)
        if there is None or others is None:
            return None
        return _Row(there, others, first.is_zero or second.is_zero)

    def _times(self, a: Val, b: Val) -> Val | None:
        """The product of two elements; None for constants that might have to be rounded."""
        for one, other in ((a, b), (b, a)):
            if is_constant(one, 0) and _is_finite(other):
                return one
            if is_constant(one, 1) and isinstance(other, Scalar):
                return other
        if isinstance(a, Scalar) and isinstance(b, Scalar):
            return None
        made: Val = builders.mul(self.fusion, a, b)
        return made


def _constant(value: Val) -> PythonNumber | None:
    """The number that all elements are, if it is known."""
    while not isinstance(value, Scalar):
        match value.expr:
            case FullOp() | BroadcastOp() | ExpandOp() | PointwiseOp(op="set"):
                value = value.expr.inputs[0]
            case _:
                return None
    return value.constant


def _is_finite(value: Val) -> bool:
    """True for a finite constant, and for every integer."""
    if isinstance(value, Scalar) and value.constant is not None:
        return cmath.isfinite(value.constant)
    return is_integer(value.dtype)


def _number(fusion: Fusion, number: PythonNumber, dtype: DataType) -> Scalar:
    """A constant, rounded to this dtype."""
    return fusion.new_scalar(dtype, constant=convert_number(number, dtype))
