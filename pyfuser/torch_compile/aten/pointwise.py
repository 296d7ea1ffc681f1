"""Pointwise ops: arithmetic, comparisons, logic, choices; most are rows of pyfuser's op table.

Promotion is torch's, taken from the metadata: operands are cast to the held dtype of the result or,
for comparisons, of the dtype to which torch promotes the operands.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ...dtypes import DataType, compute_dtype, from_torch, is_floating
from ...ops.dtype_rules import DtypeRule
from ...ops.table import OPS
from .region_builder import Call, meta_of
from .term import Term
from .translation import Build, Check, Cost, Table, Translation

aten = torch.ops.aten

# Rows of the op table that aten knows by the same name.
_UNARY = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "bitwise_not", "ceil", "cos", "cosh",
    "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "floor", "frac", "isinf", "isnan", "isneginf",
    "isposinf", "lgamma", "log", "log10", "log1p", "log2", "logical_not", "neg", "reciprocal",
    "relu", "round", "rsqrt", "sigmoid", "sign", "signbit", "silu", "sin", "sinh", "sqrt", "tan",
    "tanh", "trunc",
)  # fmt: skip
_BINARY = (
    "atan2", "bitwise_and", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift",
    "bitwise_xor", "eq", "fmax", "fmin", "fmod", "gcd", "ge", "gt", "le", "lt", "maximum",
    "minimum", "mul", "ne", "nextafter", "remainder",
)  # fmt: skip
_LOGICAL = ("logical_and", "logical_or", "logical_xor")


def _unary(row: str) -> Build:
    """Computed in the result's dtype."""

    def build(call: Call, x: Any) -> Term:
        return call.held(x, call.dtype).op(row)

    return build


def _discontinuous(row: str) -> Build:
    """Where a rounding before would be seen."""

    def build(call: Call, x: Any) -> Term:
        return call.exact(x).op(row)

    return build


def _binary(row: str) -> Build:
    """Both operands in the result's dtype."""

    def build(call: Call, a: Any, b: Any) -> Term:
        return call.operand(a, call.dtype).op(row, call.operand(b, call.dtype))

    return build


def _exact_binary(row: str) -> Build:
    def build(call: Call, a: Any, b: Any) -> Term:
        logical = call.compared_dtype(a, b)
        return call.exact_operand(a, call.dtype, logical).op(
            row, call.exact_operand(b, call.dtype, logical)
        )

    return build


def compared(call: Call, a: Any, b: Any) -> tuple[Term, Term]:
    """Two operands, converted as torch compares them."""
    logical = call.compared_dtype(a, b)
    held = compute_dtype(logical)
    if compares_signs(logical, a, b):
        return call.operand(a, held), call.operand(b, held)
    return call.exact_operand(a, held, logical), call.exact_operand(b, held, logical)


def compares_signs(dtype: DataType, *operands: Any) -> bool:
    """True for a comparison with 0 in bfloat16, which needs no rounding.

    A float on one side of 0 is there in bfloat16 too, unless it rounds to 0, as a float below
    2**-134 does.
    """
    is_zero = any(isinstance(each, (int, float)) and each == 0 for each in operands)
    return dtype is DataType.BFloat16 and is_zero


def _comparison(row: str) -> Build:
    def build(call: Call, a: Any, b: Any) -> Term:
        left, right = compared(call, a, b)
        return left.op(row, right)

    return build


def truth(call: Call, argument: Any) -> Term:
    """Where an operand isn't zero."""
    if isinstance(meta_of(argument), torch.Tensor):
        x = call.exact(argument)
        return x if x.dtype is DataType.Bool else x.differs(0)
    return call.number(argument, DataType.Bool)


def _logical(row: str) -> Build:
    bits = row.replace("logical", "bitwise")

    def build(call: Call, a: Any, b: Any) -> Term:
        return truth(call, a).op(bits, truth(call, b))

    return build


def _scaled(call: Call, b: Any, alpha: Any) -> Term:
    term = call.operand(b, call.dtype)
    if meta_of(alpha) == 1:
        return term
    return term * call.number(alpha, call.dtype)


