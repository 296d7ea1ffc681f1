"""erf, erfc, erfinv, erfcinv over vectors of float or double.

float erf is one formula for the whole line: erf(y) = 1 - 2**(-Q(y)) with Q(y) = -log2(erfc(y)), and
Q(y) / y is a polynomial of degree 8; 2**-Q is 2**n 2**f with f exact, and 2**f - 1 is computed, so
small arguments keep their relative accuracy and large ones can't exceed 1. In double, erfc(y) =
e**(-y**2) P(q) / (1 + 2 y) with q = (y - 4) / (y + 4) (Shepherd and Laframboise 1981), and erf is a
polynomial below 1. The inverses start from a polynomial in w = -log(1 - x**2) (Giles 2010) and take
one step of Halley's method. Coefficients: Remez fits (Q, weighted by the sensitivity of erf; 2**f;
starts of the inverses) and Chebyshev interpolation, with 50 digits.
"""

from __future__ import annotations

import math

from pyfuser.devices.cpu.llvm_writer import FunctionWriter, Value
from pyfuser.devices.cpu.vector_math.common import (
    is_double,
    mantissa_bits,
    outlined,
    polynomial,
    power_of_two,
    rounding_shift,
    scale_by_power,
    two_product,
    widened,
)
from pyfuser.devices.cpu.vector_math.exponential import (
    exp,
    expm1_reduced,
    reduce_exponent,
)
from pyfuser.devices.cpu.vector_math.logarithm import log

# Q(y) / y - 1; the last fma adds the 1, so that the leading coefficient has bits to spare.
_ERF_FLOAT = (
    0.6279070377349854,
    0.9184476137161255,
    0.14827707409858704,
    -0.02763209491968155,
    -0.00023125167354010046,
    0.0024048311170190573,
    -0.0009128741803579032,
    0.0001696827239356935,
    -1.3349140317586716e-05,
)
# (2**f - 1) / f - 1 for |f| <= 1/2; the 1 is added as above.
_EXP2M1_FLOAT = (
    -0.3068528175354004,
    0.24022649228572845,
    0.05550357326865196,
    0.009618237614631653,
    0.0013390735257416964,
    0.00015403516590595245,
)
# erf(y) / y - 1 over y**2 <= 1.
_ERF_DOUBLE = (
    0.1283791670955126,
    -0.3761263890318375,
    0.11283791670954879,
    -0.026866170645076792,
    0.0052239776248180145,
    -0.000854832698083379,
    0.0001205533111164271,
    -1.4925595266831182e-05,
    1.6461000484121368e-06,
    -1.6350312701054695e-07,
    1.4659775274047436e-08,
    -1.1372848856791674e-09,
    5.957176147748911e-11,
)
# erfc(y) e**(y**2) (1 + 2 y) over q = (y - 4) / (y + 4).
_ERFCX = (
    1.2329951186255526,
    -0.13962111684056291,
    0.015379652102620465,
    0.06809705425473984,
    -0.10103906603633545,
    0.09373283499672015,
    -0.0663303658119233,
    0.03716751556342131,
    -0.016197734054376058,
    0.005031969750252745,
    -0.0007577733740928637,
    -0.00019925549276565013,
    0.00015062237999067456,
    -2.4403161840693628e-05,
    -1.122513332073903e-05,
    5.717737695782311e-06,
    3.018560156291585e-07,
    -8.347740692916786e-07,
    6.234160392324562e-08,
    1.1491026642872101e-07,
    -7.670588507905727e-09,
    -1.3479339174285805e-08,
    -1.7606277498641753e-09,
)
_ERFCX_CENTRE = 4.0
# erfinv(x) / x over w, and erfinv(x) / sqrt(w) over 1 / sqrt(w) for w above 5.
_INVERSE_CENTRE = (
    0.8862269242011682,
    0.23201371276215604,
    0.011549165116928104,
    -0.0023352705948701527,
    -0.00012653947431268868,
    4.404880432626899e-05,
    4.150663236592616e-06,
    -2.0082713391637707e-06,
    2.243043015262031e-07,
    -8.931925970244222e-09,
)
_INVERSE_TAIL = (
    1.0000938069406538,
    -0.015006640365487517,
    -1.5309678950336192,
    9.167046950660572,
    -52.30411959789227,
    259.17127347995245,
    -967.5542019023808,
    2592.8596304889857,
    -4812.694103802775,
    5865.4407131391035,
    -4227.17096353365,
    1368.2617635622892,
)
_INVERSE_SPLIT = 5.0
_HALF_ROOT_PI = math.sqrt(math.pi) / 2


def erf(w: FunctionWriter, x: Value) -> Value:
    """The error function."""
    return _erf_double(w, x) if is_double(x) else _erf_float(w, x)


