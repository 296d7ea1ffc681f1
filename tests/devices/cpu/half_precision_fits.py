"""Makes the coefficients of `vector_math/half_precision`.

Run as `python -m tests.devices.cpu.half_precision_fits`. Remez's exchange on a fine grid of
Chebyshev points, in double: the fits need 20 bits at most. mpmath computes the values of erfc,
which underflows and cancels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mpmath
import numpy as np

Function = Callable[[np.ndarray], np.ndarray]
_POINTS = 600


@dataclass(frozen=True)
class Fit:
    """Minimises the largest |weight * (f - sum c_i x**(first + i))| over [low, high]."""

    f: Function
    weight: Function
    first: int
    count: int
    low: float
    high: float

    def solve(self) -> tuple[np.ndarray, float]:
        """(coefficients, largest weighted error)"""
        angles = np.pi * np.arange(_POINTS + 1) / _POINTS
        x = (self.low + self.high) / 2 - (self.high - self.low) / 2 * np.cos(angles)
        basis = x[:, None] ** np.arange(self.first, self.first + self.count)
        wanted, weight = self.f(x), self.weight(x)
        reference = np.round(np.linspace(0, _POINTS, self.count + 1)).astype(int)
        for _ in range(50):
            signs = (-1.0) ** np.arange(self.count + 1) / weight[reference]
            system = np.concatenate([basis[reference], signs[:, None]], axis=1)
            coefficients = np.linalg.solve(system, wanted[reference])[: self.count]
            errors = weight * (basis @ coefficients - wanted)
            extrema = _alternating_extrema(errors, self.count + 1)
            if np.array_equal(extrema, reference):
                break
            reference = extrema
        return coefficients, float(np.abs(errors).max())


def _alternating_extrema(errors: np.ndarray, count: int) -> np.ndarray:
    """The largest error of each run of one sign; the smaller of the two ends goes until `count`."""
    starts = np.flatnonzero(np.diff(errors > 0)) + 1
    runs = np.split(np.arange(errors.size), starts)
    found = [run[np.argmax(np.abs(errors[run]))] for run in runs]
    while len(found) > count:
        found.pop(0 if abs(errors[found[0]]) < abs(errors[found[-1]]) else -1)
    return np.array(found)


def _expm1_ratio(f: np.ndarray) -> np.ndarray:
    near = np.where(np.abs(f) < 1e-9, 1e-9, f)
    return np.expm1(near * np.log(2)) / near


def _log_ratio(f: np.ndarray) -> np.ndarray:
    near = np.where(np.abs(f) < 1e-9, 1e-9, f)
    return np.log1p(near) / near


def _sine_tail(z: np.ndarray) -> np.ndarray:
    r = np.sqrt(z)
    return (np.sin(r) / r - 1) / z


def _sine_weight(z: np.ndarray) -> np.ndarray:
    r = np.sqrt(z)
    return r**3 / np.sin(r)


def _log2_erfc(y: np.ndarray) -> np.ndarray:
    return np.array([float(mpmath.log(mpmath.erfc(v), 2)) for v in y])


FITS = {
    "exp2, 12 bits": Fit(np.exp2, lambda f: np.exp2(-f), 0, 4, 0.0, 1.0),
    "exp2, 16 bits": Fit(np.exp2, lambda f: np.exp2(-f), 0, 5, 0.0, 1.0),
    "expm1, 12 bits": Fit(_expm1_ratio, lambda f: 1 / _expm1_ratio(f), 0, 4, -0.5, 0.5),
    "expm1, 16 bits": Fit(_expm1_ratio, lambda f: 1 / _expm1_ratio(f), 0, 5, -0.5, 0.5),
    "log, 12 bits": Fit(_log_ratio, lambda f: 1 / _log_ratio(f), 0, 5, -0.25, 0.5),
    "log, 16 bits": Fit(_log_ratio, lambda f: 1 / _log_ratio(f), 0, 6, -0.25, 0.5),
    "sine, 12 bits": Fit(_sine_tail, _sine_weight, 0, 2, 1e-4, 1.582**2),
    "sine, 16 bits": Fit(_sine_tail, _sine_weight, 0, 3, 1e-4, 1.582**2),
    "log2(erfc)": Fit(_log2_erfc, lambda y: np.full_like(y, np.log(2)), 1, 7, 1e-4, 4.8),
}


if __name__ == "__main__":
    for name, fit in FITS.items():
        coefficients, error = fit.solve()
        print(f"{name}: 2**{np.log2(error):.2f} {[float(np.float32(c)) for c in coefficients]}")
