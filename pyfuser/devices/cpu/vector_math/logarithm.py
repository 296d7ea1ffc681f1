"""log, log2, log10, log1p, asinh, acosh, atanh over vectors of float or double.

x = 2**k m with m in [0.75, 1.5) for float, [sqrt(1/2), sqrt(2)) for double; f = m - 1 is exact.
float: log(1 + f) = f - f**2 / 2 + f**3 P(f).  double: with s = f / (2 + f), log(1 + f) =
f - (h - s (h + R(s**2))), h = f**2 / 2, the arrangement of Ng (fdlibm), which rounds f once.
k ln 2 is added as two numbers.  Zero gives -inf, negatives NaN, subnormals are scaled first; in
float, two instructions of AVX-512 do all of this.
Coefficients: Remez fit of P (float), Chebyshev interpolation of R(z) = (2 atanh(s) - 2 s) / s
(double), both with 50 digits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pyfuser.devices.cpu.llvm_writer import FunctionWriter, Value
from pyfuser.devices.cpu.vector_math import avx512
from pyfuser.devices.cpu.vector_math.common import (
    fast_two_sum,
    is_double,
    mantissa_bits,
    outlined,
    polynomial,
    two_product,
    widened,
)

# ln 2 and log10(2) as a short number, whose product with k is exact, and the rest.
_LN2 = {
    "float": (0.693145751953125, 1.428606765330187e-06),
    "double": (0.6931471805601177, -1.7239444525614835e-13),
}
_LOG10_2 = {
    "float": (0.301025390625, 4.605039066518657e-06),
    "double": (0.3010299956640665, -8.532344317057107e-14),
}
# 1 / ln 2 and 1 / ln 10 as two numbers.
_LOG2_E = {
    "float": (1.4426950216293335, 1.925963033500011e-08),
    "double": (1.4426950408889634, 2.0355273740931033e-17),
}
_LOG10_E = {
    "float": (0.4342944920063019, -1.0103049952192578e-08),
    "double": (0.4342944819032518, 1.098319650216765e-17),
}
_P_FLOAT = (
    0.33333340287208557,
    -0.2500016391277313,
    0.19999605417251587,
    -0.16655296087265015,
    0.14276237785816193,
    -0.12727777659893036,
    0.11700671166181564,
    -0.09116221219301224,
    0.037673164159059525,
)
_R_DOUBLE = (
    0.6666666666666666,
    0.4000000000000094,
    0.2857142857076445,
    0.2222222240054776,
    0.181817947008978,
    0.15386290534658992,
    0.13267418596474884,
    0.1310072138350349,
)
# atanh(x) = x + x**3 P(x**2) up to 1/2, with a relative error of 2**-33.
_ATANH_FLOAT = (
    0.3333333730697632,
    0.19999727606773376,
    0.14294852316379547,
    0.10967183113098145,
    0.1028267964720726,
    0.02452223375439644,
    0.17594216763973236,
)


@dataclass(frozen=True, slots=True)
class _Mantissa:
    """The constants of one form of the split x = 2**k m."""

    smallest_normal: float
    scale: float  # brings subnormals into the normal range
    scale_exponent: float
    lowest: int  # bits of the lowest m


_MANTISSA = {
    "float": _Mantissa(2.0**-126, 2.0**23, 23.0, 0x3F400000),
    "double": _Mantissa(2.0**-1022, 2.0**52, 52.0, 0x3FE6A09E667F3BCD),
}


def split_exponent(w: FunctionWriter, x: Value, *, subnormals: bool = True) -> tuple[Value, Value]:
    """(k as a float, m - 1) for a positive finite x; anything for other x."""
    type, format = x.type, _MANTISSA[x.type.element]
    bias = w.constant(0.0, type)
    if subnormals:
        small = w.fcmp("olt", x, w.constant(format.smallest_normal, type))
        x = w.select(small, w.fmul(x, w.constant(format.scale, type)), x)
        bias = w.select(small, w.constant(-format.scale_exponent, type), bias)
    bits = w.bitcast(x, type.as_integer)
    lowest = w.constant(format.lowest, bits.type)
    width = w.constant(mantissa_bits(type), bits.type)
    k = w.ashr(w.sub(bits, lowest), width)
    m = w.bitcast(w.sub(bits, w.shl(k, width)), type)
    exponent = w.sitofp(k, type)
    if subnormals:
        exponent = w.fadd(exponent, bias)
    return exponent, w.fsub(m, w.constant(1.0, type))


def special_logarithm(w: FunctionWriter, x: Value, value: Value) -> Value:
    """The logarithm of x with zero, negatives, infinity and NaN corrected."""
    type = x.type
    zero, infinity = w.constant(0.0, type), w.constant(math.inf, type)
    value = w.select(w.fcmp("ult", x, infinity), value, x)
    value = w.select(w.fcmp("ult", x, zero), w.constant(math.nan, type), value)
    return w.select(w.fcmp("oeq", x, zero), w.constant(-math.inf, type), value)


def _log1p_float(w: FunctionWriter, f: Value, extra: Value | None) -> Value:
    """log(1 + f) - f for |f| <= 1/2, plus `extra`, in float."""
    square = w.fmul(f, f)
    tail = w.fmul(w.fmul(square, f), polynomial(w, f, _P_FLOAT))
    if extra is not None:
        tail = w.fadd(tail, extra)
    return w.fma(square, w.constant(-0.5, f.type), tail)


def _log1p_double(w: FunctionWriter, f: Value, extra: Value | None) -> Value:
    """log(1 + f) - f for sqrt(1/2) <= 1 + f < sqrt(2), plus `extra`, in double."""
    s = w.fdiv(f, w.fadd(f, w.constant(2.0, f.type)))
    z = w.fmul(s, s)
    half_square = w.fmul(w.fmul(f, f), w.constant(0.5, f.type))
    series = w.fmul(z, polynomial(w, z, _R_DOUBLE))
    tail = w.fmul(s, w.fadd(half_square, series))
    if extra is not None:
        tail = w.fadd(tail, extra)
    return w.fsub(tail, half_square)


def log1p_reduced(w: FunctionWriter, f: Value, extra: Value | None = None) -> Value:
    """log(1 + f) - f (+ extra), so that the caller rounds the sum with f once."""
    return _log1p_double(w, f, extra) if is_double(f) else _log1p_float(w, f, extra)


def _finite_log(w: FunctionWriter, k: Value, f: Value, extra: Value | None = None) -> Value:
    high, low = _LN2[f.type.element]
    low_part = w.fmul(k, w.constant(low, f.type))
    if extra is not None:
        low_part = w.fadd(low_part, extra)
    tail = log1p_reduced(w, f, low_part)
    return w.fma(k, w.constant(high, f.type), w.fadd(f, tail))


def _has_instructions(w: FunctionWriter, x: Value) -> bool:
    """True if instructions split a float, and no special number needs care."""
    return not is_double(x) and avx512.applies(w, x.type)


def split(w: FunctionWriter, x: Value) -> tuple[Value, Value]:
    """(k, m - 1); for special x, what `corrected` makes the right logarithm of."""
    if not _has_instructions(w, x):
        return split_exponent(w, x)
    k, m = avx512.exponent_and_mantissa(w, x)
    return k, w.fsub(m, w.constant(1.0, x.type))


def corrected(w: FunctionWriter, x: Value, value: Value) -> Value:
    """`special_logarithm` where `split` hasn't seen to it."""
    return value if _has_instructions(w, x) else special_logarithm(w, x, value)