def _erf_float(w: FunctionWriter, x: Value) -> Value:
    type = x.type
    y = w.fmin_number(w.constant(4.0, type), w.fabs(x))
    q = w.fma(y, polynomial(w, y, _ERF_FLOAT), y)
    shift = w.constant(rounding_shift(type)[0], type)
    shifted = w.fsub(shift, q)
    f = w.fsub(w.fsub(shift, shifted), q)  # -q = n + f
    power = power_of_two(w, w.bitcast(shifted, type.as_integer), type, mantissa_bits(type))
    expm1 = w.fma(f, polynomial(w, f, _EXP2M1_FLOAT), f)
    # 1 - 2**n 2**f
    value = w.fma(w.fneg(power), expm1, w.fsub(w.constant(1.0, type), power))
    return w.copysign(value, x)


def _scaled_erfc(w: FunctionWriter, y: Value) -> Value:
    """e**(y**2) erfc(y) for y >= 0, in double."""
    type = y.type
    centre, one = w.constant(_ERFCX_CENTRE, type), w.constant(1.0, type)
    q = w.fdiv(w.fsub(y, centre), w.fadd(y, centre))
    return w.fdiv(polynomial(w, q, _ERFCX), w.fma(w.constant(2.0, type), y, one))


def _positive_erfc(w: FunctionWriter, y: Value) -> Value:
    """erfc(y) for y >= 0, in double; 0 beyond 28."""
    y = w.fmin_number(w.constant(28.0, y.type), y)
    square, error = two_product(w, y, y)
    shifted, r = reduce_exponent(w, w.fneg(square))
    factor = w.fadd(w.constant(1.0, y.type), expm1_reduced(w, w.fsub(r, error)))
    return scale_by_power(w, w.fmul(factor, _scaled_erfc(w, y)), shifted)


def _small_erf(w: FunctionWriter, x: Value) -> Value:
    """erf(x) for |x| <= 1, in double."""
    return w.fma(x, polynomial(w, w.fmul(x, x), _ERF_DOUBLE), x)


@outlined
def _erf_double(w: FunctionWriter, x: Value) -> Value:
    y = w.fabs(x)
    one = w.constant(1.0, x.type)
    large = w.fsub(one, _positive_erfc(w, y))
    return w.select(w.fcmp("olt", y, one), _small_erf(w, x), w.copysign(large, x))


@outlined
@widened
def erfc(w: FunctionWriter, x: Value) -> Value:
    """1 - erf(x)"""
    type = x.type
    y = w.fabs(x)
    one, two = w.constant(1.0, type), w.constant(2.0, type)
    tail = _positive_erfc(w, y)
    value = w.select(w.fcmp("olt", x, w.constant(0.0, type)), w.fsub(two, tail), tail)
    return w.select(w.fcmp("olt", y, w.constant(0.5, type)), w.fsub(one, _small_erf(w, x)), value)


def _inverse(w: FunctionWriter, z: Value, v: Value) -> Value:
    """y >= 0 with erf(y) = z and erfc(y) = v = 1 - z; z counts below 1/2, v above it."""
    type = z.type
    one = w.constant(1.0, type)
    negative_log = w.fneg(log(w, w.fmul(v, w.fadd(one, z))))
    root = w.sqrt(w.fmax_number(negative_log, w.constant(1.0, type)))
    tail = w.fmul(root, polynomial(w, w.fdiv(one, root), _INVERSE_TAIL))
    centre = w.fmul(z, polynomial(w, negative_log, _INVERSE_CENTRE))
    far = w.fcmp("ogt", negative_log, w.constant(_INVERSE_SPLIT, type))
    y = w.select(far, tail, centre)
    # (erf(y) - z) e**(y**2), written so that neither form cancels or underflows.
    square = w.fmul(y, y)
    near_error = w.fmul(w.fsub(_small_erf(w, y), z), exp(w, square))
    far_error = w.fsub(exp(w, w.fadd(square, log(w, v))), _scaled_erfc(w, y))
    error = w.select(w.fcmp("olt", z, w.constant(0.5, type)), near_error, far_error)
    step = w.fmul(error, w.constant(_HALF_ROOT_PI, type))
    y = w.fsub(y, w.fdiv(step, w.fma(y, step, one)))
    infinity, zero = w.constant(math.inf, type), w.constant(0.0, type)
    y = w.select(w.fcmp("oeq", v, zero), infinity, y)
    return w.select(w.fcmp("ult", v, zero), w.constant(math.nan, type), y)


@outlined
@widened
def erfinv(w: FunctionWriter, x: Value) -> Value:
    """Inverse of erf; NaN outside [-1, 1]."""
    z = w.fabs(x)
    return w.copysign(_inverse(w, z, w.fsub(w.constant(1.0, x.type), z)), x)


@outlined
@widened
def erfcinv(w: FunctionWriter, x: Value) -> Value:
    """Inverse of erfc; NaN outside [0, 2]."""
    one, two = w.constant(1.0, x.type), w.constant(2.0, x.type)
    left = w.fcmp("ogt", x, one)
    v = w.select(left, w.fsub(two, x), x)
    y = _inverse(w, w.fsub(one, v), v)
    return w.select(left, w.fneg(y), y)
