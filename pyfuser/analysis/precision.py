"""Which results need fewer bits than their dtype has, because only rounded values of them are kept.

`needed_bits` goes through a fusion backwards and gives for each tensor the b for which a relative
error of 2**-b in its elements is small enough, or ALL_BITS. A tensor that is stored in half
precision needs the bits of that dtype and GUARD_BITS, so that its rounded value is the correctly
rounded one or a neighbour. An operand needs what the result needs if the operation passes relative
errors on, and one bit more if the errors of two operands, or of operand and function, add up:

    casts, views, neg, abs, relu, minimum, maximum, where, sqrt   b
    a maximum or minimum over axes                                b
    a + b, a sum over axes, for numbers of one sign; a - b, of two b
    a * b, a / b, 1 / a, 1 / sqrt(a)                              b + 1
    tanh, erf, and log1p for numbers >= 0                         b + 1: |x f'(x) / f(x)| <= 1
    everything else                                               ALL_BITS

Everything else has to be exact: numbers of different signs cancel in an addition, exp turns an
absolute error into a relative one, a comparison or an integer may jump, and float32 results that
leave the kernel are read by others. Roundings to float32 aren't counted; they occur anyway.

1 + tanh(x) and 1 + erf(x) are functions of x (`complement`), which a device may compute without
cancellation. Read alone, tanh and erf have both signs.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..dtypes import DataType, is_floating
from ..ir.exprs import VIEWS, Expr, PointwiseOp, ReductionOp
from ..ir.fusion import Fusion
from ..ir.vals import Scalar, TensorView, Val
from ..ops.op import DIVISION
from ..ops.table import OPS

ALL_BITS = 64
"""More than any dtype has: the result is as accurate as the dtype allows."""

GUARD_BITS = 3
"""The error before rounding is an eighth of a unit in the last place that is kept, or less."""

_HALF_PRECISION = {DataType.BFloat16: 8, DataType.Half: 11}
_COMPLEMENTS = ("tanh", "erf")
_CONTRACTIONS = ("tanh", "erf", "log1p")
_PRODUCTS = ("mul", "div", "truediv", "reciprocal", "rsqrt")
_PASSING = ("cast", "set", "sqrt")  # and the rows that keep values
_POSITIVE_RESULTS = ("exp", "exp2", "sigmoid", "abs", "relu", "sqrt", "rsqrt", "cosh", "erfc")
_KEEPING_SIGNS = ("set", "cast", "reciprocal", "log1p", "expm1", "tanh", "erf")

_Signs = Mapping[Val, int]


def needed_bits(fusion: Fusion) -> dict[TensorView, int]:
    """The bits that each tensor needs, for those that are read or are outputs."""
    signs = _signs(fusion)
    needed: dict[TensorView, int] = {}

    def read(tensor: TensorView, bits: int) -> None:
        own = _HALF_PRECISION.get(tensor.dtype)
        bits = max(bits, 0 if own is None else own + GUARD_BITS)
        needed[tensor] = min(max(needed.get(tensor, 0), bits), ALL_BITS)

    for output in fusion.outputs:
        if isinstance(output, TensorView):
            read(output, 0 if output.dtype in _HALF_PRECISION else ALL_BITS)
    for expr in reversed(fusion.exprs):
        result = max((needed.get(t, 0) for t in expr.tensor_outputs), default=0)
        for position, operand in enumerate(expr.inputs):
            if isinstance(operand, TensorView):
                read(operand, _operand_bits(expr, position, result, signs))
    return needed


def own_bits(expr: Expr, needed: int) -> int:
    """The bits to which a function, or a division, computes a result that needs `needed`.

    0 stands for all of them.
    """
    if needed >= ALL_BITS or not isinstance(expr, PointwiseOp):
        return 0
    if complement(expr) is None and OPS[expr.op].cost < DIVISION:
        return 0
    return needed + (expr.op in _CONTRACTIONS)  # a contraction's operand may have an error, too


def complement(expr: Expr) -> PointwiseOp | None:
    """The tanh or erf in 1 + tanh(x) and 1 + erf(x)."""
    if not isinstance(expr, PointwiseOp) or expr.op != "add" or len(expr.inputs) != 2:
        return None
    for one, other in (expr.inputs, expr.inputs[::-1]):
        inner = other.expr
        if isinstance(one, Scalar) and one.constant == 1 and isinstance(inner, PointwiseOp):
            return inner if inner.op in _COMPLEMENTS else None
    return None


def _operand_bits(expr: Expr, position: int, result: int, signs: _Signs) -> int:
    """The bits that an operand needs for a result of `result` bits."""
    match expr:
        case ReductionOp(op="max" | "min" | "nanmax" | "nanmin"):
            return result
        case ReductionOp(op="sum") if expr.inputs[0] in signs:
            return result
        case PointwiseOp(op="where"):
            return result if position else ALL_BITS
        case PointwiseOp(op="add" | "sub") if _is_without_cancellation(expr, signs):
            return result
        case PointwiseOp(op=op) if op in _PRODUCTS:
            return result + 1
        case PointwiseOp(op=op) if op in _CONTRACTIONS:
            exact = op == "log1p" and signs.get(expr.inputs[0]) != 1
            return ALL_BITS if exact else result + 1
        case PointwiseOp(op=op) if op in _PASSING or OPS[op].keeps_values:
            return result if _is_floating(expr) else ALL_BITS
        case _ if isinstance(expr, VIEWS):
            return result
        case _:
            return ALL_BITS


def _is_floating(expr: Expr) -> bool:
    """True if the result has one of the dtypes that this analysis is about."""
    return expr.output.dtype in (DataType.Float, *_HALF_PRECISION)


def _signs(fusion: Fusion) -> dict[Val, int]:
    """1 for the tensors of which no element is below 0, -1 for those of which none is above it.

    Either may have 0, -0 and NaN.  Tensors that may have numbers of both signs are missing, and
    integers, which wrap around.
    """
    found: dict[Val, int] = {}
    for expr in fusion.exprs:
        sign = _result_sign(expr, found)
        if sign:
            floating = (output for output in expr.outputs if is_floating(output.dtype))
            found.update(dict.fromkeys(floating, sign))
    return found


def _result_sign(expr: Expr, known: _Signs) -> int:
    """1, -1, or 0 if the results may have both signs."""
    signs = [_sign(value, known) for value in expr.inputs]
    match expr:
        case PointwiseOp(op=op) if op in _POSITIVE_RESULTS or complement(expr) is not None:
            return 1
        case PointwiseOp(op="mul") if expr.inputs[0] is expr.inputs[1]:
            return 1
        case PointwiseOp(op="mul" | "div" | "truediv"):
            return signs[0] * signs[1]
        case PointwiseOp(op="neg"):
            return -signs[0]
        case PointwiseOp(op="minimum") if -1 in signs or any(map(_is_zero, expr.inputs)):
            return -1
        case PointwiseOp(op="maximum") if 1 in signs:
            return 1
        case PointwiseOp(op="add" | "sub"):
            return signs[0] if _is_without_cancellation(expr, known) else 0
        case PointwiseOp(op="minimum" | "maximum"):
            return signs[0] if signs[0] == signs[1] else 0
        case PointwiseOp(op="where"):
            return signs[1] if signs[1] == signs[2] else 0
        case PointwiseOp(op=op) if op in _KEEPING_SIGNS:
            return signs[0]
        case ReductionOp(op="sum" | "max" | "min"):
            return signs[0]
        case _:
            return signs[0] if isinstance(expr, VIEWS) else 0


def _is_without_cancellation(sum_or_difference: PointwiseOp, signs: _Signs) -> bool:
    """True for a sum of numbers of one sign, and a difference of numbers of opposite signs."""
    one, other = (_sign(value, signs) for value in sum_or_difference.inputs)
    return one != 0 and (one == other if sum_or_difference.op == "add" else one == -other)


def _sign(value: Val, known: _Signs) -> int:
    if not isinstance(value, Scalar):
        return known.get(value, 0)
    number = value.constant
    if not isinstance(number, int | float) or number != number:
        return 0
    return 1 if number >= 0 else -1


def _is_zero(value: Val) -> bool:
    return isinstance(value, Scalar) and value.constant == 0