def _add(call: Call, a: Any, b: Any, alpha: Any = 1) -> Term:
    return call.operand(a, call.dtype) + _scaled(call, b, alpha)


def _sub(call: Call, a: Any, b: Any, alpha: Any = 1) -> Term:
    return call.operand(a, call.dtype) - _scaled(call, b, alpha)


def _rsub(call: Call, a: Any, b: Any, alpha: Any = 1) -> Term:
    return call.operand(b, call.dtype) - _scaled(call, a, alpha)


def _floor_quotient(call: Call, a: Term, b: Term) -> Term:
    """floor(a / b) as in torch: exact for floats too, through the remainder."""
    if not is_floating(a.dtype):
        quotient = a / b
        rest = a - quotient * b
        unequal = rest.differs(0) & ((rest < 0) ^ (b < 0))
        return quotient - unequal.choose(call.constant(1, a.dtype), call.constant(0, a.dtype))
    rest = a.op("fmod", b)
    quotient = (a - rest) / b
    lower = rest.differs(0) & ((b < 0) ^ (rest < 0))
    quotient = lower.choose(quotient - 1, quotient)
    whole = quotient.op("floor")
    whole = (quotient - whole > 0.5).choose(whole + 1, whole)
    plain = a / b
    signed_zero = plain.op("signbit").choose(call.constant(-0.0, a.dtype), 0.0)
    whole = quotient.differs(0).choose(whole, signed_zero)
    return b.equals(0).choose(plain, whole)


def _div(call: Call, a: Any, b: Any, mode: str | None = None) -> Term:
    if mode is None:
        return call.operand(a, call.dtype) / call.operand(b, call.dtype)
    logical = call.compared_dtype(a, b)
    left = call.exact_operand(a, call.dtype, logical)
    # Eager divides half precision by the exact number, not rounded to half precision.
    is_tensor = isinstance(meta_of(b), torch.Tensor)
    right = call.exact(b, call.dtype) if is_tensor else call.number(b, call.dtype)
    if mode == "floor":
        return _floor_quotient(call, left, right)
    quotient = left / right
    if not is_floating(quotient.dtype):
        return quotient
    if not is_tensor or not meta_of(b).dim():
        return quotient.op("trunc")
    # Eager rounds the quotient by a tensor to the result's dtype before it drops the fraction.
    rounded = quotient.cast(from_torch(call.meta.dtype)).cast(call.dtype)
    return rounded.op("trunc")


def _floor_divide(call: Call, a: Any, b: Any) -> Term:
    return _div(call, a, b, "floor")


# Exponents for which torch has a shorter formula; floats only.
_POWERS: dict[float, Any] = {
    0.5: lambda x: x.op("sqrt"),
    -0.5: lambda x: x.op("rsqrt"),
    -1.0: lambda x: x.op("reciprocal"),
    -2.0: lambda x: (x * x).op("reciprocal"),
}
# Powers that are products: the longest are at most 3.5 units in the last place off.  Their
# reciprocals are half a unit more.
_PRODUCTS = range(1, 9)

CHEAP_EXPONENTS = frozenset((*_POWERS, *(sign * float(n) for n in _PRODUCTS for sign in (1, -1))))


def _pow_scalar(call: Call, x: Any, exponent: Any) -> Term:
    base = call.held(x, call.dtype)
    power = meta_of(exponent)
    if isinstance(power, (int, float)):
        if power in _PRODUCTS:
            return _product(base, int(power))
        shorter = _POWERS.get(float(power))
        if shorter is not None and is_floating(call.dtype):
            return shorter(base)  # type: ignore[no-any-return]
        if -power in _PRODUCTS and is_floating(call.dtype):
            return _product(base, -int(power)).op("reciprocal")
    return base.op("pow", call.number(exponent, call.dtype))


def _power_of_number(call: Call, base: Any, exponent: Any) -> Term:
    power = call.held(exponent, call.dtype)
    if base == 2 and is_floating(call.dtype):
        return power.op("exp2")
    return call.number(base, call.dtype).op("pow", power)


