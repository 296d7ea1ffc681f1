"""2**t in a few instructions, the core of the half-precision routines.

t = n + f with n = floor(t) and 0 <= f < 1, and 2**f is a polynomial of degree 3 or 4. With AVX-512,
two instructions give f and multiply by 2**n, and infinities need no care. Otherwise t is clamped.
Coefficients: Remez fits with the relative error as weight, made by
tests/devices/cpu/half_precision_fits.py.
"""

from __future__ import annotations

from pyfuser.devices.cpu.llvm_writer import FunctionWriter, Value
from pyfuser.devices.cpu.vector_math import avx512
from pyfuser.devices.cpu.vector_math.common import (
    before_underflow,
    polynomial,
    rounding_shift,
    scale_by_power,
)

# The relative errors are below 2**-12 for up to 12 bits, and below 2**-16 for up to 16.
TIERS = (12, 16)
EXP2 = {
    12: (0.9999251961708069, 0.6958335041999817, 0.2260671705007553, 0.07802451401948929),
    16: (
        1.0000026226043701,
        0.6930038332939148,
        0.2414427548646927,
        0.052011460065841675,
        0.01353416871279478,
    ),
}
LOWEST = -151.0  # 2**t is 0 below, rounded to float
LOWEST_NORMAL = -126.0


def tier(bits: int) -> int:
    """The smallest tier that has these bits."""
    return next(t for t in TIERS if bits <= t)


def inverted(w: FunctionWriter, bits: int, x: Value) -> Value:
    """1 / x for x >= 2**-126.

    Measured on a processor with AVX-512, where a division of a vector takes as long as ten
    multiplications: see `avx512.reciprocal`, whose 14 bits are enough for bfloat16.
    """
    if tier(bits) == TIERS[0] and avx512.applies(w, x.type):
        return avx512.reciprocal(w, x)
    return w.fdiv(w.constant(1.0, x.type), x)


def exp2_of(w: FunctionWriter, bits: int, t: Value, lowest: float = LOWEST) -> Value:
    """2**t, 0 below `lowest`; overflows for t within 2**-12 of 128, too."""
    type, coefficients = t.type, EXP2[tier(bits)]
    t, kept = before_underflow(w, t, lowest)
    if avx512.applies(w, type):
        value = polynomial(w, avx512.above_floor(w, t), coefficients)
        return avx512.scalef(w, value, t, kept)
    t = w.fmin_number(w.constant(129.0, type), t)
    shift = w.constant(rounding_shift(type)[0], type)
    shifted = w.fadd(w.fsub(t, w.constant(0.5, type)), shift)
    fraction = w.fsub(t, w.fsub(shifted, shift))
    return scale_by_power(w, polynomial(w, fraction, coefficients), shifted)
