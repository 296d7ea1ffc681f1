"""Gradients of views, of changes in place and of what overlaps, each case against eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.support.compiled import BACKEND
from tests.support.compiled import strict as strict

from .calls import assert_same, flat


def gradients(function: Callable[..., Any], leaves: Sequence[Tensor]) -> list[Tensor | None]:
    """Of the sum of all float outputs, weighted so that no two elements count the same."""
    total = torch.zeros(())
    for output in flat(function(*leaves)):
        weights = torch.linspace(0.5, 1.5, output.numel()).view(output.shape)
        total = total + (output * weights).sum()
    return list(torch.autograd.grad(total, leaves, allow_unused=True))


def of_views(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x[1:].sigmoid() * y.t()[1:], x.expand(2, *x.shape).tanh()


def of_inputs_given_back(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x, x * y, y.view(-1)


def of_one_input_only(x: Tensor, y: Tensor) -> Tensor:
    return x.softmax(-1) * y.detach().t()


def of_a_change_in_place(x: Tensor, y: Tensor) -> Tensor:
    z = x * 1
    z[0].mul_(y[:, 0])
    z.add_(y.t())
    return z.exp()


def of_something_empty(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([x[:0], (x * y.t()).sum(0, keepdim=True)])


def of_losses_of_nothing(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    none, target = x[:0], y[:0].detach()
    losses = (functional.mse_loss, functional.smooth_l1_loss, functional.huber_loss)
    return tuple(loss(none, target, reduction="mean").nan_to_num() for loss in losses)


@pytest.mark.parametrize(
    "function",
    [
        *(of_views, of_inputs_given_back, of_one_input_only, of_a_change_in_place),
        *(of_something_empty, of_losses_of_nothing),
    ],
)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_gradients_are_eager_s(function: Callable[..., Any], dynamic: bool) -> None:
    compiled = torch.compile(function, backend=BACKEND, dynamic=dynamic, fullgraph=True)
    for seed in range(2):
        torch.manual_seed(seed)
        leaves = [torch.randn(4, 4, requires_grad=True) for _ in range(2)]
        for got, expected in zip(
            gradients(compiled, leaves), gradients(function, leaves), strict=True
        ):
            assert (got is None) == (expected is None)
            if expected is not None:
                assert_same(got, expected)


@pytest.mark.parametrize("rematerialise", [False, True], ids=["all_saved", "min_cut"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_gradients_read_the_old_value_of_an_updated_buffer(
    dynamic: bool, rematerialise: bool
) -> None:
    def program(x: Tensor, weight: Tensor, mean: Tensor) -> Tensor:
        y = torch.sin(weight * mean.clone()) * x + mean[1:].clone().sum() * weight.exp()
        with torch.no_grad():
            mean.mul_(0.9).add_(x.detach().mean(0))
        return y.exp()

    compiled = torch.compile(
        program, backend=BACKEND, dynamic=dynamic, options={"rematerialise": rematerialise}
    )
    for rows in (3, 4, 7):
        x, weight, mean = (torch.randn(s, requires_grad=s != 5) for s in ((rows, 5), (1, 5), 5))
        ours, eagers = (
            torch.autograd.grad(call(x, weight, mean.clone()).sum(), [x, weight])
            for call in (compiled, program)
        )
        torch.testing.assert_close(ours, eagers, rtol=1e-4, atol=1e-4)  # exp amplifies rounding


def added_to_behind_autograd(x: Tensor) -> Tensor:
    y = x + x
    x.detach().add_(1)
    return y.sin()


def normalised_behind_autograd(x: Tensor) -> Tensor:
    y = (x * 2).t().sin()
    x.data.copy_(x.data / x.data.norm())
    return y


def a_view_behind_autograd(x: Tensor) -> Tensor:
    y = (x.view(-1)[1:] * 2).sin()
    x.detach().view(-1)[:3].zero_()
    return y


@pytest.mark.parametrize(
    "program", [added_to_behind_autograd, normalised_behind_autograd, a_view_behind_autograd]
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_leaf_is_updated_after_it_was_used(
    program: Callable[[Tensor], Tensor], dynamic: bool
) -> None:
    """AOTAutograd updates it after the forward, so that the backward can't recompute from it."""
    found = []
    for call in (program, torch.compile(program, backend=BACKEND, dynamic=dynamic)):
        x = torch.linspace(-1, 1, 20).view(5, 4).requires_grad_()
        call(x).sum().backward()
        found.append((x.grad, x.detach()))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_of_results_that_overlap(dynamic: bool) -> None:
    def windows(x: Tensor) -> tuple[Tensor, Tensor]:
        return (x * 2).unfold(0, 3, 1), x.sin().as_strided((4, 2), (1, 1))

    gradients = []
    for function in (windows, torch.compile(windows, backend=BACKEND, dynamic=dynamic)):
        x = torch.arange(12.0, requires_grad=True)
        results = function(x)
        weights = [torch.arange(y.numel(), dtype=y.dtype).view(y.shape) for y in results]
        gradients += torch.autograd.grad(results, x, weights)
    torch.testing.assert_close(*gradients)


