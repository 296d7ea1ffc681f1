"""sin and cos for results rounded to half precision.

x = n pi + r, or (n + 1/2) pi + r for the cosine, |r| <= pi / 2, with pi as three floats: up to
2**18, r has a small relative error, too. The result is +-r (1 + r**2 S(r**2)), so that a zero keeps
its sign. Larger arguments, and machines without fused multiply-adds, take the routine of
`vector_math`.
Coefficients: as in `common`.
"""

from __future__ import annotations

from collections.abc import Callable

from pyfuser.devices.cpu.llvm_writer import FunctionWriter, Value
from pyfuser.devices.cpu.vector_math.common import (
    nearest_integer,
    outlined,
    polynomial,
    rounding_shift,
)
from pyfuser.devices.cpu.vector_math.half_precision.common import TIERS, tier
from pyfuser.devices.cpu.vector_math.trigonometric import (
    cos_of_any,
    has_float_reduction,
    sin_of_any,
    with_large,
)

_ONE_OVER_PI = 0.31830987334251404
# The first two are less than pi, so that no product with n = 0 changes the sign of a zero.
_PI = (3.141592502593994, 1.5099578831723193e-07, 1.0780605906948477e-14)
# (sin(r) / r - 1) / r**2
SINE = {
    12: (-0.16611340641975403, 0.007646907586604357),
    16: (-0.1666581630706787, 0.008313718251883984, -0.00018523693142924458),
}


def _half_turns(w: FunctionWriter, x: Value, offset: float) -> tuple[Value, Value]:
    """(n as an integer, r) for x = (n + offset) pi + r."""
    type = x.type
    if offset:
        shift = w.constant(rounding_shift(type)[0], type)
        turns = w.fma(x, w.constant(_ONE_OVER_PI, type), w.constant(-offset, type))
        shifted = w.fadd(turns, shift)
        n = w.fadd(w.fsub(shifted, shift), w.constant(offset, type))
    else:
        shifted, n = nearest_integer(w, x, _ONE_OVER_PI)
    r = x
    for part in _PI:
        r = w.fma(n, w.constant(-part, type), r)
    return w.bitcast(shifted, type.as_integer), r


def _routine(
    bits: int, name: str, of_any: Callable[[FunctionWriter, Value], Value]
) -> Callable[[FunctionWriter, Value], Value]:
    is_cosine = name == "cos"

    def of_radians(w: FunctionWriter, x: Value) -> Value:
        n, r = _half_turns(w, x, 0.5 if is_cosine else 0.0)
        one = w.constant(1.0, x.type)
        z = w.fmul(r, r)
        value = w.fmul(r, w.fma(z, polynomial(w, z, SINE[bits]), one))
        if is_cosine:
            n = w.add(n, w.constant(1, n.type))
        sign = w.shl(n, w.constant(31, n.type))
        value = w.bitcast(w.xor(w.bitcast(value, n.type), sign), x.type)
        return with_large(w, x, value, of_any)

    of_radians.__name__ = f"{name}{bits}"
    return outlined(of_radians)


_SIN = {bits: _routine(bits, "sin", sin_of_any) for bits in TIERS}
_COS = {bits: _routine(bits, "cos", cos_of_any) for bits in TIERS}


def sin(w: FunctionWriter, bits: int, x: Value) -> Value:
    """Sine of radians."""
    return _SIN[tier(bits)](w, x) if has_float_reduction(w, x) else sin_of_any(w, x)


def cos(w: FunctionWriter, bits: int, x: Value) -> Value:
    """Cosine of radians."""
    return _COS[tier(bits)](w, x) if has_float_reduction(w, x) else cos_of_any(w, x)
