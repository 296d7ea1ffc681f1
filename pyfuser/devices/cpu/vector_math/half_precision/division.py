"""Division by a number that all lanes share, such as the sum of a row or a constant.

The reciprocal is computed once, outside of the loop, and a lane takes two multiplications where a
division of a vector takes about ten times as long.  The quotient is rounded three times instead of
once: the relative error is at most 2**-22.4.
"""

from __future__ import annotations

from pyfuser.devices.cpu.llvm_writer import FunctionWriter, Value

# The reciprocal of a number below 2**-128 overflows.  So the two are multiplied by a power of two
# first if the divisor is small; the dividend overflows only if the quotient does.
_SMALL, _SCALE = 2.0**-100, 2.0**64


def divided_by_one_number(w: FunctionWriter, a: Value, b: Value) -> Value | None:
    """a / b in float; None if the lanes of b may differ."""
    divisor = w.shared_by_lanes(b)
    if divisor is None:
        return None
    is_small = w.fcmp("olt", w.fabs(divisor), w.constant(_SMALL, divisor.type))
    scale = w.select(is_small, w.constant(_SCALE, divisor.type), w.constant(1.0, divisor.type))
    inverse = w.fdiv(w.constant(1.0, divisor.type), w.fmul(divisor, scale))
    lanes = a.type.lanes
    return w.fmul(w.fmul(a, w.splat(scale, lanes)), w.splat(inverse, lanes))
