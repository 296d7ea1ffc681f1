"""lgamma over vectors of double; float goes through double and rounds once.

From 8 on, Stirling's series. Below, with u = t - 2: log gamma(t) = u B(u) for 1.25 <= t <= 3; the
recurrence gamma(t + 1) = t gamma(t) maps the rest of (-0.5, 8) there with one logarithm, so the
zeros at 1 and 2 keep their relative accuracy. Left of -0.5, the reflection log(pi / |x sin(pi x)|)
- lgamma(-x). Limitation: in double, near the zeros of lgamma at negative x, the error is a few
units of the terms that cancel (about 1e-15), not of the result. Coefficients: Chebyshev
interpolation with 50 digits.
"""

from __future__ import annotations

import math

from pyfuser.devices.cpu.llvm_writer import FunctionWriter, Value
from pyfuser.devices.cpu.vector_math.common import outlined, polynomial, widened
from pyfuser.devices.cpu.vector_math.logarithm import log

# lgamma(2 + u) / u for -0.75 <= u <= 1.
_B = (
    0.42278433509846713,
    0.3224670334241132,
    -0.06735230105319816,
    0.02058080842778417,
    -0.007385551028669012,
    0.002890510330756044,
    -0.0011927539118550725,
    0.0005096695245045354,
    -0.0002231547560475299,
    9.945751460430255e-05,
    -4.492625923396999e-05,
    2.0507208336322642e-05,
    -9.43935590634876e-06,
    4.374837068033955e-06,
    -2.0397191142084106e-06,
    9.554294710112984e-07,
    -4.480192215965011e-07,
    2.1096378822303326e-07,
    -1.0224124256665502e-07,
    5.006841110366839e-08,
    -2.142201070120857e-08,
    7.966479220904484e-09,
    -5.036483112698062e-09,
    4.191852319968485e-09,
    -1.9976322444091985e-09,
    3.7492418092000883e-10,
)
# lgamma(z) - (z - 1/2) (log z - 1) - constant, times z, over 1 / z**2 for z >= 8.
_STIRLING = (
    0.08333333333333333,
    -0.0027777777777777744,
    0.0007936507936450394,
    -0.0005952380914267929,
    0.000841749570829054,
    -0.001917287055870562,
    0.006383322059276921,
    -0.027742741357277903,
    0.11001554697563673,
)
_STIRLING_CONSTANT = (math.log(2.0 * math.pi) - 1.0) / 2.0
_STIRLING_START = 8.0
# sin(pi r) / r over r**2 <= 1/4.
_SINE = (
    3.141592653589793,
    -5.16771278004997,
    2.5501640398773455,
    -0.5992645293207869,
    0.08214588661099356,
    -0.007370430943702136,
    0.0004663027874593273,
    -2.1915250301851375e-05,
    7.94853903737232e-07,
    -2.228371216069697e-08,
)


def _near_argument(w: FunctionWriter, x: Value) -> tuple[Value, Value, Value]:
    """(u, p, sign) with lgamma(x) = u B(u) + sign log p for -0.5 < x < 8."""
    type = x.type
    one, two = w.constant(1.0, type), w.constant(2.0, type)
    shift, product = w.constant(0.0, type), one
    for step in range(1, 6):
        reached = w.fcmp("oge", x, w.constant(step + 2.0, type))
        factor = w.fsub(x, w.constant(float(step), type))
        product = w.select(reached, w.fmul(product, factor), product)
        shift = w.select(reached, w.constant(float(step), type), shift)
    u = w.fsub(w.fsub(x, shift), two)
    below = w.fcmp("olt", x, w.constant(1.25, type))
    lowest = w.fcmp("olt", x, w.constant(0.5, type))
    u = w.select(below, w.fsub(x, one), u)
    u = w.select(lowest, x, u)
    product = w.select(below, x, product)
    product = w.select(lowest, w.fabs(w.fmul(x, w.fadd(one, x))), product)
    return u, product, w.select(below, w.constant(-1.0, type), one)


def _right(w: FunctionWriter, x: Value) -> Value:
    """lgamma(x) for x > -0.5."""
    type = x.type
    one = w.constant(1.0, type)
    far = w.fcmp("oge", x, w.constant(_STIRLING_START, type))
    u, product, sign = _near_argument(w, x)
    logarithm = log(w, w.select(far, x, product))
    near = w.fma(sign, logarithm, w.fmul(u, polynomial(w, u, _B)))
    inverse = w.fdiv(one, x)
    series = w.fmul(inverse, polynomial(w, w.fmul(inverse, inverse), _STIRLING))
    small = w.fadd(w.constant(_STIRLING_CONSTANT, type), series)
    # The half is taken in steps that overflow only if the result does.
    power = w.fmul(w.fsub(x, w.constant(0.5, type)), w.fsub(logarithm, one))
    return w.select(far, w.fadd(power, small), near)


@outlined
@widened
def lgamma(w: FunctionWriter, x: Value) -> Value:
    """Logarithm of the magnitude of gamma; infinity at the poles."""
    type = x.type
    infinity = w.constant(math.inf, type)
    size = w.fabs(x)
    reflected = w.fcmp("ole", x, w.constant(-0.5, type))
    right = _right(w, w.select(reflected, size, x))
    r = w.fsub(size, w.roundeven(size))
    sine = w.fabs(w.fmul(r, polynomial(w, w.fmul(r, r), _SINE)))
    mirrored = log(w, w.fdiv(w.constant(math.pi, type), w.fmul(size, sine)))
    value = w.select(reflected, w.fsub(mirrored, right), right)
    is_pole = w.and_(w.fcmp("oeq", r, w.constant(0.0, type)), reflected)
    is_pole = w.or_(is_pole, w.fcmp("oeq", size, w.constant(0.0, type)))
    value = w.select(is_pole, infinity, value)
    return w.select(w.fcmp("oeq", size, infinity), infinity, value)