def test_gradients_reach_the_base_of_a_view_that_is_changed() -> None:
    def change(x: Tensor, y: Tensor) -> Tensor:
        x.add_(y.exp())
        return x.sin()

    def run(call: Callable[..., Tensor]) -> list[Tensor]:
        torch.manual_seed(0)
        base = torch.randn(6, 5, requires_grad=True)
        y = torch.randn(4, 5, requires_grad=True)
        held = base.clone()
        call(held[1:5], y).sum().backward()
        assert base.grad is not None and y.grad is not None
        return [base.grad, y.grad, held.detach()]

    compiled = torch.compile(change, backend=BACKEND, fullgraph=True)
    for got, expected in zip(run(compiled), run(change), strict=True):
        assert_same(got, expected)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.expand_as(x),
        lambda x: x[:, None].transpose(0, 1)[..., 1:],
        lambda x: x.split(3, 1)[1],
        lambda x: x.reshape(-1)[2:].view(-1, 1),
    ],
)
@pytest.mark.parametrize("is_expanded", [False, True])
def test_gradients_of_views_of_an_input(
    view: Callable[[Tensor], Tensor], dynamic: bool, is_expanded: bool
) -> None:
    """Autograd derives the gradient of such a result itself, from what the result says it is."""

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        return view(x), x.cumsum(1)

    x = torch.randn(6, 1).expand(6, 6) if is_expanded else torch.randn(6, 6)
    x = x.detach().requires_grad_()
    compiled = torch.compile(program, backend=BACKEND, dynamic=dynamic)
    expected = program(x)
    weights = [torch.arange(1.0 * y.numel()).view(y.shape) for y in expected]
    (ours,) = torch.autograd.grad(compiled(x), x, weights)
    (eagers,) = torch.autograd.grad(expected, x, weights)
    torch.testing.assert_close(ours, eagers)


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_view_that_is_an_operand_and_kept_for_the_backward(dynamic: bool | None) -> None:
    """The graph calls its nodes by names that the wrapper's functions must not have."""

    def program(x: Tensor) -> Tensor:
        return x @ x.transpose(1, 2)

    compiled = torch.compile(program, backend=BACKEND, dynamic=dynamic)
    for size in (4, 6):
        x = torch.randn(2, size, 5, requires_grad=True)
        (ours,) = torch.autograd.grad(compiled(x).sum(), x)
        (eagers,) = torch.autograd.grad(program(x).sum(), x)
        torch.testing.assert_close(ours, eagers)


@pytest.mark.parametrize("loss", [functional.huber_loss, functional.smooth_l1_loss])
@pytest.mark.parametrize("count", [3, 40])
def test_the_gradient_of_a_loss_at_nan_is_nan(loss: Callable[..., Tensor], count: int) -> None:
    def program(x: Tensor, target: Tensor) -> Tensor:
        return loss(x, target, reduction="sum")

    target = torch.zeros(count)
    target[0] = torch.nan
    x = torch.linspace(-2, 2, count)
    x[-1] = torch.nan
    found = []
    for call in (torch.compile(program, backend=BACKEND), program):
        leaf = x.clone().requires_grad_()
        found += torch.autograd.grad(call(leaf, target), leaf)
    torch.testing.assert_close(*found, equal_nan=True)
    assert found[0].isnan().sum() == 2
