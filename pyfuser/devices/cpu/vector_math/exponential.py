"""exp, exp2, expm1, tanh, sinh, cosh over vectors of float or double.

x = n ln 2 + r with |r| <= ln 2 / 2; ln 2 is two numbers, the first short enough that n times it is
exact (Cody and Waite).  e**r - 1 is r + r**2 q(r); 2**n goes into the exponent.  tanh is
expm1(2|x|) / (expm1(2|x|) + 2), which keeps relative accuracy at 0 and can't overflow.
Invariant: NaN stays NaN, and saturation comes from clamping the argument, not from branches.
Coefficients: Remez fits of (e**r - 1 - r) / r**2 made with 50 digits (float) and Chebyshev
interpolation of the same (double), rounded to the type.
"""

from __future__ import annotations

import math

from pyfuser.devices.cpu.llvm_writer import FunctionWriter, Value
from pyfuser.devices.cpu.vector_math import avx512
from pyfuser.devices.cpu.vector_math.common import (
    before_underflow,
    is_double,
    mantissa_bits,
    nearest_integer,
    outlined,
    polynomial,
    power_of_two,
    rounding_shift,
    scale_by_power,
)

_LOG2_E = math.log2(math.e)
# ln 2 = high + low; n * high is exact for the |n| < 2**11 that occur.
_LN2 = {
    "float": (0.693359375, -0.00021219444170128554),
    "double": (0.6931471805592082, 7.371002565167799e-13),
}
_Q_FLOAT = (
    0.5,
    0.1666654348373413,
    0.04166628047823906,
    0.00836661085486412,
    0.0013946505496278405,
)
_Q_DOUBLE = (
    0.5,
    0.1666666666666667,
    0.04166666666666667,
    0.008333333333326084,
    0.0013888888888883711,
    0.0001984126987500228,
    2.480158732567746e-05,
    2.755725517000089e-06,
    2.755727347871858e-07,
    2.5105312729622103e-08,
    2.09147553258932e-09,
)
# (tanh(y) - y) / y**3 over y**2, for float below 0.36.
_TANH_FLOAT = (-0.33333319425582886, 0.1333218514919281, -0.0536961667239666, 0.01929526776075363)
_TANH_SMALL = 0.36
# Beyond these exp is 0 or infinity, and exp2.
_EXP_RANGE = {"float": (-104.0, 89.0), "double": (-746.0, 710.0)}
_EXP2_RANGE = {"float": (-151.0, 129.0), "double": (-1076.0, 1025.0)}
# Between these 2**n is normal, or infinity.
_NORMAL_EXP_RANGE = {"float": (-87.0, 89.0), "double": (-708.0, 710.0)}
# e**x / 2 is infinite, and 2**n applied in two factors is in their range.
_OVERFLOWS = {"float": 100.0, "double": 800.0}
# sinh(x) = x + x**3 P(x**2) up to 1, with a relative error of 2**-34.
_SINH_FLOAT = (
    0.1666666716337204,
    0.008333349600434303,
    0.0001983615948120132,
    2.8169513370812638e-06,
)
# Beyond this expm1 is -1.
_EXPM1_LOW = {"float": -18.0, "double": -38.0}


def _clamp(w: FunctionWriter, x: Value, low: float, high: float) -> Value:
    """x kept in [low, high]; NaN stays NaN."""
    x = w.fmin_number(w.constant(high, x.type), x)
    return w.fmax_number(w.constant(low, x.type), x)


def reduce_exponent(w: FunctionWriter, x: Value) -> tuple[Value, Value]:
    """(n plus the rounding shift, r) with x = n ln 2 + r."""
    high, low = _LN2[x.type.element]
    shifted, n = nearest_integer(w, x, _LOG2_E)
    r = w.fma(n, w.constant(-high, x.type), x)
    return shifted, w.fma(n, w.constant(-low, x.type), r)


def expm1_reduced(w: FunctionWriter, r: Value) -> Value:
    """e**r - 1 for |r| <= ln 2 / 2."""
    q = polynomial(w, r, _Q_DOUBLE if is_double(r) else _Q_FLOAT)
    return w.fma(w.fmul(r, r), q, r)


def exp(w: FunctionWriter, x: Value) -> Value:
    """e**x"""
    low, high = _EXP_RANGE[x.type.element]
    x = w.fmin_number(w.constant(high, x.type), x)
    x, kept = before_underflow(w, x, low, math.log(2.0))
    shifted, r = reduce_exponent(w, x)
    return scale_by_power(w, w.fadd(expm1_reduced(w, r), w.constant(1.0, x.type)), shifted, kept)


def exp_beside_one(w: FunctionWriter, x: Value) -> Value:
    """e**x for 1 + e**x: tiny where it would be subnormal or 0; infinity above 2**127."""
    type = x.type
    shifted, r = reduce_exponent(w, _clamp(w, x, *_NORMAL_EXP_RANGE[type.element]))
    value = w.fadd(expm1_reduced(w, r), w.constant(1.0, type))
    if avx512.applies(w, type):
        return scale_by_power(w, value, shifted)
    bits = w.bitcast(shifted, type.as_integer)
    return w.fmul(value, power_of_two(w, bits, type, mantissa_bits(type)))


