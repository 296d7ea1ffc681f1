"""Gradients of tensors that are read in parts are put together once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.support.compiled import sources as sources
from tests.support.compiled import strict as strict
from tests.support.long_cases import pairwise

Function = Callable[[Tensor], Tensor]


def _recurrence(x: Tensor) -> Tensor:
    state = torch.zeros_like(x[:, 0])
    for step in range(x.shape[1]):
        state = torch.tanh(x[:, step] + state * 0.5)
    return state


def _backwards(x: Tensor) -> Tensor:
    state = torch.zeros_like(x[0])
    for step in range(1, x.shape[0] + 1):
        state = state.sigmoid() * x[-step]
    return state


def _gated(x: Tensor) -> Tensor:
    state = torch.zeros_like(x[:, 0])
    for step in range(x.shape[1]):
        gate = torch.sigmoid(x[:, step])
        state = (1 - gate) * state + gate * torch.tanh(x[:, step]) + x[:, step] * 0.1
    return state


FUNCTIONS: dict[str, Function] = {
    "recurrence": _recurrence,
    "backwards": _backwards,
    "several times a step": _gated,
    "several times, with another gradient": lambda x: x.exp().sum(1) * _gated(x),
    "with another gradient": lambda x: _recurrence(x) + x.exp().sum(1),
    "with gaps": lambda x: x[:, 1].exp() * x[:, 3].sin() * x[:, 4].cos(),
    "twice the same": lambda x: x[:, 1].exp() * x[:, 2].sin() * x[:, 1].cos() * x[:, 0],
    "slices": lambda x: (x[:, :2].exp() * x[:, 2:4].sin() * x[:, -2:].cos()).sum(1),
    "overlapping slices": lambda x: (x[:, :2].exp() * x[:, 1:3].sin() * x[:, 4:].cos()).sum(1),
    "steps": lambda x: (x[:, ::3].exp() * x[:, 1::3].sin() * x[:, 2::3].cos()).sum(1),
    "turns": lambda x: (x[:, ::2].exp() * x[:, 1::2].sin()).sum(1),
    "turns and another gradient": lambda x: (x[:, ::2] * x[:, 1::2] + x[:, 1:4]).sum(1) * x[:, 0],
    "turns in other order": lambda x: (x[:, 2::3].exp() * x[:, ::3] * x[:, 1::3]).sum(1),
    "turns, twice": lambda x: (x[:, ::2].exp() * x[:, 1::2].sin() * x[:, ::2]).sum(1),
    "parts of two lengths": lambda x: x[:, 1].exp() * x[:, 1:3].sum(1) * x[:, 1:2].sin()[:, 0],
    "not all turns": lambda x: (x[:, ::3].exp() * x[:, 1::3].sin()).sum(1),
    "turns that end early": lambda x: (x[:, :4:2].exp() * x[:, 1:4:2].sin()).sum(1),
    "pairs": lambda x: x.flatten(1)[:, :4].unflatten(1, (2, 2)).unbind(-1)[0].exp() * x[:, :2, 1],
    "two dimensions": lambda x: x[:, 0].exp().sum() * x[0].sin() * x[:, 1].sum(0) * x[1].cos(),
    "last dimension": lambda x: x[..., 0].exp() * x[..., 1].sin() * x[..., 2].cos() * x[..., 4],
    "two other gradients": lambda x: x.exp().sum(1) + _recurrence(x) + functional.relu(x).sum(1),
}


def _gradient(function: Function, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    function(x).pow(2).sum().backward()
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize(
    ("name", "sizes", "dtype"),
    pairwise(FUNCTIONS, [(9,), (6,), (6, 9)], [torch.bfloat16, torch.float32], count=24),
)
def test_gradients_are_those_of_eager(
    name: str, sizes: tuple[int, ...], dtype: torch.dtype
) -> None:
    """One number of rows is static, and several are one dynamic size."""
    function = FUNCTIONS[name]
    compiled = torch.compile(function, backend="pyfuser", dynamic=len(sizes) > 1)
    for rows in sizes:
        x = torch.randn(rows, 6, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
        exact, expected = _gradient(function, x.double()), _gradient(function, x)
        got = _gradient(compiled, x)
        assert got.dtype is dtype and got.stride() == expected.stride()
        bound = (expected.double() - exact).abs().max() * 4 + 4 * torch.finfo(dtype).eps
        assert (got.double() - exact).abs().max() <= bound * max(1.0, float(exact.abs().max()))


@pytest.mark.parametrize("times", [1, 3])
def test_a_recurrence_makes_its_gradient_once(times: int, sources: list[str]) -> None:
    """Also if it reads each step several times."""

    def function(x: Tensor, weight: Tensor) -> Tensor:
        state = torch.zeros_like(x[:, 0])
        for step in range(8):
            state = torch.tanh(x[:, step] + state @ weight)
            for _ in range(1, times):
                state = state * x[:, step].sigmoid()
        return state

    x = torch.randn(16, 8, 12, requires_grad=True)
    compiled = torch.compile(function, backend="pyfuser", dynamic=False)
    compiled(x, torch.randn(12, 12)).sum().backward()
    assert sources[-1].count("empty((16, 8, 12),") == 1


@pytest.mark.parametrize("places", [2, 3])
def test_parts_that_take_turns_are_rows(places: int, sources: list[str]) -> None:
    """One kernel writes the gradient, and nothing else."""

    def function(x: Tensor) -> Tensor:
        parts = [x[:, place::places].exp() for place in range(places)]
        return torch.stack(parts).sum()

    x = torch.randn(7, 6 * places, requires_grad=True)
    (found,) = torch.autograd.grad(torch.compile(function, backend="pyfuser")(x), x)
    torch.testing.assert_close(found, x.detach().exp())
    assert sources[1].count("_launch") == 1 and "slice_scatter" not in sources[1]
