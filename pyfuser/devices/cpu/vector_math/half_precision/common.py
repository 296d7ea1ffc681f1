"""2**t in a few instructions, the core of the half-precision routines.

t = n + f with n = floor(t) and 0 <= f < 1, and 2**f is a polynomial of degree 3 or 4. With AVX-512,
two instructions give f and multiply by 2**n, and infinities need no care. Otherwise t is clamped.
Coefficients: Remez fits with the relative error as weight, made by
tests/devices/cpu/half_precision_fits.py.
"""

from __future__ import annotations

from pyfuser.devices.cpu.llvm_writer import FLOAT, FunctionWriter, Value
from pyfuser.devices.cpu.vector_math.common import (
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
_TO_FLOOR, _TO_NEAREST = 0x9, 0x8  # rounding modes of `reduce`, without floating-point exceptions


def tier(bits: int) -> int:
    """The smallest tier that has these bits."""
    return next(t for t in TIERS if bits <= t)


def has_instructions(w: FunctionWriter, x: Value) -> bool:
    """True if AVX-512's `reduce` and `scalef` apply to a vector."""
    return w.has_avx512 and x.type.lanes == 16


def exp2_of(w: FunctionWriter, bits: int, t: Value) -> Value:
    """2**t; overflows for t within 2**-12 of 128, too."""
    type, coefficients = t.type, EXP2[tier(bits)]
    if has_instructions(w, t):
        return scalef(w, polynomial(w, _reduce(w, t, _TO_FLOOR), coefficients), t)
    low, high = w.constant(-152.0, type), w.constant(129.0, type)
    t = w.fmax_number(low, w.fmin_number(high, t))
    shift = w.constant(rounding_shift(type)[0], type)
    shifted = w.fadd(w.fsub(t, w.constant(0.5, type)), shift)
    fraction = w.fsub(t, w.fsub(shifted, shift))
    return scale_by_power(w, polynomial(w, fraction, coefficients), shifted)


def nearest_fraction(w: FunctionWriter, t: Value) -> Value:
    """t minus the nearest integer with AVX-512; 0 for infinities."""
    return _reduce(w, t, _TO_NEAREST)


def scalef(w: FunctionWriter, x: Value, t: Value) -> Value:
    """x * 2**floor(t) with AVX-512: rounded once, and t may be infinite."""
    return _avx512(w, "scalef", f"{x.typed}, {t.typed}", f"{x.type}, {t.type}")


def _reduce(w: FunctionWriter, t: Value, mode: int) -> Value:
    """t minus the integer that the mode rounds it to; 0 for infinities."""
    return _avx512(w, "reduce", f"{t.typed}, i32 {mode}", f"{t.type}, i32 immarg")


def _avx512(w: FunctionWriter, name: str, operands: str, types: str) -> Value:
    type = "<16 x float>"
    function = f"llvm.x86.avx512.mask.{name}.ps.512"
    declaration = f"declare {type} @{function}({types}, {type}, i16, i32 immarg)"
    w.declarations.setdefault(function, declaration)
    rest = f"{type} zeroinitializer, i16 -1, i32 4"  # no mask; the current rounding mode
    return w.pure(FLOAT.with_lanes(16), f"call {type} @{function}({operands}, {rest})")
