"""Vector math against mpmath (double) and double torch (float): accuracy and special values."""

from __future__ import annotations

import ctypes
import math
import platform
from collections.abc import Callable
from dataclasses import dataclass

import mpmath
import numpy as np
import pytest
import torch

from pyfuser.devices.cpu.llvm_writer import DOUBLE, FLOAT, LLVMType
from pyfuser.devices.cpu.vector_math import VECTOR_MATH
from tests.devices.cpu import vector_math_harness as harness

_UNDERFLOW = 0x10  # FE_UNDERFLOW of x86
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan]


@dataclass(frozen=True)
class Function:
    """One routine: its exact value, torch's, its domain, and further inputs to try."""

    exact: Callable[[mpmath.mpf], mpmath.mpf]
    torch: Callable[[torch.Tensor], torch.Tensor]
    low: float = -math.inf
    high: float = math.inf
    exponents: tuple[float, float] = (-1080.0, 1024.0)
    near: tuple[float, ...] = ()


def _lgamma(x):
    if x == mpmath.floor(x) and x <= 0:
        return mpmath.inf
    if x > 0:
        return mpmath.loggamma(x).real
    return mpmath.log(mpmath.pi / abs(x * mpmath.sinpi(x))) - mpmath.loggamma(-x).real


def _inverse(start: Callable[[float], float], forward: Callable, slope_sign: int) -> Callable:
    """The inverse of `forward` by Newton's method from torch's double result."""

    def value(x):
        y = mpmath.mpf(start(float(x)))
        for _ in range(9):
            slope = slope_sign * 2 / mpmath.sqrt(mpmath.pi) * mpmath.exp(-y * y)
            y -= (forward(y) - x) / slope
        return y

    return value


def _torch_erfinv(x: float) -> float:
    return torch.erfinv(torch.tensor(x, dtype=torch.float64)).item()


def _erfcinv_start(x: float) -> float:
    if 0.5 < x < 1.5:
        return _torch_erfinv(1.0 - x)
    small = min(x, 2.0 - x)
    y = math.sqrt(-math.log(small))
    for _ in range(60):  # fixed point of erfc(y) = small through its asymptotic form
        y = math.sqrt(max(1e-2, -math.log(small * (1 + 2 * y) / 1.128)))
    return y if x < 1 else -y


# Doubles hard for sin, cos and tan: the nearest to multiples of pi / 2.
_QUADRANTS = tuple(float(n) * math.pi / 2 for n in (*range(1, 60), 9973, 65535, 1048577, 2669982))

FUNCTIONS = {
    "exp": Function(mpmath.exp, torch.exp, exponents=(-1080, 10)),
    "exp2": Function(lambda x: mpmath.mpf(2) ** x, torch.exp2, exponents=(-1080, 10)),
    "expm1": Function(mpmath.expm1, torch.expm1, exponents=(-1080, 10)),
    "tanh": Function(mpmath.tanh, torch.tanh, exponents=(-1080, 20)),
    "sinh": Function(mpmath.sinh, torch.sinh, exponents=(-1080, 11)),
    "cosh": Function(mpmath.cosh, torch.cosh, exponents=(-1080, 11)),
    "log": Function(mpmath.log, torch.log, low=0.0, near=(1.0,)),
    "log2": Function(lambda x: mpmath.log(x, 2), torch.log2, low=0.0, near=(1.0,)),
    "log10": Function(mpmath.log10, torch.log10, low=0.0, near=(1.0,)),
    "log1p": Function(mpmath.log1p, torch.log1p, low=-1.0, near=(-1.0,)),
    "asinh": Function(mpmath.asinh, torch.asinh),
    "acosh": Function(mpmath.acosh, torch.acosh, low=1.0, near=(1.0,)),
    "atanh": Function(mpmath.atanh, torch.atanh, -1.0, 1.0, near=(1.0, -1.0)),
    "sin": Function(mpmath.sin, torch.sin, near=_QUADRANTS),
    "cos": Function(mpmath.cos, torch.cos, near=_QUADRANTS),
    "tan": Function(mpmath.tan, torch.tan, near=_QUADRANTS),
    "asin": Function(mpmath.asin, torch.asin, -1.0, 1.0, near=(1.0, -1.0, 0.5)),
    "acos": Function(mpmath.acos, torch.acos, -1.0, 1.0, near=(1.0, -1.0, 0.5)),
    "atan": Function(mpmath.atan, torch.atan, near=(math.tan(math.pi / 8), 1.0)),
    "erf": Function(mpmath.erf, torch.erf, exponents=(-1080, 4), near=(1.0,)),
    "erfc": Function(mpmath.erfc, torch.erfc, -40.0, 40.0, near=(0.5, 26.5)),
    "erfinv": Function(
        _inverse(_torch_erfinv, mpmath.erf, 1), torch.erfinv, -1.0, 1.0, near=(1.0, 0.5)
    ),
    "erfcinv": Function(
        _inverse(_erfcinv_start, mpmath.erfc, -1),
        lambda x: torch.erfinv(1.0 - x),
        0.0,
        2.0,
        near=(1.0, 2.0, 0.5),
    ),
    "lgamma": Function(_lgamma, torch.lgamma, low=-0.5, near=(1.0, 2.0)),
}


