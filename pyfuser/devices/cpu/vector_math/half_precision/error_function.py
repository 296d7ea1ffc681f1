"""1 + erf(x) for results rounded to half precision.

1 + erf(x) is erfc(y) for x < 0 and 2 - erfc(y) otherwise, with y = |x| and erfc(y) = 2**(y P(y)).
So it has a small relative error for negative x, where 1 and erf(x) cancel. Below x = -4.8, where
the result is less than 2e-11 (and 1 plus the float erf has been 0 since -4), it decreases to 0
faster than 1 + erf(x).
Coefficients: a Remez fit of log2(erfc(y)) for y up to 4.8 with an error of 2**-17 / ln 2, made by
tests/devices/cpu/half_precision_fits.py.
"""

from __future__ import annotations

from pyfuser.devices.cpu.llvm_writer import FunctionWriter, Value
from pyfuser.devices.cpu.vector_math.common import polynomial
from pyfuser.devices.cpu.vector_math.half_precision.common import exp2_of

# log2(erfc(y)) / y. The leading coefficient is negative: the result is 0 for infinite y.
LOG2_ERFC = (
    -1.6279538869857788,
    -0.9175193309783936,
    -0.15181683003902435,
    0.03350689262151718,
    -0.005087998230010271,
    0.0004635471850633621,
    -1.8849435946322046e-05,
)


def one_plus_erf(w: FunctionWriter, bits: int, x: Value) -> Value:
    """1 + erf(x), with a small relative error down to x = -4.8."""
    type = x.type
    y = w.fabs(x)
    small = exp2_of(w, bits, w.fmul(y, polynomial(w, y, LOG2_ERFC)))
    negative = w.fcmp("olt", x, w.constant(0.0, type))
    return w.select(negative, small, w.fsub(w.constant(2.0, type), small))