def log(w: FunctionWriter, x: Value) -> Value:
    """Natural logarithm."""
    return corrected(w, x, _finite_log(w, *split(w, x)))


def _other_base(
    w: FunctionWriter, x: Value, factor: tuple[float, float], unit: tuple[float, float]
) -> Value:
    """factor * log(m) + k * unit, both given as two numbers; f enters unrounded."""
    type = x.type
    k, f = split_exponent(w, x)
    tail = log1p_reduced(w, f)
    product, product_error = two_product(w, f, w.constant(factor[0], type))
    lead, lead_error = fast_two_sum(w, w.fmul(k, w.constant(unit[0], type)), product)
    rest = w.fma(f, w.constant(factor[1], type), w.fmul(k, w.constant(unit[1], type)))
    rest = w.fadd(rest, w.fadd(product_error, lead_error))
    rest = w.fma(tail, w.constant(factor[0], type), rest)
    return special_logarithm(w, x, w.fadd(lead, rest))


@outlined
def log2(w: FunctionWriter, x: Value) -> Value:
    """Logarithm to base 2; exact for powers of 2."""
    return _other_base(w, x, _LOG2_E[x.type.element], (1.0, 0.0))


@outlined
def log10(w: FunctionWriter, x: Value) -> Value:
    """Logarithm to base 10; exact for powers of 10."""
    return _other_base(w, x, _LOG10_E[x.type.element], _LOG10_2[x.type.element])


