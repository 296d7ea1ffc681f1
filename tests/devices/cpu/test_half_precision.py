"""Vector math for half precision, on every value of both dtypes, against double or mpmath."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from pyfuser.devices.cpu.llvm_writer import FLOAT
from pyfuser.devices.cpu.vector_math import VECTOR_MATH
from pyfuser.devices.cpu.vector_math.half_precision import COMPLEMENTS, ROUTINES
from pyfuser.devices.cpu.vector_math.half_precision.common import EXP2, TIERS
from pyfuser.devices.cpu.vector_math.half_precision.error_function import LOG2_ERFC
from pyfuser.devices.cpu.vector_math.half_precision.exponential import EXPM1
from pyfuser.devices.cpu.vector_math.half_precision.logarithm import LOG
from pyfuser.devices.cpu.vector_math.half_precision.trigonometric import SINE
from tests.devices.cpu import vector_math_harness as harness
from tests.devices.cpu.half_precision_fits import FITS

ALL = {
    **ROUTINES,
    "one_plus_erf": COMPLEMENTS["erf"],
    "one_plus_tanh": COMPLEMENTS["tanh"],
}
EXACT: dict[str, Callable[[Tensor], Tensor]] = {
    "cos": torch.cos,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "log2": torch.log2,
    "sigmoid": torch.sigmoid,
    "silu": lambda x: x * torch.sigmoid(x),
    "sin": torch.sin,
    "tanh": torch.tanh,
    "one_plus_erf": lambda x: torch.special.erfc(-x),
    "one_plus_tanh": lambda x: 2 * torch.sigmoid(2 * x),
}
SPECIAL = ["exp", "exp2", "expm1", "log", "log10", "log1p", "log2", "sin", "cos", "tanh"]
DTYPES = {torch.bfloat16: 12, torch.float16: 16}
AVX512 = pytest.mark.skipif(not harness.HAS_AVX512, reason="needs AVX-512")
MACHINES = [pytest.param(True, marks=AVX512, id="avx512"), pytest.param(False, id="portable")]
# Where exact results are less than this, the routines may give 0 or less digits: 1 + erf(x) below
# x = -4.8, sigmoid and silu where e**-x overflows (as in vector_math).
LEAST = {
    "one_plus_erf": 1.2e-11,
    "sigmoid": 2.0**-126,
    "silu": 2.0**-119,
    "one_plus_tanh": 2.0**-125,
}


@functools.cache
def compiled(name: str, bits: int, has_avx512: bool) -> Callable[[Tensor], Tensor]:
    body = functools.partial(_called, ALL[name], bits)
    function = harness.compile_text(
        harness.function_text(body, [FLOAT], FLOAT, has_avx512=has_avx512), 1
    )
    return lambda x: torch.from_numpy(harness.run(function, [x.numpy()], np.float32))


def _called(routine, bits, w, x):
    return routine(w, bits, x)


def every_value(dtype: torch.dtype) -> Tensor:
    return torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(dtype)


def steps_between(a: Tensor, b: Tensor) -> Tensor:
    """How many values of the dtype lie between two finite or infinite ones, elementwise."""

    def place(x: Tensor) -> Tensor:
        bits = x.view(torch.int16).int()
        return torch.where(bits < 0, -(bits & 0x7FFF), bits)

    return (place(a) - place(b)).abs()


@pytest.mark.parametrize("has_avx512", MACHINES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", sorted(ALL))
def test_every_value_is_within_one_step(name, dtype, has_avx512):
    x = every_value(dtype)
    value = compiled(name, DTYPES[dtype], has_avx512)(x.float())
    exact = EXACT[name](x.double())
    got, wanted = value.to(dtype), exact.to(dtype)
    assert torch.equal(got.isnan(), wanted.isnan())
    known = ~wanted.isnan() & (exact.abs() >= LEAST.get(name, 0.0))
    assert steps_between(got[known], wanted[known]).max() <= 1
    assert torch.equal(got[known].signbit(), wanted[known].signbit())
    tiny = exact.abs() < LEAST.get(name, 0.0)
    assert (value[tiny].double().abs() <= 1.001 * LEAST.get(name, 0.0)).all()


@pytest.mark.parametrize("has_avx512", MACHINES)
@pytest.mark.parametrize("bits", TIERS)
@pytest.mark.parametrize("name", sorted(ALL))
def test_relative_error_before_rounding(name, bits, has_avx512):
    rng = np.random.default_rng(0)
    spread = [rng.normal(0, s, 1 << 16) for s in (1e-3, 1, 10, 60)]
    x = torch.from_numpy(np.concatenate(spread).astype(np.float32))
    got, exact = compiled(name, bits, has_avx512)(x).double(), EXACT[name](x.double())
    normal = (exact.abs() >= max(2.0**-125, LEAST.get(name, 0.0))) & (exact.abs() < 2.0**127.99)
    error = ((got - exact) / exact).abs()[normal].max()
    assert error < 2.0**-bits


@pytest.mark.parametrize("has_avx512", MACHINES)
@pytest.mark.parametrize("name", SPECIAL)
def test_special_values_are_those_of_the_usual_routine(name, has_avx512):
    numbers = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-45, -1e-45, 1e-38, 3e38, -3e38, 90.0]
    x = torch.tensor(numbers)
    text = harness.function_text(VECTOR_MATH[name], [FLOAT], FLOAT, has_avx512=has_avx512)
    usual = torch.from_numpy(harness.run(harness.compile_text(text, 1), [x.numpy()], np.float32))
    for bits in TIERS:
        got = compiled(name, bits, has_avx512)(x)
        assert torch.equal(got.isnan(), usual.isnan())
        torch.testing.assert_close(got, usual, rtol=2.0**-bits, atol=0, equal_nan=True)
        makes_nans = name in ("sin", "cos") or name.startswith("log")
        known = ~got.isnan() if makes_nans else torch.ones_like(x, dtype=torch.bool)
        assert torch.equal(got[known].signbit(), usual[known].signbit())


@pytest.mark.parametrize("name", sorted(ALL))
def test_vectors_of_several_registers_give_the_same_bits(name):
    x = every_value(torch.bfloat16).float()
    text = harness.function_text(
        functools.partial(_called, ALL[name], 12), [FLOAT], FLOAT, lanes=64
    )
    got = harness.run(harness.compile_text(text, 1), [x.numpy()], np.float32, 64)
    expected = compiled(name, 12, harness.HAS_AVX512)(x)
    assert torch.equal(torch.from_numpy(got).view(torch.int32), expected.view(torch.int32))


def test_coefficients_are_the_fits():
    shipped = {
        "exp2, 12 bits": EXP2[12],
        "exp2, 16 bits": EXP2[16],
        "expm1, 12 bits": EXPM1[12],
        "expm1, 16 bits": EXPM1[16],
        "log, 12 bits": LOG[12],
        "log, 16 bits": LOG[16],
        "sine, 12 bits": SINE[12],
        "sine, 16 bits": SINE[16],
        "log2(erfc)": LOG2_ERFC,
    }
    assert shipped.keys() == FITS.keys()
    for name, fit in FITS.items():
        np.testing.assert_allclose(shipped[name], fit.solve()[0], rtol=1e-5)
