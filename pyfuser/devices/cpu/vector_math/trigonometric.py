"""sin, cos, tan over vectors of float or double.

x = n pi / 2 + r, |r| <= pi / 4, with pi / 2 in four parts of 30 bits so that n times a part is
exact for |n| < 2**22 (Cody and Waite); the differences are kept with their rounding errors. sin r
and cos r are polynomials in r**2, selected and signed by n's low bits.

float has shorter polynomials. Below 2**18 and with fused multiply-adds it reduces in float, where
x - n P, with P = pi / 2 rounded to float, is a multiple of 2**-24 below 1, and so exact. Otherwise
it reduces in double, where tan always stays. The rare arguments over 2**22 branch to the C library,
lane by lane. Coefficients: Chebyshev interpolation with 50 digits.
"""

from __future__ import annotations

from collections.abc import Callable

from pyfuser.devices.cpu.llvm_writer import FunctionWriter, Value
from pyfuser.devices.cpu.vector_math.common import (
    fast_two_sum,
    is_double,
    nearest_integer,
    outlined,
    polynomial,
    rare_branch,
)

_TWO_OVER_PI = 0.6366197723675814
_HALF_PI = (
    1.570796325802803,
    9.920935791635221e-10,
    5.17018297889025e-19,
    2.9038559739793605e-28,
)
# sin r = r + r**3 S(r**2), cos r = 1 - r**2 / 2 + r**4 C(r**2)
_S = (
    -0.16666666666666666,
    0.008333333333333331,
    -0.00019841269841264821,
    2.7557319219150783e-06,
    -2.5052106167335705e-08,
    1.6058521349954986e-10,
    -7.586094789672621e-13,
)
_C = (
    0.041666666666666664,
    -0.0013888888888888887,
    2.480158730158451e-05,
    -2.755731922129809e-07,
    2.0876755754879594e-09,
    -1.1470455178216906e-11,
    4.745537017319258e-14,
)
# The same for float: sin r = r + r**3 S(r**2), cos r = 1 + r**2 C(r**2).
_S_FLOAT = (
    -0.1666666716337204,
    0.008333329111337662,
    -0.00019839330343529582,
    2.7182745725440327e-06,
)
_C_FLOAT = (-0.5, 0.04166662320494652, -0.0013886759988963604, 2.4390043108724058e-05)
# pi / 2 as a number whose product with n is exact, and the rest.
_HALF_PI_PAIR = (1.5707963267341256, 6.077100506506192e-11)
_LARGEST = 2.0**22
# pi / 2 as three floats, for multiply-adds that round once, up to the second number.
_HALF_PI_FLOAT = (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15)
_LARGEST_IN_FLOAT = 2.0**18


def _reduce(w: FunctionWriter, x: Value) -> tuple[Value, Value, Value]:
    """(n as an integer, r, the rounding error of r)."""
    shifted, n = nearest_integer(w, x, _TWO_OVER_PI)
    first, second, third, last = (w.constant(-part, x.type) for part in _HALF_PI)
    a = w.fadd(x, w.fmul(n, first))  # exact
    b_part = w.fmul(n, second)
    b = w.fadd(a, b_part)
    b_error = w.fadd(w.fsub(a, b), b_part)
    c_part = w.fmul(n, third)
    c = w.fadd(b, c_part)
    c_error = w.fadd(w.fsub(b, c), c_part)
    error = w.fma(n, last, w.fadd(b_error, c_error))
    r, r_error = fast_two_sum(w, c, error)
    return w.bitcast(shifted, x.type.as_integer), r, r_error


def _sine_cosine(w: FunctionWriter, r: Value, r_error: Value) -> tuple[Value, Value]:
    """(sin, cos) of r + r_error for |r| <= pi / 4."""
    one = w.constant(1.0, r.type)
    z = w.fmul(r, r)
    # sin (r + e) = sin r + e cos r, and 1 - r**2 / 2 approximates cos r well enough
    half = w.constant(-0.5, r.type)
    slope = w.fma(z, half, one)
    cube = w.fmul(w.fmul(z, r), polynomial(w, z, _S))
    sine = w.fadd(r, w.fma(r_error, slope, cube))
    # 1 - r**2 / 2 rounds; its rounding error is added back with the small terms
    lead_error = w.fma(z, half, w.fsub(one, slope))
    tail = w.fma(w.fmul(z, z), polynomial(w, z, _C), lead_error)
    cosine = w.fadd(slope, w.fsub(tail, w.fmul(r, r_error)))
    return sine, cosine


def _quadrant(w: FunctionWriter, n: Value, bit: int) -> Value:
    one_bit = w.constant(bit, n.type)
    return w.icmp("ne", w.and_(n, one_bit), w.constant(0, n.type))


def _signed(w: FunctionWriter, value: Value, negative: Value) -> Value:
    return w.select(negative, w.fneg(value), value)


def _with_huge(w: FunctionWriter, name: str, x: Value, value: Value) -> Value:
    # Infinity takes the slow path too, though the reduction would only give the wrong kind of NaN;
    # finite huge arguments must.
    huge = w.fcmp("ogt", w.fabs(x), w.constant(_LARGEST, x.type))
    return rare_branch(w, huge, value, lambda: w.intrinsic(name, x.type, x))