def _log1p_corrected(w: FunctionWriter, x: Value) -> Value:
    """log(1 + x): log(u) for u = 1 + x rounded, corrected by the rounding error."""
    type, one = x.type, w.constant(1.0, x.type)
    u = w.fadd(one, x)
    lost_small = w.fsub(x, w.fsub(u, one))
    lost_large = w.fsub(one, w.fsub(u, x))
    lost = w.select(w.fcmp("oge", x, one), lost_large, lost_small)
    if _has_instructions(w, x):
        value = _log_of_sum(w, x, u, lost)
    else:
        k, f = split_exponent(w, u, subnormals=False)
        value = special_logarithm(w, u, _finite_log(w, k, f, w.fdiv(lost, u)))
        value = w.select(w.fcmp("olt", u, w.constant(math.inf, type)), value, u)
    tiny = w.fcmp("olt", w.fabs(x), w.constant(2.0 ** -(mantissa_bits(type) + 2), type))
    return w.select(tiny, x, value)


def _log_of_sum(w: FunctionWriter, x: Value, u: Value, lost: Value) -> Value:
    """log(u + lost) for u + lost = 1 + x.

    Where k is 0, f is x.  Else d = lost / 2**k is too small for more than three terms of the series
    of d / (1 + f), and the result is above 1/4.
    """
    type = x.type
    zero, infinity = w.constant(0.0, type), w.constant(math.inf, type)
    k, f = split(w, u)
    f = w.select(w.fcmp("oeq", k, zero), x, f)
    is_finite = w.fcmp("olt", w.fabs(k), infinity)
    d = avx512.scalef(w, lost, w.fneg(k), w.and_(is_finite, w.fcmp("une", k, zero)))
    return _finite_log(w, k, f, w.fma(w.fma(f, f, w.fneg(f)), d, d))


@outlined
def log1p(w: FunctionWriter, x: Value) -> Value:
    """log(1 + x)"""
    value = _log1p_corrected(w, x)
    return w.select(w.fcmp("olt", x, w.constant(-1.0, x.type)), w.constant(math.nan, x.type), value)


@outlined
@widened
def asinh(w: FunctionWriter, x: Value) -> Value:
    """Inverse hyperbolic sine: log1p(y + y**2 / (1 + sqrt(1 + y**2))) for y = |x|."""
    type, one = x.type, w.constant(1.0, x.type)
    y = w.fabs(x)
    huge = w.fcmp("ogt", y, w.constant(2.0**53, type))
    square = w.fmul(y, y)
    ratio = w.fdiv(square, w.fadd(one, w.sqrt(w.fadd(one, square))))
    argument = w.select(huge, y, w.fadd(y, ratio))
    value = _log1p_corrected(w, argument)
    ln2 = w.select(huge, w.constant(math.log(2.0), type), w.constant(0.0, type))
    return w.copysign(w.fadd(value, ln2), x)


@outlined
@widened
def acosh(w: FunctionWriter, x: Value) -> Value:
    """Inverse hyperbolic cosine: log1p(t + sqrt(2 t + t**2)) for t = x - 1."""
    type, one = x.type, w.constant(1.0, x.type)
    huge = w.fcmp("ogt", x, w.constant(2.0**53, type))
    t = w.fsub(x, one)
    root = w.sqrt(w.fma(t, t, w.fadd(t, t)))
    value = _log1p_corrected(w, w.select(huge, x, w.fadd(t, root)))
    ln2 = w.select(huge, w.constant(math.log(2.0), type), w.constant(0.0, type))
    value = w.fadd(value, ln2)
    return w.select(w.fcmp("ult", x, one), w.constant(math.nan, type), value)


@outlined
def atanh(w: FunctionWriter, x: Value) -> Value:
    """Inverse hyperbolic tangent: log1p(2 y / (1 - y)) / 2 for y = |x|; in float a polynomial up to
    1/2, above which 1 - y is exact.
    """
    type, one = x.type, w.constant(1.0, x.type)
    y = w.fabs(x)
    ratio = w.fdiv(w.fadd(y, y), w.fsub(one, y))
    value = w.fmul(_log1p_corrected(w, ratio), w.constant(0.5, type))
    value = w.copysign(w.select(w.fcmp("ugt", y, one), w.constant(math.nan, type), value), x)
    if not is_double(x):
        z = w.fmul(x, x)
        below = w.fma(w.fmul(z, x), polynomial(w, z, _ATANH_FLOAT), x)
        value = w.select(w.fcmp("olt", y, w.constant(0.5, type)), below, value)
    # Halving would round subnormals twice; there the function equals its argument.
    return w.select(w.fcmp("olt", y, w.constant(2.0**-28, type)), x, value)