def _product(base: Term, power: int) -> Term:
    """A power as the square of half of it, and once more the base if it is odd."""
    if power == 1:
        return base
    half = _product(base, power // 2)
    return half * half * base if power % 2 else half * half


def _square(call: Call, x: Any) -> Term:
    base = call.held(x, call.dtype)
    return base * base


def _clamp(call: Call, x: Any, low: Any = None, high: Any = None) -> Term:
    result = call.held(x, call.dtype)
    if low is not None:
        result = result.op("maximum", call.operand(low, call.dtype))
    if high is not None:
        result = result.op("minimum", call.operand(high, call.dtype))
    return result


def _clamp_max(call: Call, x: Any, high: Any) -> Term:
    return _clamp(call, x, None, high)


def _where(call: Call, condition: Any, a: Any, b: Any) -> Term:
    yes, no = call.operand(a, call.dtype), call.operand(b, call.dtype)
    return truth(call, condition).choose(yes, no)


def _masked_fill(call: Call, x: Any, mask: Any, value: Any) -> Term:
    return _where(call, mask, value, x)


def _lerp(call: Call, start: Any, end: Any, weight: Any) -> Term:
    operands = [call.operand(v, call.dtype) for v in (start, end, weight)]
    return operands[0].op("lerp", *operands[1:])


def _addc(row: str) -> Build:
    """addcmul and addcdiv: x + value * a (row) b."""

    def build(call: Call, x: Any, a: Any, b: Any, value: Any = 1) -> Term:
        product = _scaled(call, a, value).op(row, call.operand(b, call.dtype))
        return call.operand(x, call.dtype) + product

    return build


def _isfinite(call: Call, x: Any) -> Term:
    return call.exact(x).op("isfinite")


def _nan_to_num(call: Call, x: Any, nan: Any, posinf: Any, neginf: Any) -> Term:
    term = call.exact(x)
    if not is_floating(term.dtype):
        return term
    limits = torch.finfo(meta_of(x).dtype)
    highest = limits.max if posinf is None else posinf
    lowest = limits.min if neginf is None else neginf
    result = term.op("isnan").choose(call.constant(0.0 if nan is None else nan), term)
    result = term.equals(math.inf).choose(call.constant(highest), result)
    return term.equals(-math.inf).choose(call.constant(lowest), result)


def _degrees(factor: float) -> Build:
    def build(call: Call, x: Any) -> Term:
        return call.held(x, call.dtype) * factor

    return build


def _identity(call: Call, x: Any) -> Term:
    return call.held(x)


def _floats_only(node: Any, *rest: Any) -> str | None:
    dtype = meta_of(node).dtype
    return None if dtype.is_floating_point else f"a result of {dtype}"


def _not_half(node: Any, *rest: Any) -> str | None:
    dtype = meta_of(node).dtype
    allowed = dtype in (torch.float32, torch.float64)
    return None if allowed else f"a result of {dtype}"


def _fits(node: Any, a: Any, b: Any, *rest: Any) -> str | None:
    """Refuses an integer tensor with a number that its dtype can't represent."""
    left, number = (b, a) if isinstance(meta_of(b), torch.Tensor) else (a, b)
    tensor, value = meta_of(left), meta_of(number)
    is_plain = isinstance(value, int) and not isinstance(value, bool)
    if not is_plain or tensor.dtype.is_floating_point or tensor.dtype is torch.bool:
        return None
    limits = torch.iinfo(tensor.dtype)
    return None if limits.min <= value <= limits.max else f"{value} beside {tensor.dtype}"


def _has_power(node: Any, x: Any, exponent: Any) -> str | None:
    """Also refuses what torch refuses: integers to a negative number, but not to a tensor."""
    dtype, power = meta_of(node).dtype, meta_of(exponent)
    if dtype.is_floating_point or statically_known_true(power >= 0):
        return _fits(node, x, exponent)
    return f"{dtype} to a power that may be negative"


def all_overloads(name: str, names: tuple[str, ...], row: Translation) -> Table:
    """The row for the overloads of `name` that return a tensor (some take only numbers)."""
    packet = getattr(aten, name)
    found = [getattr(packet, overload) for overload in names if hasattr(packet, overload)]
    return {o: row for o in found if str(o._schema.returns[0].type) == "Tensor"}


_BOTH = ("Tensor", "Scalar", "default", "Scalar_Tensor")


def of_row(
    name: str, build: Build, check: Check | None = None, exact: tuple[int, ...] = ()
) -> Translation:
    """The translation to one row of the op table, which gives its cost and properties."""
    row = OPS[name]
    cost: Cost = "heavy" if row.is_expensive else "cheap"
    return Translation(build, cost, check, row.keeps_values, exact)


def _one_row(name: str, check: Check | None = None) -> Translation:
    """The row, on operands rounded as in torch if it is discontinuous."""
    row = OPS[name]
    operands = tuple(range(row.arity))
    if row.rule is DtypeRule.COMPARE:
        return of_row(name, _comparison(name), check, operands)
    if row.is_discontinuous:
        build = _discontinuous(name) if row.arity == 1 else _exact_binary(name)
        return of_row(name, build, check, operands)
    return of_row(name, _unary(name) if row.arity == 1 else _binary(name), check)


def _rows() -> Table:
    table: Table = {getattr(aten, name).default: _one_row(name) for name in _UNARY}
    for name in _BINARY:
        check = _not_half if name == "nextafter" else _fits
        table |= all_overloads(name, _BOTH, _one_row(name, check))
    for name in ("left", "right"):
        shift = _one_row(f"bitwise_{name}_shift", _fits)
        table |= all_overloads(f"__{name[0]}shift__", _BOTH, shift)
    for name in _LOGICAL:
        table[getattr(aten, name).default] = Translation(_logical(name), exact=(0, 1))
    return table


# Quotients that are rounded to whole numbers.
_QUOTIENT = Translation(_div, "heavy", _fits, exact=(0, 1))

TRANSLATIONS: Table = {
    **_rows(),
    **all_overloads("add", _BOTH, Translation(_add, check=_fits)),
    **all_overloads("sub", _BOTH, Translation(_sub, check=_fits)),
    **all_overloads("rsub", _BOTH, Translation(_rsub, check=_fits)),
    **all_overloads("div", ("Tensor", "Scalar"), Translation(_div, check=_fits)),
    # torch writes numbers that depend on sizes as such quotients of 0-dim tensors.
    aten.true_divide.Tensor: Translation(_div, check=_fits),
    **all_overloads("div", ("Tensor_mode", "Scalar_mode"), _QUOTIENT),
    **all_overloads("floor_divide", _BOTH, replace(_QUOTIENT, build=_floor_divide)),
    **all_overloads("lerp", ("Tensor", "Scalar"), Translation(_lerp)),
    aten.sgn.default: _one_row("sign"),
    aten.positive.default: Translation(_identity),
    aten.isfinite.default: Translation(_isfinite, exact=(0,)),
    aten.pow.Tensor_Tensor: _one_row("pow"),
    aten.pow.Scalar: of_row("pow", _power_of_number),
    aten.pow.Tensor_Scalar: Translation(_pow_scalar, check=_has_power),
    aten.square.default: Translation(_square),
    aten.clamp.default: Translation(_clamp),
    aten.clamp.Tensor: Translation(_clamp),
    aten.clamp_min.default: Translation(_clamp),
    aten.clamp_min.Tensor: Translation(_clamp),
    aten.clamp_max.default: Translation(_clamp_max),
    aten.clamp_max.Tensor: Translation(_clamp_max),
    aten.where.self: Translation(_where),
    aten.where.ScalarOther: Translation(_where),
    aten.where.ScalarSelf: Translation(_where),
    aten.masked_fill.Scalar: Translation(_masked_fill),
    aten.masked_fill.Tensor: Translation(_masked_fill),
    aten.addcmul.default: Translation(_addc("mul")),
    aten.addcdiv.default: Translation(_addc("div"), check=_floats_only),
    aten.nan_to_num.default: Translation(_nan_to_num, exact=(0,)),
    aten.deg2rad.default: Translation(_degrees(math.pi / 180)),
    aten.rad2deg.default: Translation(_degrees(180 / math.pi)),
}  # fmt: skip
