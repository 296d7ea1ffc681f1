"""Vector math in float for results that will be rounded to half precision.

A routine takes the writer, the bits that are needed, and float values; the relative error of its
result is below 2**-bits for the larger of the numbers in TIERS. NaN, infinities, signed zeros and
subnormals are as in `vector_math`, except where a routine's docstring says otherwise.
`pyfuser.analysis.precision` decides where they may be used;
tests/devices/cpu/test_half_precision.py measures them on every value of both dtypes.
"""

from __future__ import annotations

from collections.abc import Callable

from pyfuser.devices.cpu.llvm_writer import Value
from pyfuser.devices.cpu.vector_math.half_precision import (
    error_function,
    exponential,
    logarithm,
    trigonometric,
)
from pyfuser.devices.cpu.vector_math.half_precision.common import TIERS

__all__ = ["COMPLEMENTS", "ROUTINES", "routine_for"]

Routine = Callable[..., Value]

ROUTINES: dict[str, Routine] = {
    routine.__name__: routine
    for routine in (
        exponential.exp,
        exponential.exp2,
        exponential.expm1,
        exponential.sigmoid,
        exponential.silu,
        exponential.tanh,
        logarithm.log,
        logarithm.log10,
        logarithm.log1p,
        logarithm.log2,
        trigonometric.cos,
        trigonometric.sin,
    )
}
# 1 + f(x), by the name of f.
COMPLEMENTS: dict[str, Routine] = {
    "erf": error_function.one_plus_erf,
    "tanh": exponential.one_plus_tanh,
}


def routine_for(routines: dict[str, Routine], name: str, bits: int) -> Routine | None:
    """The routine for a result that needs `bits` (0: all); None if there is none."""
    return routines.get(name) if 0 < bits <= TIERS[-1] else None