def _reduce_in_double(w: FunctionWriter, x: Value) -> tuple[Value, Value]:
    """(n as an i32, r in double), for float x."""
    wide = w.fpext(x, "double")
    shifted, n = nearest_integer(w, wide, _TWO_OVER_PI)
    high, low = (w.constant(-part, wide.type) for part in _HALF_PI_PAIR)
    r = w.fma(n, low, w.fma(n, high, wide))
    return w.truncate(w.bitcast(shifted, "i64"), "i32"), r


def _reduce_in_float(w: FunctionWriter, x: Value) -> tuple[Value, Value, Value]:
    """(n as an integer, r, what r lacks), for float |x| <= 2**18."""
    shifted, n = nearest_integer(w, x, _TWO_OVER_PI)
    first, second, third = (w.constant(-part, x.type) for part in _HALF_PI_FLOAT)
    r = w.fma(n, second, w.fma(n, first, x))
    return w.bitcast(shifted, x.type.as_integer), r, w.fmul(n, third)


def _sine_cosine_float(
    w: FunctionWriter, r: Value, r_error: Value | None = None
) -> tuple[Value, Value]:
    """(sin, cos) of r + r_error for |r| <= pi / 4, with the accuracy of float."""
    z = w.fmul(r, r)
    cube, series = w.fmul(z, r), polynomial(w, z, _S_FLOAT)
    sine = w.fma(cube, series, r) if r_error is None else w.fadd(r, w.fma(cube, series, r_error))
    return sine, w.fma(z, polynomial(w, z, _C_FLOAT), w.constant(1.0, r.type))


def _quarter_turns(w: FunctionWriter, x: Value) -> tuple[Value, Value, Value]:
    """(n, sin r, cos r) with x = n pi / 2 + r."""
    if not is_double(x):
        n, r = _reduce_in_double(w, x)
        return n, *_sine_cosine_float(w, w.fptrunc(r, "float"))
    n, r, r_error = _reduce(w, x)
    return n, *_sine_cosine(w, r, r_error)


def _sine(w: FunctionWriter, x: Value, turns: tuple[Value, Value, Value]) -> Value:
    n, sine, cosine = turns
    value = w.select(_quadrant(w, n, 1), cosine, sine)
    value = _signed(w, value, _quadrant(w, n, 2))
    # n = 0 and r = 0: the sum above would lose the sign of zero.
    return w.select(w.fcmp("oeq", x, w.constant(0.0, x.type)), x, value)


def _cosine(w: FunctionWriter, turns: tuple[Value, Value, Value]) -> Value:
    n, sine, cosine = turns
    value = w.select(_quadrant(w, n, 1), sine, cosine)
    next_quadrant = w.add(n, w.constant(1, n.type))
    return _signed(w, value, _quadrant(w, next_quadrant, 2))


@outlined
def sin_of_any(w: FunctionWriter, x: Value) -> Value:
    """Sine of radians, also where they are many."""
    return _with_huge(w, "sin", x, _sine(w, x, _quarter_turns(w, x)))


@outlined
def cos_of_any(w: FunctionWriter, x: Value) -> Value:
    """Cosine of radians, also where they are many."""
    return _with_huge(w, "cos", x, _cosine(w, _quarter_turns(w, x)))


def has_float_reduction(w: FunctionWriter, x: Value) -> bool:
    """True if x is reduced in its own type, up to 2**18."""
    return w.has_fma and not is_double(x)


def with_large(
    w: FunctionWriter, x: Value, value: Value, of_any: Callable[[FunctionWriter, Value], Value]
) -> Value:
    """`value` where it was reduced in float, `of_any` if one of the lanes is larger."""
    large = w.fcmp("ogt", w.fabs(x), w.constant(_LARGEST_IN_FLOAT, x.type))
    return rare_branch(w, large, value, lambda: of_any(w, x))


@outlined
def sin(w: FunctionWriter, x: Value) -> Value:
    """Sine of radians."""
    if not has_float_reduction(w, x):
        return sin_of_any(w, x)
    n, r, r_error = _reduce_in_float(w, x)
    value = _sine(w, x, (n, *_sine_cosine_float(w, r, r_error)))
    return with_large(w, x, value, sin_of_any)


@outlined
def cos(w: FunctionWriter, x: Value) -> Value:
    """Cosine of radians."""
    if not has_float_reduction(w, x):
        return cos_of_any(w, x)
    n, r, r_error = _reduce_in_float(w, x)
    value = _cosine(w, (n, *_sine_cosine_float(w, r, r_error)))
    return with_large(w, x, value, cos_of_any)


@outlined
def tan(w: FunctionWriter, x: Value) -> Value:
    """Tangent of radians."""
    if is_double(x):
        n, r, r_error = _reduce(w, x)
        sine, cosine = _sine_cosine(w, r, r_error)
    else:
        n, r = _reduce_in_double(w, x)
        sine, cosine = _sine_cosine_float(w, r)
    odd = _quadrant(w, n, 1)
    numerator = w.select(odd, w.fneg(cosine), sine)
    value = w.fdiv(numerator, w.select(odd, sine, cosine))
    if not is_double(x):
        value = w.fptrunc(value, "float")
    value = w.select(w.fcmp("oeq", x, w.constant(0.0, x.type)), x, value)
    return _with_huge(w, "tan", x, value)
