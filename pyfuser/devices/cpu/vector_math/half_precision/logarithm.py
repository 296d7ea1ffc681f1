"""log, log2, log10, log1p for results rounded to half precision.

x = 2**k m with m in [0.75, 1.5), where f = m - 1 is exact; log(1 + f) / f is a polynomial, so that
the relative error is small near x = 1, too. With AVX-512, instructions split x, and give what zero,
infinity, negative numbers and NaN need. Coefficients: as in `common`.
"""

from __future__ import annotations

import math

from pyfuser.devices.cpu.llvm_writer import FunctionWriter, Value
from pyfuser.devices.cpu.vector_math.common import polynomial
from pyfuser.devices.cpu.vector_math.half_precision.common import tier
from pyfuser.devices.cpu.vector_math.logarithm import corrected, split

# log(1 + f) / f for -1/4 <= f <= 1/2.
LOG = {
    12: (
        0.9999487400054932,
        -0.49998077750205994,
        0.33849292993545532,
        -0.25792744755744934,
        0.13809797167778015,
    ),
    16: (
        0.9999974370002747,
        -0.49987760186195374,
        0.33357533812522888,
        -0.25613382458686829,
        0.20457793772220612,
        -0.10552965849637985,
    ),
}


def log(w: FunctionWriter, bits: int, x: Value) -> Value:
    """Natural logarithm."""
    return _logarithm(w, bits, x, math.e)


def log2(w: FunctionWriter, bits: int, x: Value) -> Value:
    """Logarithm to base 2."""
    return _logarithm(w, bits, x, 2.0)


def log10(w: FunctionWriter, bits: int, x: Value) -> Value:
    """Logarithm to base 10."""
    return _logarithm(w, bits, x, 10.0)


def log1p(w: FunctionWriter, bits: int, x: Value) -> Value:
    """log(1 + x); where k is 0, f is x, which 1 + x would round."""
    one = w.constant(1.0, x.type)
    above = w.fadd(x, one)
    k, f = split(w, above)
    is_near = w.fcmp("oeq", k, w.constant(0.0, x.type))
    of_mantissa = _of_mantissa(w, bits, w.select(is_near, x, f), math.e)
    value = w.fma(k, w.constant(math.log(2.0), x.type), of_mantissa)
    return corrected(w, above, w.select(is_near, of_mantissa, value))


def _logarithm(w: FunctionWriter, bits: int, x: Value, base: float) -> Value:
    k, f = split(w, x)
    unit = w.constant(math.log(2.0) / math.log(base), x.type)
    return corrected(w, x, w.fma(k, unit, _of_mantissa(w, bits, f, base)))


def _of_mantissa(w: FunctionWriter, bits: int, f: Value, base: float) -> Value:
    """The logarithm of 1 + f."""
    coefficients = [each / math.log(base) for each in LOG[tier(bits)]]
    return w.fmul(f, polynomial(w, f, coefficients))
