"""Heads put side by side, for ops that read them as one axis: the copy is part of their kernel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pyfuser import explain
from tests.support.long_cases import pairwise


def merged(x: Tensor) -> Tensor:
    """[batch, heads, length, width] -> [batch, length, heads * width]"""
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)


FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "gate": lambda x, y: merged(x) * torch.sigmoid(y),
    "gate of a chain": lambda x, y: torch.tanh(y * 2 + 1) * merged(x) - 1,
    "bias": lambda x, y: (merged(x) + y[0, 0]) * 2,
    "residual": lambda x, y: merged(x) + y,
    "both merged": lambda x, y: merged(x) * merged(x.exp()) + y.exp(),
    "read again": lambda x, y: (merged(x) * torch.sigmoid(y)) @ y.mT + torch.sigmoid(y).sum(),
    "two gates": lambda x, y: merged(x) * torch.sigmoid(y) * torch.sigmoid(y + 1),
    "a gate of rows": lambda x, y: merged(x) * torch.sigmoid(y[..., :1]),
    "normalised": lambda x, y: torch.softmax(merged(x) * y.sigmoid(), -1),
}


def inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x, y = torch.randn(2, 3, 5, 4).to(dtype), torch.randn(2, 5, 12).to(dtype)
    return x.requires_grad_(), y.requires_grad_()


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize(("name", "dynamic"), pairwise(FUNCTIONS, [False, True], strength=1))
def test_results_and_gradients(name: str, dynamic: bool) -> None:
    function = FUNCTIONS[name]
    compiled = torch.compile(function, backend="pyfuser", dynamic=dynamic)
    results = []
    for run in (function, compiled):
        given = inputs()
        made = run(*given)
        made.square().sum().backward()
        results.append([made, *(each.grad for each in given)])
    for eager, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, eager)
        assert ours.stride() == eager.stride()


@pytest.mark.parametrize(
    "shape", [(2, 5, 1), (2, 1, 12), (1, 5, 12), (5, 12), (12,), (1, 1, 1), ()]
)
def test_gates_that_are_broadcast(shape: tuple[int, ...]) -> None:
    x, y = inputs()[0].detach(), torch.randn(shape, dtype=torch.float64)
    function = FUNCTIONS["gate"]
    compiled = torch.compile(function, backend="pyfuser")
    torch.testing.assert_close(compiled(x, y), function(x, y))
    both = lambda x, y: function(x, y) + (merged(x) * torch.tanh(y)).exp()  # noqa: E731
    torch.testing.assert_close(torch.compile(both, backend="pyfuser")(x, y), both(x, y))


def grouped_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Groups of four normalised elements, and weights of all."""
    groups = x.unflatten(-1, (-1, 4))
    scaled = groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + 1e-5)
    return torch.nn.functional.silu(scaled.flatten(-2) * weight + bias)


# The most kernels, by the shape of a weight.
WEIGHTS: dict[tuple[int, ...], int] = {
    **dict.fromkeys([(12,), (1, 12), (5, 12), (5, 1), (2, 1, 12), (1,)], 1),
    (4, 2, 5, 12): 2,
}


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize(("weight", "dynamic"), pairwise(WEIGHTS, [False, True], strength=1))
def test_weights_that_are_broadcast(weight: tuple[int, ...], dynamic: bool) -> None:
    torch.manual_seed(0)
    x, w, b = (torch.randn(s, dtype=torch.float64) for s in ((2, 5, 12), weight, (12,)))
    given = [each.requires_grad_() for each in (x, w, b)]
    compiled = torch.compile(grouped_norm, backend="pyfuser", dynamic=dynamic)
    results = []
    for run in (grouped_norm, compiled):
        made = run(*given)
        results.append([made, *torch.autograd.grad(made.square().sum(), given)])
    for eager, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, eager)


@pytest.mark.parametrize(("weight", "kernels"), WEIGHTS.items())
def test_kernels_with_weights_that_are_broadcast(weight: tuple[int, ...], kernels: int) -> None:
    given = [torch.randn(s, dtype=torch.float64) for s in ((2, 5, 12), weight, (12,))]
    assert explain(grouped_norm, *given).kernel_count <= kernels


@pytest.mark.parametrize("name", ["gate", "gate of a chain", "residual", "two gates"])
def test_there_is_one_kernel(name: str) -> None:
    x, y = (each.detach() for each in inputs(torch.float32))
    report = explain(FUNCTIONS[name], x, y)
    assert report.kernel_count == 1 and not report.graphs[0].library_calls
