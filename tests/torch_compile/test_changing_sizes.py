"""Compiled functions with changing sizes and numbers: sizes that depend on others, broadcasts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pyfuser.profiling import Recorder, recording
from tests.support.compiled import BACKEND
from tests.support.compiled import strict as strict


def chunks(x: Tensor) -> Tensor:
    """The last chunk of seven elements is shorter, and broadcasts."""
    _, middle, last = x.chunk(3)
    return middle * 2 - last


def expanded(x: Tensor) -> Tensor:
    return x.exp()[:-1:3].expand(2, 2, -1).erf()


def expanded_where_it_is_one(x: Tensor) -> Tensor:
    return x.exp()[:-1:3].expand(4).erf()


def beside_another(x: Tensor) -> Tensor:
    return x[1::4].exp() + x


def summed(x: Tensor) -> Tensor:
    return (x[1::4].sin().expand_as(x) * x).sum()


def repeated_as_often_as_long(x: Tensor) -> Tensor:
    return x.repeat(2, x.shape[0]).softmax(1) - x.exp().repeat(x.shape[0])


@pytest.mark.parametrize(
    ("function", "sizes"),
    [
        (repeated_as_often_as_long, (4, 5, 3)),
        (chunks, (7, 3, 9, 7)),
        (expanded, (2, 4, 5, 11, 2)),
        (expanded_where_it_is_one, (3, 4, 12, 2)),
        (beside_another, (4, 5, 3)),
        (summed, (4, 5, 3)),
    ],
)
def test_a_size_that_follows_from_others_and_is_one(
    function: Callable[[Tensor], Tensor], sizes: tuple[int, ...]
) -> None:
    compiled = torch.compile(function, backend=BACKEND, dynamic=True, fullgraph=True)
    for size in sizes:
        x = torch.randn(size)
        got, expected = compiled(x), function(x)
        torch.testing.assert_close(got, expected)
        assert got.stride() == expected.stride()


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (lambda x, number: number // x, torch.float32),
        (lambda x, number: number // x, torch.float16),
        (lambda x, number: x // number, torch.uint8),
        (lambda x, number: torch.add(x, x, alpha=number), torch.bool),
    ],
    ids=["floor_of_float32", "floor_of_float16", "floor_by_a_wrapped_number", "true_times"],
)
def test_a_number_that_changes_has_the_dtype_of_the_tensor(
    function: Callable[[Tensor, int], Tensor], dtype: torch.dtype
) -> None:
    compiled = torch.compile(function, backend=BACKEND)
    x = torch.arange(1, 8).to(dtype)
    for number in (2, -1, 3, 100, -2):
        assert torch.equal(compiled(x, number), function(x, number))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, number: x == number,
        lambda x, number: number < x,
        lambda x, number: x % number,
        lambda x, number: number // x,
        lambda x, number: torch.div(x, number, rounding_mode="trunc"),
    ],
    ids=["equal", "less", "remainder", "floor", "trunc"],
)
def test_a_number_that_changes_is_rounded_as_the_tensor_was(
    function: Callable[[Tensor, float], Tensor], dtype: torch.dtype
) -> None:
    compiled = torch.compile(function, backend=BACKEND)
    for numbers in ((257, 2049, 3001, 4099), (0.1, 0.3, 1.7, 0.01)):
        for number in numbers:
            x = torch.tensor([number, number / 2, number * 1.5]).to(dtype)
            assert torch.equal(compiled(x, number), function(x, number))
            scalar = torch.tensor(number)
            assert torch.equal(compiled(x, scalar), function(x, scalar))


def test_integers_to_a_negative_number_that_changes_are_refused_as_in_eager() -> None:
    compiled = torch.compile(lambda x, power: x**power, backend=BACKEND)
    x = torch.arange(1, 5)
    for power in (2, 3):
        assert torch.equal(compiled(x, power), x**power)
    with pytest.raises(RuntimeError, match="Integers to negative integer powers"):
        compiled(x, -1)


def a_view(x: Tensor, number: float) -> tuple[Tensor, Tensor]:
    y = x * number
    return y, y[1:]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, number: (x * number).expand(2, 5, 3),
        lambda x, number: x.sum() * number,
        lambda x, number: torch.broadcast_to(x.sum() / number, (3,)),
        lambda x, number: (x * number).t()[1:].unsqueeze(0),
        lambda x, number: (x * number).split(2)[1],
        a_view,
    ],
)
def test_views_of_a_product_with_a_number_that_changes(
    function: Callable[[Tensor, float], Tensor | tuple[Tensor, ...]],
) -> None:
    """torch replaces the product after the views have been traced."""
    compiled = torch.compile(function, backend=BACKEND, fullgraph=True)
    for number in (0.5, 0.7, 0.9):
        x = torch.rand(5, 3, requires_grad=True)
        made = []
        for call in (function, compiled):
            found = call(x, number)
            results = found if isinstance(found, tuple) else (found,)
            gradients = torch.autograd.grad(sum(each.square().sum() for each in results), x)
            storages = {each.untyped_storage().data_ptr() for each in results}
            made.append(([*results, *gradients], len(storages)))
        (expected, count), (got, own_count) = made
        torch.testing.assert_close(got, expected)
        assert [each.stride() for each in got] == [each.stride() for each in expected]
        assert own_count == count


@pytest.mark.parametrize(
    "function",
    [
        torch.nn.functional.elu,
        torch.nn.functional.celu,
        lambda x, number: x.var(0, correction=number),
        lambda x, number: x.std(1, correction=number - 1),
    ],
)
def test_an_integer_that_changes_is_a_factor_or_a_correction(
    function: Callable[[Tensor, int], Tensor],
) -> None:
    compiled = torch.compile(function, backend=BACKEND)
    for number in (1, 2, 3):
        x = torch.randn(5, 7, requires_grad=True)
        expected, got = function(x, number), compiled(x, number)
        torch.testing.assert_close(got, expected)
        gradients = (torch.autograd.grad(each.sum(), x)[0] for each in (got, expected))
        torch.testing.assert_close(*gradients)


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_gradient_of_a_mean_of_any_size_is_one_kernel(dtype: torch.dtype) -> None:
    """The factor 2 / count is computed in it, from the sizes."""

    def step(function: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
        leaves = [each.detach().requires_grad_() for each in inputs]
        loss = function(*leaves)
        return loss.detach(), *torch.autograd.grad(loss, leaves)

    compiled = torch.compile(functional.mse_loss, backend=BACKEND, dynamic=True)
    recorder = Recorder()
    with recording(recorder):
        for rows in (5, 3, 7, 3):
            recorder.calls.clear()
            inputs = [torch.randn(rows, 4, 6).to(dtype) for _ in range(2)]
            found = step(compiled, *inputs)
            torch.testing.assert_close(found, step(functional.mse_loss, *inputs))
            assert [len(each.parts) for each in recorder.calls] == [1, 1]


@pytest.mark.parametrize("dims", [1, 2])
def test_factors_of_many_elements_are_doubles(dims: int) -> None:
    """Float32 has no 2^24 + 1; all elements are one."""
    compiled = torch.compile(functional.mse_loss, backend=BACKEND, dynamic=True)
    for size in (7, 2**24 + 1):
        shape = (1, size)[-dims:] if size > 7 else (3, size)[-dims:]
        x = torch.ones(1, dtype=torch.float64).expand(shape).requires_grad_()
        y = torch.zeros(1, dtype=torch.float64).expand(shape)
        (gradient,) = torch.autograd.grad(compiled(x, y), x)
        assert gradient.flatten()[0].item() == 2 / x.numel()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x / x.shape[0],
        lambda x: x * (x.shape[0] // 2),
        lambda x: x * (x.shape[0] + 2) ** 0.5,
        lambda x: x * (1 / (3 * x.shape[0] - 1)),
        lambda x: (x * 3).clamp(max=x.shape[0] / 7) - x.shape[0] % 5,
    ],
    ids=["quotient", "half", "root", "inverse", "limit"],
)
def test_numbers_made_of_sizes_are_doubles(function: Callable[[Tensor], Tensor]) -> None:
    compiled = torch.compile(function, backend=BACKEND, dynamic=True)
    for size in (7, 2**24 + 3):
        x = torch.ones(1, dtype=torch.float64).expand(size)
        torch.testing.assert_close(compiled(x)[:5], function(x)[:5], rtol=1e-15, atol=0)
