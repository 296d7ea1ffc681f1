"""pow over vectors of float or double.

|a|**b = e**(b log|a|) with the logarithm as an unevaluated sum of two doubles: a = 2**k m,
s = (m - 1) / (m + 1), log m = 2 s + s**3 (2/3 + s**2 L(s**2)), where only L is a plain double, so
that the product with b (at most 745) keeps the last place.  Coefficients: Chebyshev interpolation
with 50 digits.
Float is computed in one double, with as many terms as its product with b (at most 128) and its
last place need, and rounded once: log m = 2 s + s**3 P(s**2) to 2**-37, e**r = 1 + r + r**2 Q(r) to
2**-34.  Coefficients: Remez fits with 50 digits.
Special cases are those of C's pow.
"""

from __future__ import annotations

import math

from pyfuser.devices.cpu.llvm_writer import FunctionWriter, Value
from pyfuser.devices.cpu.vector_math.common import (
    fast_two_sum,
    is_double,
    mantissa_bits,
    outlined,
    polynomial,
    power_of_two,
    scale_by_power,
    two_product,
    two_sum,
)
from pyfuser.devices.cpu.vector_math.exponential import expm1_reduced, reduce_exponent
from pyfuser.devices.cpu.vector_math.logarithm import split_exponent

_LN2 = (0.6931471805601177, -1.7239444525614835e-13)
_TWO_THIRDS = (0.6666666666666666, 3.700743415417188e-17)
_L = (
    0.4,
    0.28571428571429425,
    0.2222222222162076,
    0.18181818343316125,
    0.1538459412012637,
    0.13334850282547114,
    0.11705021567538627,
    0.11735818855512968,
)
_P_FLOAT = (0.6666666564545537, 0.4000033519108837, 0.2853730853028031, 0.23582151505260393)
_Q_FLOAT = (
    0.5000000078324894,
    0.1666666686175757,
    0.04166626851017138,
    0.008333264103169343,
    0.001394617652343302,
    0.0001991852619909337,
)
# Beyond these e**x isn't a finite or normal or subnormal float.
_FLOAT_RANGE = 200.0


def _log_pair(w: FunctionWriter, a: Value) -> tuple[Value, Value]:
    """log(a) for positive finite a as a sum of two doubles, to about 2**-64 relative."""
    type = a.type
    two = w.constant(2.0, type)
    k, f = split_exponent(w, a)
    # s = f / (2 + f) as a pair: the quotient, and its remainder over the divisor.
    divisor, divisor_error = fast_two_sum(w, two, f)
    s = w.fdiv(f, divisor)
    product, product_error = two_product(w, s, divisor)
    rest = w.fsub(w.fsub(w.fsub(f, product), product_error), w.fmul(s, divisor_error))
    s_error = w.fdiv(rest, divisor)
    z, z_error = two_product(w, s, s)
    z_error = w.fma(w.fadd(s, s), s_error, z_error)
    # c = 2/3 + z L(z)
    c, c_error = fast_two_sum(w, w.constant(_TWO_THIRDS[0], type), w.fmul(z, polynomial(w, z, _L)))
    c_error = w.fadd(c_error, w.constant(_TWO_THIRDS[1], type))
    cube, cube_error = two_product(w, z, s)
    cube_error = w.fadd(cube_error, w.fma(z, s_error, w.fmul(z_error, s)))
    t, t_error = two_product(w, cube, c)
    t_error = w.fadd(t_error, w.fma(cube, c_error, w.fmul(cube_error, c)))
    # k ln 2 + 2 s + t, largest first
    ln2_high = w.fmul(k, w.constant(_LN2[0], type))
    doubled = w.fmul(two, s)
    total, error = two_sum(w, ln2_high, doubled)
    total, second_error = two_sum(w, total, t)
    low = w.fadd(t_error, w.fmul(two, s_error))
    low = w.fadd(low, w.fmul(k, w.constant(_LN2[1], type)))
    low = w.fadd(low, w.fadd(error, second_error))
    return fast_two_sum(w, total, low)


def _exp_pair(w: FunctionWriter, high: Value, low: Value) -> Value:
    """e**(high + low), saturating."""
    type = high.type
    limit = w.constant(800.0, type)
    outside = w.fcmp("ugt", w.fabs(high), limit)
    low = w.select(outside, w.constant(0.0, type), low)
    high = w.fmax_number(w.fneg(limit), w.fmin_number(limit, high))
    shifted, r = reduce_exponent(w, high)
    factor = w.fadd(w.constant(1.0, type), expm1_reduced(w, w.fadd(r, low)))
    return scale_by_power(w, factor, shifted)


