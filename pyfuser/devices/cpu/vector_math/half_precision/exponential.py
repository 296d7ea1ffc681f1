"""exp, exp2, expm1, sigmoid, silu, tanh and 1 + tanh for results rounded to half precision.

Everything is 2**t with t a multiple of x, whose rounding is 2**-17 of the result at most. Where a
result may be near 0, 2**t - 1 is computed: t = n + f with |f| <= 1/2, (2**f - 1) / f is a
polynomial, and 2**n - 1 is exact where it matters. 1 + tanh(x) = 1 / (1/2 + e**(-2x) / 2) doesn't
cancel, as adding 1 to tanh(x) does for negative x.
Coefficients: as in `common`.
"""

from __future__ import annotations

import math

from pyfuser.devices.cpu.llvm_writer import FunctionWriter, Value
from pyfuser.devices.cpu.vector_math import avx512
from pyfuser.devices.cpu.vector_math.common import (
    mantissa_bits,
    polynomial,
    power_of_two,
    rounding_shift,
)
from pyfuser.devices.cpu.vector_math.half_precision.common import (
    LOWEST_NORMAL,
    exp2_of,
    inverted,
    tier,
)

_LOG2_E = math.log2(math.e)
# (2**f - 1) / f for |f| <= 1/2.
EXPM1 = {
    12: (0.6931368708610535, 0.24023252725601196, 0.05583729222416878, 0.009618112817406654),
    16: (
        0.6931471228599548,
        0.24022351205348969,
        0.05550500378012657,
        0.009666245430707932,
        0.0013333543902263045,
    ),
}


def exp(w: FunctionWriter, bits: int, x: Value) -> Value:
    """e**x"""
    return exp2_of(w, bits, w.fmul(x, w.constant(_LOG2_E, x.type)))


def exp2(w: FunctionWriter, bits: int, x: Value) -> Value:
    """2**x"""
    return exp2_of(w, bits, x)


def sigmoid(w: FunctionWriter, bits: int, x: Value) -> Value:
    """1 / (1 + e**-x); 0 below -88, as in `vector_math`."""
    one = w.constant(1.0, x.type)
    power = exp2_of(w, bits, w.fmul(x, w.constant(-_LOG2_E, x.type)), LOWEST_NORMAL)
    return inverted(w, bits, w.fadd(power, one))


def silu(w: FunctionWriter, bits: int, x: Value) -> Value:
    """x / (1 + e**-x); NaN for -infinity, as in torch."""
    return w.fmul(x, sigmoid(w, bits, x))


def one_plus_tanh(w: FunctionWriter, bits: int, x: Value) -> Value:
    """1 + tanh(x), with a small relative error for negative x, too."""
    half = w.constant(0.5, x.type)
    power = exp2_of(w, bits, w.fmul(x, w.constant(-2 * _LOG2_E, x.type)), LOWEST_NORMAL)
    return inverted(w, bits, w.fma(power, half, half))


def expm1(w: FunctionWriter, bits: int, x: Value) -> Value:
    """e**x - 1"""
    type = x.type
    # Half of 2**n is finite up to the overflow; the doubling at the end is exact.
    t = w.fmul(x, w.constant(_LOG2_E, type))
    half = _exp2_minus_one(w, bits, w.fmin_number(w.constant(128.5, type), t), 1)
    return _small_is_itself(w, x, w.fadd(half, half))


def tanh(w: FunctionWriter, bits: int, x: Value) -> Value:
    """Hyperbolic tangent: m / (m + 2) for m = e**(2x) - 1."""
    type = x.type
    t = w.fmul(x, w.constant(2 * _LOG2_E, type))
    numerator = _exp2_minus_one(w, bits, w.fmin_number(w.constant(64.0, type), t), 0)
    ratio = w.fmul(numerator, inverted(w, bits, w.fadd(numerator, w.constant(2.0, type))))
    return _small_is_itself(w, x, ratio)


def _small_is_itself(w: FunctionWriter, x: Value, value: Value) -> Value:
    """x where it is so small that `value` would have no bits, or the wrong sign of 0."""
    small = w.fcmp("olt", w.fabs(x), w.constant(2.0**-20, x.type))
    return w.select(small, x, value)


def _exp2_minus_one(w: FunctionWriter, bits: int, t: Value, halvings: int) -> Value:
    """(2**t - 1) / 2**halvings, to a small relative error, for t <= 127.5 + halvings."""
    type = t.type
    if avx512.applies(w, type):
        fraction = avx512.from_nearest(w, t)
        n = w.fsub(t, fraction)
        power = avx512.scalef(w, w.constant(0.5**halvings, type), n)
    else:
        t = w.fmax_number(w.constant(-64.0, type), t)
        shift = w.constant(rounding_shift(type)[0], type)
        shifted = w.fadd(t, shift)
        fraction = w.fsub(t, w.fsub(shifted, shift))
        integer = w.bitcast(shifted, type.as_integer)
        integer = w.sub(integer, w.constant(halvings, integer.type))
        power = power_of_two(w, integer, type, mantissa_bits(type))
    rest = w.fsub(power, w.constant(0.5**halvings, type))
    return w.fma(w.fmul(power, fraction), polynomial(w, fraction, EXPM1[tier(bits)]), rest)
