"""asin, acos, atan, atan2 over vectors of double; float goes through double and rounds once.

atan: y = |x| is mapped to |t| <= tan(pi / 8) by t = y, (y - 1) / (y + 1) or -1 / y with one
division; atan y = offset + t + t**3 A(t**2). asin: directly for |x| <= 1/2, else pi / 2 - 2
asin(sqrt((1 - x) / 2)), which keeps relative accuracy of acos near 1. Constants are two doubles
where a sum would lose bits. Coefficients: Chebyshev interpolation with 50 digits.
"""

from __future__ import annotations

import math

from pyfuser.devices.cpu.llvm_writer import FunctionWriter, LLVMType, Value
from pyfuser.devices.cpu.vector_math.common import outlined, polynomial, widened

_HALF_PI = (1.5707963267948966, 6.123233995736766e-17)
_QUARTER_PI = (0.7853981633974483, 3.061616997868383e-17)
_PI = (3.141592653589793, 1.2246467991473532e-16)
_A = (
    -0.3333333333333333,
    0.1999999999999548,
    -0.14285714284657894,
    0.11111111014561013,
    -0.09090904549884611,
    0.07692182535116648,
    -0.06664502215671447,
    0.058580687568615106,
    -0.05085030492810941,
    0.03921955253255129,
    -0.019162068915902573,
)
_ASIN = (
    0.16666666666666669,
    0.07499999999998425,
    0.04464285714637338,
    0.030381944137085216,
    0.022372173002005596,
    0.017352391265909227,
    0.013971235301124539,
    0.011478952690257387,
    0.010324318288744113,
    0.00545087818772055,
    0.017419357964884856,
    -0.014881409392818066,
    0.02877844261259304,
)


def _atan_ratio(w: FunctionWriter, y: Value, x: Value, left: Value | None = None) -> Value:
    """atan(y / x) for y, x >= 0, not both zero or both infinite; pi minus that in lanes `left`."""
    type = y.type
    steep = w.fcmp("ogt", y, w.fmul(x, w.constant(1.0 + math.sqrt(2.0), type)))
    middle = w.fcmp("ogt", y, w.fmul(x, w.constant(math.sqrt(2.0) - 1.0, type)))
    numerator = w.select(steep, w.fneg(x), w.select(middle, w.fsub(y, x), y))
    denominator = w.select(steep, y, w.select(middle, w.fadd(y, x), x))
    t = w.fdiv(numerator, denominator)
    offset = [_pick(w, steep, middle, (_HALF_PI[i], _QUARTER_PI[i], 0.0), type) for i in (0, 1)]
    if left is not None:
        t = w.select(left, w.fneg(t), t)
        for i in (0, 1):
            from_pi = (_PI[i] - _HALF_PI[i], _PI[i] - _QUARTER_PI[i], _PI[i])
            mirrored = _pick(w, steep, middle, from_pi, type)
            offset[i] = w.select(left, mirrored, offset[i])
    z = w.fmul(t, t)
    cube = w.fmul(w.fmul(z, t), polynomial(w, z, _A))
    return w.fadd(offset[0], w.fadd(t, w.fadd(cube, offset[1])))


def _pick(
    w: FunctionWriter,
    first: Value,
    second: Value,
    numbers: tuple[float, float, float],
    type: LLVMType,
) -> Value:
    """numbers[0] where first, else numbers[1] where second, else numbers[2]."""
    a, b, c = (w.constant(number, type) for number in numbers)
    return w.select(first, a, w.select(second, b, c))


@outlined
@widened
def atan(w: FunctionWriter, x: Value) -> Value:
    """Arc tangent, in radians."""
    value = _atan_ratio(w, w.fabs(x), w.constant(1.0, x.type))
    return w.copysign(value, x)


@outlined
@widened
def atan2(w: FunctionWriter, y: Value, x: Value) -> Value:
    """The angle of the point (x, y), in radians."""
    type = x.type
    zero, one, infinity = (w.constant(number, type) for number in (0.0, 1.0, math.inf))
    a, b = w.fabs(y), w.fabs(x)
    both_infinite = w.and_(w.fcmp("oeq", a, infinity), w.fcmp("oeq", b, infinity))
    both_zero = w.and_(w.fcmp("oeq", a, zero), w.fcmp("oeq", b, zero))
    a = w.select(both_infinite, one, a)
    b = w.select(w.or_(both_infinite, both_zero), one, b)
    # Scaling both down keeps the sum below from overflowing; tiny ones are scaled up.
    large = w.fcmp("ogt", w.fmax_number(a, b), w.constant(2.0**1000, type))
    scale = w.select(large, w.constant(2.0**-100, type), w.constant(1.0, type))
    small = w.fcmp("olt", w.fmax_number(a, b), w.constant(2.0**-900, type))
    scale = w.select(small, w.constant(2.0**120, type), scale)
    bits = w.bitcast(x, type.as_integer)
    left = w.icmp("slt", bits, w.constant(0, bits.type))
    angle = _atan_ratio(w, w.fmul(a, scale), w.fmul(b, scale), left)
    value = w.copysign(angle, y)
    return w.select(w.fcmp("uno", x, y), w.fadd(x, y), value)


def _asin_parts(w: FunctionWriter, x: Value) -> tuple[Value, Value, Value, Value]:
    """(|x| <= 1/2, s, tail, |x|) with asin s = s + tail for s = |x| or sqrt((1 - |x|) / 2)."""
    type = x.type
    half = w.constant(0.5, type)
    y = w.fabs(x)
    small = w.fcmp("ole", y, half)
    folded = w.fmul(w.fsub(w.constant(1.0, type), y), half)  # exact for y > 1/2
    z = w.select(small, w.fmul(y, y), folded)
    s = w.select(small, y, w.sqrt(folded))
    return small, s, w.fmul(w.fmul(z, s), polynomial(w, z, _ASIN)), y


@outlined
@widened
def asin(w: FunctionWriter, x: Value) -> Value:
    """Arc sine, in radians; NaN outside [-1, 1]."""
    small, s, tail, _ = _asin_parts(w, x)
    direct = w.fadd(s, tail)
    high, low = (w.constant(part, x.type) for part in _HALF_PI)
    folded = w.fsub(high, w.fsub(w.fadd(direct, direct), low))
    return w.copysign(w.select(small, direct, folded), x)


@outlined
@widened
def acos(w: FunctionWriter, x: Value) -> Value:
    """Arc cosine, in radians; NaN outside [-1, 1]."""
    type = x.type
    small, s, tail, _ = _asin_parts(w, x)
    direct = w.fadd(s, tail)
    positive = w.fcmp("ogt", x, w.constant(0.0, type))
    signed = w.copysign(direct, x)
    half_high, half_low = (w.constant(part, type) for part in _HALF_PI)
    middle = w.fsub(half_high, w.fsub(signed, half_low))
    doubled = w.fadd(direct, direct)
    high, low = (w.constant(part, type) for part in _PI)
    left = w.fsub(high, w.fsub(doubled, low))
    return w.select(small, middle, w.select(positive, doubled, left))
