"""Repeats along an axis: what reads them is computed with an axis for the repetitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from pyfuser.torch_compile.explain import explain
from tests.support.long_cases import pairwise

pytestmark = pytest.mark.usefixtures("poison")

Function = Callable[[Tensor, Tensor], object]


def along_rows(x: Tensor, b: Tensor) -> Tensor:
    return x * b.repeat(1, 4)


def both_axes(x: Tensor, b: Tensor) -> Tensor:
    return (x[:64] + b[:8].repeat(8, 4)).relu() * 2


def of_images(x: Tensor, b: Tensor) -> Tensor:
    images = x.view(4, -1, *x.shape[1:])
    return images * 0.2 + (b[:8].tile(images.shape[1] // 8, 4) - 0.375) / 8


def several_readers(x: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    repeated = b.repeat(1, 4)
    return x * repeated, repeated.tanh(), x.mean(1, keepdim=True) - repeated


def of_computed(x: Tensor, b: Tensor) -> Tensor:
    return torch.exp(-x.abs()) * b.square().repeat(1, 4) + x


def of_a_norm(x: Tensor, b: Tensor) -> Tensor:
    return torch.softmax(x, -1) * b.repeat(1, 4)


def before_a_norm(x: Tensor, b: Tensor) -> Tensor:
    return torch.softmax(x * b.repeat(1, 4), -1)


def of_transposed(x: Tensor, b: Tensor) -> Tensor:
    return x.t().contiguous().t() + b.t().contiguous().t().repeat(1, 4)


def of_two_repeats(x: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return b.repeat(1, 4) * (b + 1).repeat(1, 4), b.repeat(2, 4) - b[:1, :1].repeat(1, 4)[:, :1]


def of_a_weight(x: Tensor, b: Tensor) -> Tensor:
    return x * b[0].repeat(4)


def returned(x: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    repeated = b.repeat(1, 4)
    return repeated, x - repeated


FUNCTIONS: list[Function] = [
    along_rows, both_axes, of_images, several_readers, of_computed, of_a_norm, before_a_norm,
    of_transposed, of_two_repeats, of_a_weight, returned,
]  # fmt: skip


def results(function: Function, x: Tensor, b: Tensor) -> list[Tensor]:
    """Those of a function and the gradients of their sum."""
    x, b = x.detach().requires_grad_(), b.detach().requires_grad_()
    made = function(x, b)
    outputs: Sequence[Tensor] = made if isinstance(made, tuple) else [made]
    total = torch.stack([each.float().mul(0.1).sin().sum() for each in outputs]).sum()
    gradients = torch.autograd.grad(total, [x, b], allow_unused=True)
    return [each.detach() for each in (*outputs, *gradients) if each is not None]


@pytest.mark.parametrize(
    ("function", "dtype", "dynamic"),
    pairwise(FUNCTIONS, [torch.float32, torch.bfloat16], [False, True], strength=1),
)
def test_what_reads_repeats(function: Function, dtype: torch.dtype, dynamic: bool) -> None:
    compiled = torch.compile(function, backend="pyfuser", dynamic=dynamic)
    for rows, size in ((128, 64), (128, 37), (64, 2), (128, 1)):
        torch.manual_seed(0)
        x, b = torch.randn(rows, 4 * size), torch.randn(rows, size)
        x, b = x.to(dtype), b.to(dtype)
        for got, wanted in zip(results(compiled, x, b), results(function, x, b), strict=True):
            tolerance = 1e-5 if dtype is torch.float32 else 2e-2
            torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance * 10)


@pytest.mark.cpu
@pytest.mark.parametrize("function", [along_rows, both_axes, of_images, of_computed])
def test_no_call_repeats(function: Function) -> None:
    x, b = torch.randn(512, 256), torch.randn(512, 64)
    (graph,) = explain(function, x, b).graphs
    assert len(graph.regions) == 1
    assert all("view" in op for op, _ in graph.outside)


@pytest.mark.cpu
def test_a_weight_is_repeated_once_for_all_rows() -> None:
    (graph,) = explain(of_a_weight, torch.randn(512, 256), torch.randn(1, 64)).graphs
    assert len(graph.regions) == 1


@pytest.mark.parametrize("dynamic", [False, True])
def test_repeats_of_what_the_forward_keeps_for_the_backward(dynamic: bool) -> None:
    """The forward reads it rounded, as it stores it; not in the kernel that stores it."""

    def function(x: Tensor, b: Tensor) -> Tensor:
        kept = b.sigmoid()
        return torch.stack([kept.repeat(1, 4) * x, x - kept.repeat(1, 4)], 1)

    torch.manual_seed(0)
    x, b = (torch.randn(size, 64).bfloat16().t() for size in (256, 64))
    compiled = torch.compile(function, backend="pyfuser", dynamic=dynamic)
    for got, wanted in zip(results(compiled, x, b), results(function, x, b), strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-2, atol=0.1)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_repeated_axis_is_as_long_as_the_one_that_it_is_stored_in(dynamic: bool) -> None:
    """A kernel that only repeats knows that, too."""

    def function(x: Tensor, b: Tensor) -> Tensor:
        copy = x.clone()
        copy[1:] = b.repeat(1, 4)[:-1] * 2
        return copy

    compiled = torch.compile(function, backend="pyfuser", dynamic=dynamic)
    for rows, size in ((16, 8), (37, 7), (1, 3), (16, 1)):
        x, b = torch.randn(rows, 4 * size), torch.randn(rows, size)
        assert torch.equal(compiled(x, b), function(x, b))
