"""asin, acos, atan, atan2 over vectors of float or double.

atan: y = |x| is mapped to |t| <= tan(pi / 8) by t = y, (y - 1) / (y + 1) or -1 / y with one
division; atan y = offset + t + t**3 A(t**2). asin: directly for |x| <= 1/2, else pi / 2 - 2
asin(sqrt((1 - x) / 2)), which keeps relative accuracy of acos near 1. Constants are two numbers
where a sum would lose bits. Coefficients: Chebyshev interpolation (double) and Remez fits (float),
made with 50 and 40 digits.
"""

from __future__ import annotations

import math

from pyfuser.devices.cpu.llvm_writer import FunctionWriter, LLVMType, Value
from pyfuser.devices.cpu.vector_math.common import is_double, outlined, polynomial

# pi and its rest.
_PI = {
    "float": (3.1415927410125732, -8.742277657347586e-08),
    "double": (3.141592653589793, 1.2246467991473532e-16),
}
_A_FLOAT = (
    -0.33333325386047363,
    0.19998908042907715,
    -0.14250627160072327,
    0.10640302300453186,
    -0.06184781715273857,
)
_A_DOUBLE = (
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
_ASIN_FLOAT = (
    0.16666725277900696,
    0.0749620795249939,
    0.045372284948825836,
    0.02460993081331253,
    0.0415019765496254,
)
_ASIN_DOUBLE = (
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
# Where atan2 scales its operands: those above the first, down by the second; those below the third,
# up by the fourth.
_SCALES = {
    "float": (2.0**120, 2.0**-20, 2.0**-100, 2.0**40),
    "double": (2.0**1000, 2.0**-100, 2.0**-900, 2.0**120),
}


def _parts_of_pi(type: LLVMType, fraction: float = 1.0) -> tuple[float, float]:
    """A power of 2 of pi as two numbers."""
    high, low = _PI[type.element]
    return high * fraction, low * fraction


def _atan_ratio(w: FunctionWriter, y: Value, x: Value, left: Value | None = None) -> Value:
    """atan(y / x) for y, x >= 0, not both zero or both infinite; pi minus that in lanes `left`."""
    type = y.type
    steep = w.fcmp("ogt", y, w.fmul(x, w.constant(1.0 + math.sqrt(2.0), type)))
    middle = w.fcmp("ogt", y, w.fmul(x, w.constant(math.sqrt(2.0) - 1.0, type)))
    numerator = w.select(steep, w.fneg(x), w.select(middle, w.fsub(y, x), y))
    denominator = w.select(steep, y, w.select(middle, w.fadd(y, x), x))
    t = w.fdiv(numerator, denominator)
    pi, half, quarter = (_parts_of_pi(type, fraction) for fraction in (1.0, 0.5, 0.25))
    offset = [_pick(w, steep, middle, (half[i], quarter[i], 0.0), type) for i in (0, 1)]
    if left is not None:
        t = w.select(left, w.fneg(t), t)
        for i in (0, 1):
            from_pi = (half[i], 3 * quarter[i], pi[i])
            mirrored = _pick(w, steep, middle, from_pi, type)
            offset[i] = w.select(left, mirrored, offset[i])
    z = w.fmul(t, t)
    cube = w.fmul(w.fmul(z, t), polynomial(w, z, _A_DOUBLE if is_double(t) else _A_FLOAT))
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
def atan(w: FunctionWriter, x: Value) -> Value:
    """Arc tangent, in radians."""
    value = _atan_ratio(w, w.fabs(x), w.constant(1.0, x.type))
    return w.copysign(value, x)


@outlined
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
    most, down, least, up = (w.constant(number, type) for number in _SCALES[type.element])
    large = w.fcmp("ogt", w.fmax_number(a, b), most)
    scale = w.select(large, down, w.constant(1.0, type))
    small = w.fcmp("olt", w.fmax_number(a, b), least)
    scale = w.select(small, up, scale)
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
    coefficients = _ASIN_DOUBLE if is_double(x) else _ASIN_FLOAT
    return small, s, w.fmul(w.fmul(z, s), polynomial(w, z, coefficients)), y


@outlined
def asin(w: FunctionWriter, x: Value) -> Value:
    """Arc sine, in radians; NaN outside [-1, 1]."""
    small, s, tail, _ = _asin_parts(w, x)
    high, low = (w.constant(part, x.type) for part in _parts_of_pi(x.type, 0.5))
    folded = w.fsub(w.fsub(high, w.fadd(s, s)), w.fsub(w.fadd(tail, tail), low))
    return w.copysign(w.select(small, w.fadd(s, tail), folded), x)


@outlined
def acos(w: FunctionWriter, x: Value) -> Value:
    """Arc cosine, in radians; NaN outside [-1, 1]."""
    type = x.type
    small, s, tail, _ = _asin_parts(w, x)
    direct = w.fadd(s, tail)
    positive = w.fcmp("ogt", x, w.constant(0.0, type))
    signed = w.copysign(direct, x)
    half_high, half_low = (w.constant(part, type) for part in _parts_of_pi(type, 0.5))
    middle = w.fsub(half_high, w.fsub(signed, half_low))
    doubled = w.fadd(direct, direct)
    high, low = (w.constant(part, type) for part in _parts_of_pi(type))
    left = w.fsub(high, w.fsub(doubled, low))
    return w.select(small, middle, w.select(positive, doubled, left))