def _power_of_magnitude(w: FunctionWriter, a: Value, b: Value) -> Value:
    """a ** b for positive finite a."""
    log_high, log_low = _log_pair(w, a)
    high, low = two_product(w, log_high, b)
    return _exp_pair(w, high, w.fma(log_low, b, low))


def _power_of_float_magnitude(w: FunctionWriter, a: Value, b: Value) -> Value:
    """a ** b of floats, given as doubles, for positive finite a; in float."""
    type = a.type
    k, f = split_exponent(w, a, subnormals=False)
    s = w.fdiv(f, w.fadd(f, w.constant(2.0, type)))
    z = w.fmul(s, s)
    log_m = w.fma(w.fmul(z, s), polynomial(w, z, _P_FLOAT), w.fadd(s, s))
    x = w.fmul(b, w.fma(k, w.constant(math.log(2.0), type), log_m))
    limit = w.constant(_FLOAT_RANGE, type)
    x = w.fmax_number(w.fneg(limit), w.fmin_number(limit, x))
    shifted, r = reduce_exponent(w, x)
    square = w.fmul(r, r)
    value = w.fma(square, polynomial(w, r, _Q_FLOAT), w.fadd(r, w.constant(1.0, type)))
    bits = w.bitcast(shifted, type.as_integer)
    return w.fptrunc(w.fmul(value, power_of_two(w, bits, type, mantissa_bits(type))), "float")


def _with_special_cases(w: FunctionWriter, a: Value, b: Value, magnitude: Value) -> Value:
    """C's pow from |a| ** b of finite operands."""
    type = a.type
    zero, one, infinity = (w.constant(number, type) for number in (0.0, 1.0, math.inf))
    size = w.fabs(a)
    # An odd integer equals its truncation but its half doesn't; all large numbers are even.
    half = w.fmul(b, w.constant(0.5, type))
    is_integer = w.fcmp("oeq", w.ftrunc(b), b)
    is_odd = w.and_(is_integer, w.fcmp("une", w.ftrunc(half), half))
    negative = w.fcmp("olt", a, zero)
    undefined = w.and_(negative, w.not_(is_integer))
    undefined = w.and_(undefined, w.fcmp("une", size, infinity))
    value = w.select(undefined, w.constant(math.nan, type), magnitude)
    # Zero and infinity: which of the two the result is depends on the sign of b.
    b_negative = w.fcmp("olt", b, zero)
    of_zero = w.select(b_negative, infinity, zero)
    of_infinity = w.select(b_negative, zero, infinity)
    value = w.select(w.fcmp("oeq", size, zero), of_zero, value)
    value = w.select(w.fcmp("oeq", size, infinity), of_infinity, value)
    value = w.select(is_odd, w.copysign(value, a), value)
    # b infinite: |a| against 1.
    grows = w.xor(w.fcmp("olt", size, one), w.fcmp("ogt", b, zero))
    at_infinity = w.select(grows, infinity, zero)
    at_infinity = w.select(w.fcmp("oeq", size, one), one, at_infinity)
    value = w.select(w.fcmp("oeq", w.fabs(b), infinity), at_infinity, value)
    value = w.select(w.fcmp("uno", a, b), w.fadd(a, b), value)
    is_one = w.or_(w.fcmp("oeq", a, one), w.fcmp("oeq", b, zero))
    return w.select(is_one, one, value)


def pow(w: FunctionWriter, a: Value, b: Value) -> Value:
    """a to the power b, with C's special cases; products for the literal exponents 1, 2, 3, -1."""
    if b.name == w.constant(1.0, b.type).name:
        return a
    if b.name == w.constant(2.0, b.type).name:
        return w.fmul(a, a)
    if b.name == w.constant(3.0, b.type).name:
        return w.fmul(w.fmul(a, a), a)
    if b.name == w.constant(-1.0, b.type).name:
        return w.fdiv(w.constant(1.0, a.type), a)
    return _power(w, a, b)


@outlined
def _power(w: FunctionWriter, a: Value, b: Value) -> Value:
    if is_double(a):
        return _with_special_cases(w, a, b, _power_of_magnitude(w, w.fabs(a), b))
    wide = [w.fpext(operand, "double") for operand in (w.fabs(a), b)]
    return _with_special_cases(w, a, b, _power_of_float_magnitude(w, *wide))
