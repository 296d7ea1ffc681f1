"""Every dtype, NaN and infinities through compiled functions, each case against eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.support.compiled import BACKEND, assert_as_close_as_eager
from tests.support.compiled import strict as strict

from .calls import check


def whole_numbers(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return (
        x * 3 + y,
        torch.maximum(x, y) - 1,
        (x & y) ^ (x | 1),
        x > y,
        torch.where(x >= y, x, y).sum(1),
        x.float() / 2,
        torch.div(x, 3, rounding_mode="floor"),
    )


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str
)
def test_whole_numbers(dtype: torch.dtype) -> None:
    least = 0 if dtype == torch.uint8 else -100
    check(whole_numbers, lambda: [torch.randint(least, 100, (5, 7)).to(dtype) for _ in range(2)])


def test_truth_values() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x & ~y, x ^ y, x.sum(1), (x | y).any(), x.all(0), x + y, torch.where(x, 1.5, 2.5)

    check(function, lambda: [torch.rand(5, 7) > 0.5 for _ in range(2)])


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_numbers(dtype: torch.dtype) -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        z = x * y.conj() + 1j
        return z, z.abs() * 2, z.real.sin() + z.imag, torch.view_as_real(z) + 1

    check(function, lambda: [torch.randn(5, 7, dtype=dtype) for _ in range(2)])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_fractions(dtype: torch.dtype) -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        z = torch.softmax(x * 0.3 + y, -1)
        return z, (z - z.mean()) * y.sigmoid(), x.sum(1), x.amax(0) * 2, (x - 1).exp().clamp(0, 3)

    torch.manual_seed(0)
    inputs = [torch.randn(9, 33).to(dtype) for _ in range(2)]
    compiled = torch.compile(function, backend=BACKEND, fullgraph=True)
    got, eager, exact = (
        {str(number): each for number, each in enumerate(call(*given))}
        for call, given in (
            (compiled, inputs),
            (function, inputs),
            (function, [each.double() for each in inputs]),
        )
    )
    assert_as_close_as_eager(got, eager, exact)


def test_comparisons_in_half_precision_see_rounded_values() -> None:
    def function(x: Tensor) -> Tensor:
        y = x * 1.1
        return (y == y.amax(-1, keepdim=True)).sum(-1), (y > x).sum()

    check(function, lambda: [torch.randn(64, 200).bfloat16()])


def less_converted(x: Tensor) -> Tensor:
    y = x * 1.7
    return (y.flatten().float() - y.flatten()) * 100


def root_of_fraction(x: Tensor) -> Tensor:
    y = x * 1.7
    return (y - y.floor()).sqrt()


def root_where_it_is_real(x: Tensor) -> Tensor:
    y = x * 1.7
    return torch.where(y <= 1, (1 - y).sqrt(), 0.0)


def places_of_wholes(x: Tensor) -> Tensor:
    y = x * 1.7
    return (y.t() == y.t().round()) & (y.t() - y.t().round() != 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "function", [less_converted, root_of_fraction, root_where_it_is_real, places_of_wholes]
)
def test_all_readers_of_a_rounded_value_read_the_same(
    function: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    """One that asks for the number that torch has, beside one that computes with it."""
    torch.manual_seed(0)
    x = torch.rand(64, 100).to(dtype)
    got = torch.compile(function, backend=BACKEND, fullgraph=True)(x)
    torch.testing.assert_close(got, function(x), rtol=1e-2, atol=4e-3)


def test_dtypes_meet_as_in_eager() -> None:
    def function(x: Tensor, y: Tensor, n: Tensor, scalar: Tensor) -> tuple[Tensor, ...]:
        return x + y, n * x, n + 1.5, x * scalar, n / n, torch.where(n > 0, x, 0.0), y.int() + n

    check(
        function,
        lambda: [
            torch.randn(4, 3).bfloat16(),
            torch.randn(4, 3),
            torch.randint(1, 9, (4, 3)),
            torch.tensor(0.1, dtype=torch.float64),
        ],
    )


def test_nan_and_infinity_stay() -> None:
    values = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-40, 3e38]

    def function(x: Tensor) -> tuple[Tensor, ...]:
        return x * 2, x.relu(), x.exp(), x.amax(), x.sum(), x.isnan(), x / x, x.clamp(-1, 1)

    check(function, lambda: [torch.tensor(values)])


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32])
def test_integers_without_kernels_are_compared_by_torch(dtype: torch.dtype) -> None:
    def program(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x == 3, torch.where(y > 0, x, x), y * 2

    x, y = torch.arange(6).to(dtype), torch.randn(6)
    torch.testing.assert_close(torch.compile(program, backend=BACKEND)(x, y), program(x, y))