def points(function: Function, count: int, seed: int = 0) -> np.ndarray:
    """Log-uniform over the exponents, uniform over common ranges, dense near hard points."""
    rng = np.random.default_rng(seed)
    with np.errstate(over="ignore"):
        wide = np.exp2(rng.uniform(*function.exponents, count)) * rng.choice([-1.0, 1.0], count)
    parts = [wide, *(rng.uniform(-s, s, count // 4) for s in (1.0, 3.0, 12.0, 100.0))]
    for point in function.near:
        offsets = np.exp2(rng.uniform(-53, -1, 1 + count // (4 * len(function.near))))
        parts += [[point], point + offsets, point - offsets]
    values = np.concatenate(parts)
    return values[(values > function.low) & (values < function.high) & np.isfinite(values)]


def rounded(value: mpmath.mpf) -> float:
    """The double nearest to an exact value, subnormals rounded once."""
    if isinstance(value, mpmath.mpc) or mpmath.isnan(value):
        return math.nan
    if mpmath.isinf(value) or value == 0:
        return float(value)
    exponent = max(int(mpmath.frexp(value)[1]) - 53, -1074)
    whole = int(mpmath.nint(mpmath.ldexp(value, -exponent)))
    try:
        return math.ldexp(whole, exponent)
    except OverflowError:
        return math.copysign(math.inf, whole)


def ulps(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Distance in units in the last place of the expected values; 0 if both are the same."""
    with np.errstate(all="ignore"):
        distance = np.abs(got.astype(np.float64) - expected.astype(np.float64))
        distance /= np.spacing(np.abs(expected)).astype(np.float64)
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    return np.where(same, 0.0, np.where(np.isfinite(distance), distance, np.inf))


def compiled(name: str, element, arity: int = 1, **variant: bool):
    types = [element] * arity
    text = harness.function_text(VECTOR_MATH[name], types, element, **variant)
    kernel = harness.compile_text(text, arity)
    numpy_type = np.float32 if element is FLOAT else np.float64
    return lambda *inputs: harness.run(
        kernel, [np.asarray(array, numpy_type) for array in inputs], numpy_type
    )


def assert_within(got: np.ndarray, expected: np.ndarray, limit: float, *inputs: np.ndarray) -> None:
    error = ulps(got, expected)
    worst = int(np.argmax(error))
    assert error[worst] <= limit, (
        f"{error[worst]} ulp at {[x[worst] for x in inputs]}: {got[worst]} for {expected[worst]}"
    )


def exact_values(function: Callable, *inputs: np.ndarray) -> np.ndarray:
    with mpmath.workprec(160):
        return np.array(
            [rounded(function(*map(mpmath.mpf, row))) for row in zip(*inputs, strict=True)]
        )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_double_is_within_4_ulp(name):
    function = FUNCTIONS[name]
    x = points(function, 400)
    assert_within(compiled(name, DOUBLE)(x), exact_values(function.exact, x), 4, x)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_float_is_within_2_ulp(name):
    function = FUNCTIONS[name]
    low, high = (max(-160.0, function.exponents[0]), min(128.0, function.exponents[1]))
    in_float = Function(
        function.exact, function.torch, function.low, function.high, (low, high), function.near
    )
    x = points(in_float, 1 << 16, seed=1).astype(np.float32)
    x = x[(x > function.low) & (x < function.high)]
    if name == "erfcinv":  # torch has none, and 1 - x cancels: mpmath for a few
        x = x[:: x.size // 1500]
        expected = exact_values(function.exact, x.astype(np.float64))
    else:
        expected = function.torch(torch.from_numpy(x).double()).numpy()
    with np.errstate(over="ignore"):
        assert_within(compiled(name, FLOAT)(x), expected.astype(np.float32), 2, x)


@pytest.mark.parametrize("element", [FLOAT, DOUBLE], ids=str)
@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - {"erfcinv"}))
def test_special_values_are_those_of_torch(name, element):
    function = FUNCTIONS[name]
    tiny = 1e-45 if element is FLOAT else 5e-324
    numpy_type = np.float32 if element is FLOAT else np.float64
    x = np.array([*SPECIAL, 1.0, -1.0, 2.0, -2.0, tiny, -tiny], numpy_type)
    got = compiled(name, element)(x)
    expected = function.torch(torch.from_numpy(x)).numpy()
    assert_within(got, expected, 4 if element is DOUBLE else 2, x)
    zero = (got == 0) & (expected == 0)
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(expected[zero]))


def test_erfcinv_special_values():
    got = compiled("erfcinv", DOUBLE)([0.0, 1.0, 2.0, -0.5, 2.5, math.nan])
    np.testing.assert_array_equal(got, [math.inf, 0.0, -math.inf, math.nan, math.nan, math.nan])


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_machines_without_fma_are_as_accurate(name):
    function = FUNCTIONS[name]
    x = points(function, 100, seed=2)
    got = compiled(name, DOUBLE, has_fma=False)(x)
    assert_within(got, exact_values(function.exact, x), 4, x)
    with np.errstate(over="ignore"):
        x = x.astype(np.float32)
    x = x[np.isfinite(x) & (x > function.low) & (x < function.high)]
    expected = exact_values(function.exact, x.astype(np.float64))
    with np.errstate(over="ignore"):
        assert_within(compiled(name, FLOAT, has_fma=False)(x), expected.astype(np.float32), 2, x)


@pytest.mark.skipif(not harness.HAS_AVX512, reason="needs AVX-512")
@pytest.mark.parametrize("name", ["exp", "exp2", "sinh", "cosh", "erfc"])
def test_avx512_scaling_gives_the_same_bits_or_rounds_once(name):
    x = points(FUNCTIONS[name], 4000, seed=3)
    x = np.concatenate([x, np.linspace(-760, 760, 4001), SPECIAL])
    for element in (FLOAT, DOUBLE):
        plain = compiled(name, element, has_avx512=False)(x)
        assert_within(compiled(name, element, has_avx512=True)(x), plain, 1, x)


def test_lgamma_left_of_zero():
    rng = np.random.default_rng(4)
    x = np.concatenate([rng.uniform(-40, -0.5, 600), rng.uniform(-4, -0.5, 600)])
    got = compiled("lgamma", DOUBLE)(x)
    expected = exact_values(_lgamma, x)
    # Near the zeros two terms cancel: the error is a few units of their size.
    assert np.all(np.abs(got - expected) <= 4 * np.spacing(np.abs(expected) + 8.0))
    x = x.astype(np.float32)
    expected = exact_values(_lgamma, x.astype(np.float64)).astype(np.float32)
    assert_within(compiled("lgamma", FLOAT)(x), expected, 2, x)


def _pairs(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    a = np.exp2(np.concatenate([rng.uniform(-1074, 1023, count), rng.uniform(-1, 1, count)]))
    return a, rng.uniform(-1.05, 1.05, 2 * count) * 745 / np.abs(np.log(a))


def test_pow_over_the_whole_range():
    a, b = _pairs(5, 600)
    expected = exact_values(lambda x, y: x**y, a, b)
    assert_within(compiled("pow", DOUBLE, 2)(a, b), expected, 4, a, b)
    assert_within(compiled("pow", DOUBLE, 2, has_fma=False)(a, b), expected, 4, a, b)
    rng = np.random.default_rng(6)
    a, b = rng.uniform(0, 50, 1 << 16), rng.uniform(-24, 24, 1 << 16)
    a, b = a.astype(np.float32), b.astype(np.float32)
    with np.errstate(over="ignore"):
        expected = np.power(a.astype(np.float64), b.astype(np.float64)).astype(np.float32)
    assert_within(compiled("pow", FLOAT, 2)(a, b), expected, 2, a, b)


SPECIAL_PAIRS = np.array(
    [*SPECIAL, 1, -1, 5e-324, -5e-324, 1e308, -1e308, 0.5, -0.5, 2, -2, 3, -3, 1.5, -7, 7]
    + [2.0**53 - 1, -(2.0**53) + 1, 2.0**53, 4503599627370497.0, 1e300]
)


@pytest.mark.parametrize("element", [FLOAT, DOUBLE], ids=str)
@pytest.mark.parametrize("name", ["pow", "atan2", "fmod", "nextafter"])
def test_special_pairs(name, element):
    # As in C, and so in numpy, with which torch agrees where its vector code is exact.
    reference = {"pow": np.power, "atan2": np.arctan2, "fmod": np.fmod, "nextafter": np.nextafter}
    numpy_type = np.float32 if element is FLOAT else np.float64
    with np.errstate(all="ignore"):
        values = SPECIAL_PAIRS.astype(numpy_type)
        a, b = (grid.ravel().copy() for grid in np.meshgrid(values, values))
        expected = reference[name](a, b)
    got = compiled(name, element, 2)(a, b)
    assert_within(got, expected, 0 if name in ("fmod", "nextafter") else 2, a, b)
    np.testing.assert_array_equal(
        np.signbit(got[~np.isnan(got)]), np.signbit(expected[~np.isnan(got)])
    )


@pytest.mark.parametrize("has_fma", [True, False])
@pytest.mark.parametrize("element", [FLOAT, DOUBLE], ids=str)
def test_fmod_is_exact(element, has_fma):
    rng = np.random.default_rng(7)
    numpy_type = np.float32 if element is FLOAT else np.float64
    a = (rng.uniform(-1, 1, 40000) * np.exp2(rng.uniform(-100, 100, 40000))).astype(numpy_type)
    near = a[:10000] * rng.uniform(0.01, 1.0, 10000)
    multiples = a[10000:20000] / rng.integers(1, 1 << 20, 10000)
    far = np.exp2(rng.uniform(-100, 100, 20000))
    b = np.concatenate([near, multiples, far]).astype(numpy_type)
    got = compiled("fmod", element, 2, has_fma=has_fma and harness.HAS_FMA)(a, b)
    np.testing.assert_array_equal(got, np.fmod(a, b))


def test_atan2_is_within_4_ulp():
    rng = np.random.default_rng(8)
    y = np.exp2(rng.uniform(-1074, 1023, 1200)) * rng.choice([-1.0, 1.0], 1200)
    x = y * rng.uniform(-10, 10, 1200)
    x[::2] = np.exp2(rng.uniform(-1074, 1023, 600)) * rng.choice([-1.0, 1.0], 600)
    x[~np.isfinite(x)] = 1.0
    assert_within(compiled("atan2", DOUBLE, 2)(y, x), exact_values(mpmath.atan2, y, x), 4, y, x)


@pytest.mark.parametrize("exponent", [1.0, 2.0, 3.0, -1.0])
def test_pow_with_a_literal_exponent(exponent):
    def body(w, x):
        return VECTOR_MATH["pow"](w, x, w.constant(exponent, x.type))

    kernel = harness.compile_text(harness.function_text(body, [DOUBLE], DOUBLE), 1)
    x = np.array([*SPECIAL, 1.5, -1.5, 1e200, -1e-200, 3.7])
    with np.errstate(all="ignore"):
        assert_within(harness.run(kernel, [x], np.float64), x**exponent, 1, x)


def test_powers_of_two_and_ten_are_exact():
    n = np.arange(-1074, 1024, dtype=np.float64)
    np.testing.assert_array_equal(compiled("exp2", DOUBLE)(n), np.exp2(n))
    np.testing.assert_array_equal(compiled("log2", DOUBLE)(np.exp2(n)), n)
    n = n[(n >= -149) & (n < 128)]
    np.testing.assert_array_equal(compiled("exp2", FLOAT)(n), np.exp2(n))
    np.testing.assert_array_equal(compiled("log2", FLOAT)(np.exp2(n)), n)
    tens = np.arange(0, 10, dtype=np.float64)
    np.testing.assert_array_equal(compiled("log10", FLOAT)(10.0**tens), tens)


@pytest.mark.parametrize("lanes", [1, 2, 8, 32])
@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - {"erfinv", "erfcinv"}))
def test_any_number_of_lanes_gives_the_same_bits(name, lanes):
    x = np.concatenate([points(FUNCTIONS[name], 64, seed=9), SPECIAL])
    with np.errstate(over="ignore"):
        x = x.astype(np.float32)
    text = harness.function_text(VECTOR_MATH[name], [FLOAT], FLOAT, lanes=lanes)
    got = harness.run(harness.compile_text(text, 1), [x], np.float32, lanes)
    assert_within(got, compiled(name, FLOAT)(x), 0 if not harness.HAS_AVX512 else 1, x)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="asks for the flags of x86")
@pytest.mark.parametrize("has_avx512", [False, harness.HAS_AVX512])
@pytest.mark.parametrize("type", [FLOAT, DOUBLE], ids=str)
@pytest.mark.parametrize("name", ["exp", "exp2"])
def test_masked_elements_underflow_nowhere(name: str, type: LLVMType, has_avx512: bool) -> None:
    """An operation that underflows takes as long as 60 others."""
    text = harness.function_text(
        VECTOR_MATH[name], [type], type, has_avx512=has_avx512, lanes=512 // type.bits
    )
    function = harness.compile_text(text, 1)
    masked = [-1.1e3, -2000.0, -1e4, -1e9, -3.4e38, -math.inf]
    x = np.array(masked * 8, np.float64 if type == DOUBLE else np.float32)
    out = np.full_like(x, math.nan)
    chunks = x.nbytes // 64
    math_library = ctypes.CDLL(None)
    math_library.feclearexcept(_UNDERFLOW)
    function(out.ctypes.data, x.ctypes.data, chunks)
    assert not math_library.fetestexcept(_UNDERFLOW)
    assert not out.any()