def exp2(w: FunctionWriter, x: Value) -> Value:
    """2**x; exact for integers."""
    low, high = _EXP2_RANGE[x.type.element]
    x, kept = before_underflow(w, w.fmin_number(w.constant(high, x.type), x), low)
    shift = w.constant(rounding_shift(x.type)[0], x.type)
    shifted = w.fadd(x, shift)
    r = w.fmul(w.fsub(x, w.fsub(shifted, shift)), w.constant(math.log(2.0), x.type))
    return scale_by_power(w, w.fadd(expm1_reduced(w, r), w.constant(1.0, x.type)), shifted, kept)


def _expm1_scaled(w: FunctionWriter, x: Value) -> Value:
    """e**x - 1 for x small enough that 2**n is finite, without the sign of a zero."""
    shifted, r = reduce_exponent(w, x)
    bits = w.bitcast(shifted, x.type.as_integer)
    power = power_of_two(w, bits, x.type, mantissa_bits(x.type))
    return w.fma(power, expm1_reduced(w, r), w.fsub(power, w.constant(1.0, x.type)))


@outlined
def expm1(w: FunctionWriter, x: Value) -> Value:
    """e**x - 1"""
    element = x.type.element
    clamped = _clamp(w, x, _EXPM1_LOW[element], _EXP_RANGE[element][1])
    shifted, r = reduce_exponent(w, clamped)
    # Half of 2**n is finite up to the overflow; the doubling at the end is exact.
    one = w.constant(1, x.type.as_integer)
    bits = w.sub(w.bitcast(shifted, x.type.as_integer), one)
    power = power_of_two(w, bits, x.type, mantissa_bits(x.type))
    half = w.fma(power, expm1_reduced(w, r), w.fsub(power, w.constant(0.5, x.type)))
    small = w.fcmp("olt", w.fabs(x), w.constant(2.0 ** -(mantissa_bits(x.type) + 2), x.type))
    return w.select(small, x, w.fadd(half, half))


def tanh(w: FunctionWriter, x: Value) -> Value:
    """Hyperbolic tangent."""
    limit = w.constant(20.0 if is_double(x) else 10.0, x.type)
    magnitude = w.fmin_number(limit, w.fabs(x))
    numerator = _expm1_scaled(w, w.fadd(magnitude, magnitude))
    ratio = w.fdiv(numerator, w.fadd(numerator, w.constant(2.0, x.type)))
    if not is_double(x):
        # The three roundings above are up to 2.5 ulp for small arguments.
        z = w.fmul(magnitude, magnitude)
        cube = w.fmul(w.fmul(z, magnitude), polynomial(w, z, _TANH_FLOAT))
        small = w.fcmp("olt", magnitude, w.constant(_TANH_SMALL, x.type))
        ratio = w.select(small, w.fadd(magnitude, cube), ratio)
    return w.copysign(ratio, x)


def _half_exp(w: FunctionWriter, y: Value) -> Value:
    """e**y / 2 for y >= 0; overflows only if the half does."""
    high = w.constant(_OVERFLOWS[y.type.element], y.type)
    shifted, r = reduce_exponent(w, w.fmin_number(high, y))
    factor = w.fadd(expm1_reduced(w, r), w.constant(1.0, y.type))
    return scale_by_power(w, factor, w.fsub(shifted, w.constant(1.0, y.type)))


@outlined
def cosh(w: FunctionWriter, x: Value) -> Value:
    """Hyperbolic cosine: h + 1 / (4 h) for h = e**|x| / 2."""
    half = _half_exp(w, w.fabs(x))
    return w.fadd(half, w.fdiv(w.constant(0.25, x.type), half))


@outlined
def sinh(w: FunctionWriter, x: Value) -> Value:
    """Hyperbolic sine.

    (m + m / (m + 1)) / 2 for m = e**|x| - 1, and e**|x| / 2 for large |x|; in float a polynomial up
    to 1, and h - 1 / (4 h) for h = e**|x| / 2 above.
    """
    type = x.type
    y = w.fabs(x)
    if not is_double(x):
        z, half = w.fmul(x, x), _half_exp(w, y)
        above = w.fsub(half, w.fdiv(w.constant(0.25, type), half))
        below = w.fma(w.fmul(z, x), polynomial(w, z, _SINH_FLOAT), x)
        value = w.select(w.fcmp("ogt", y, w.constant(1.0, type)), w.copysign(above, x), below)
        return w.select(w.fcmp("olt", y, w.constant(2.0**-14, type)), x, value)
    limit = w.constant(30.0, type)
    m = _expm1_scaled(w, w.fmin_number(limit, y))
    sum = w.fadd(m, w.fdiv(m, w.fadd(m, w.constant(1.0, type))))
    near = w.fmul(sum, w.constant(0.5, type))
    value = w.copysign(w.select(w.fcmp("ogt", y, limit), _half_exp(w, y), near), x)
    # Below this the function equals its argument; the halving would round subnormals.
    return w.select(w.fcmp("olt", y, w.constant(2.0**-28, type)), x, value)
