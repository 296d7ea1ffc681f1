"""fmod and nextafter, exact, over vectors of float or double.

fmod(a, b) = a - trunc(a / b) b.  The truncated rounded quotient is never too small and at most one
too large.  While it is an exact integer the difference is exact (one fma in double; in float the
double product is exact), and a wrong sign means one b too many.  Larger quotients, and machines
without fma, branch to the C library, lane by lane.
"""

from __future__ import annotations

import math

from pyfuser.devices.cpu.llvm_writer import FunctionWriter, Value
from pyfuser.devices.cpu.vector_math.common import is_double, outlined, rare_branch


@outlined
def fmod(w: FunctionWriter, a: Value, b: Value) -> Value:
    """The remainder of a / b with the sign of a."""
    type = a.type
    wide_a, wide_b = w.fpext(w.fabs(a), "double"), w.fpext(w.fabs(b), "double")
    quotient = w.ftrunc(w.fdiv(wide_a, wide_b))
    rest = w.fma(w.fneg(quotient), wide_b, wide_a)
    zero = w.constant(0.0, rest.type)
    rest = w.select(w.fcmp("olt", rest, zero), w.fadd(rest, wide_b), rest)
    value = w.copysign(w.fptrunc(rest, type), a)
    limit = 2.0**52 if is_double(a) else 2.0**28
    if is_double(a) and not w.has_fma:
        limit = 1.0
    # Unordered or infinite: NaN, zero divisors and infinite operands go to the library too.
    rare = w.not_(w.fcmp("olt", quotient, w.constant(limit, rest.type)))
    rare = w.or_(rare, w.fcmp("oeq", w.fabs(b), w.constant(math.inf, type)))
    return rare_branch(w, rare, value, lambda: w.frem(a, b))


def nextafter(w: FunctionWriter, a: Value, b: Value) -> Value:
    """The number after a on the way to b: one step of the bits taken as a sign and a magnitude."""
    type = a.type
    bits = w.bitcast(a, type.as_integer)
    one, minus_one = w.constant(1, bits.type), w.constant(-1, bits.type)
    zero = w.constant(0.0, type)
    # The magnitude grows when b is farther from zero on a's side.
    upward = w.fcmp("ogt", b, a)
    positive = w.fcmp("ogt", a, zero)
    grows = w.not_(w.xor(upward, positive))
    stepped = w.bitcast(w.add(bits, w.select(grows, one, minus_one)), type)
    smallest = w.bitcast(one, type)
    stepped = w.select(w.fcmp("oeq", a, zero), w.copysign(smallest, b), stepped)
    value = w.select(w.fcmp("oeq", a, b), b, stepped)
    return w.select(w.fcmp("uno", a, b), w.fadd(a, b), value)
