"""Which results need fewer bits than their dtype has, because only rounded values of them are kept.

`needed_bits` goes through a fusion backwards and gives for each tensor the b for which a relative
error of 2**-b in its elements is small enough, or ALL_BITS. A tensor that is stored in half
precision needs the bits of that dtype and GUARD_BITS, so that its rounded value is the correctly
rounded one or a neighbour. An operand needs what the result needs if the operation passes relative
errors on, and one bit more if the errors of two operands, or of operand and function, add up:

    casts, views, neg, abs, relu, minimum, maximum, where, sqrt   b
    a maximum or minimum over axes                                b
    a + b, a sum over axes, for numbers >= 0                      b
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

from ..dtypes import DataType
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
_KEEPING_SIGNS = (
    *("set", "cast", "add", "mul", "div", "truediv", "reciprocal", "minimum", "maximum"),
    *("log1p", "expm1", "tanh", "erf"),
)


def needed_bits(fusion: Fusion) -> dict[TensorView, int]:
    """The bits that each tensor needs, for those that are read or are outputs."""
    positive = _not_negative(fusion)
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
                read(operand, _operand_bits(expr, position, result, positive))
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


def _operand_bits(expr: Expr, position: int, result: int, positive: set[Val]) -> int:
    """The bits that an operand needs for a result of `result` bits."""
    match expr:
        case ReductionOp(op="max" | "min" | "nanmax" | "nanmin"):
            return result
        case ReductionOp(op="sum") if expr.inputs[0] in positive:
            return result
        case PointwiseOp(op="where"):
            return result if position else ALL_BITS
        case PointwiseOp(op="add") if all(_is_positive(v, positive) for v in expr.inputs):
            return result
        case PointwiseOp(op=op) if op in _PRODUCTS:
            return result + 1
        case PointwiseOp(op=op) if op in _CONTRACTIONS:
            exact = op == "log1p" and expr.inputs[0] not in positive
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


def _not_negative(fusion: Fusion) -> set[Val]:
    """The tensors without negative numbers: all elements are 0 (or -0), positive or NaN."""
    found: set[Val] = set()
    for expr in fusion.exprs:
        if _has_positive_result(expr, found):
            found.update(expr.outputs)
    return found


def _has_positive_result(expr: Expr, positive: set[Val]) -> bool:
    match expr:
        case PointwiseOp(op=op) if op in _POSITIVE_RESULTS or complement(expr) is not None:
            return True
        case PointwiseOp(op="mul") if expr.inputs[0] is expr.inputs[1]:
            return True
        case PointwiseOp(op="where"):
            return all(_is_positive(v, positive) for v in expr.inputs[1:])
        case PointwiseOp(op=op) if op in _KEEPING_SIGNS:
            return all(_is_positive(v, positive) for v in expr.inputs)
        case ReductionOp(op="sum" | "max"):
            return expr.inputs[0] in positive
        case _:
            return isinstance(expr, VIEWS) and expr.inputs[0] in positive


def _is_positive(value: Val, positive: set[Val]) -> bool:
    if isinstance(value, Scalar):
        number = value.constant
        return isinstance(number, int | float) and number >= 0
    return value in positive
