"""Vector math: the transcendental functions of the CPU device, written over `FunctionWriter`.

`VECTOR_MATH` maps a routine's name in the op table to a function (writer, *arguments) -> value
over float or double vectors of any lane count. Results are within 2 units in the last place in
float and 4 in double of the correctly rounded ones, with NaN, infinities, zeros and subnormals
as in torch; tests/devices/cpu/test_vector_math.py lists the routines that fall short of this.
"""

from __future__ import annotations

from pyfuser.devices.cpu.vector_math import (
    error_function,
    exponential,
    gamma,
    inverse_trigonometric,
    logarithm,
    power,
    remainder,
    trigonometric,
)
from pyfuser.devices.cpu.vector_math.common import Routine

VECTOR_MATH: dict[str, Routine] = {
    routine.__name__: routine
    for routine in (
        error_function.erf,
        error_function.erfc,
        error_function.erfinv,
        error_function.erfcinv,
        inverse_trigonometric.acos,
        inverse_trigonometric.asin,
        inverse_trigonometric.atan,
        inverse_trigonometric.atan2,
        trigonometric.cos,
        trigonometric.sin,
        trigonometric.tan,
        exponential.exp,
        exponential.exp2,
        exponential.expm1,
        exponential.cosh,
        exponential.sinh,
        gamma.lgamma,
        power.pow,
        remainder.fmod,
        remainder.nextafter,
        exponential.tanh,
        logarithm.log,
        logarithm.log2,
        logarithm.log10,
        logarithm.log1p,
        logarithm.asinh,
        logarithm.acosh,
        logarithm.atanh,
    )
}
