"""Arguments and gradients whose elements aren't what lies at their address are computed by torch.

Negated when they are read, zeros without memory, a batch of a transform, made up.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from tests.support.compiled import BACKEND
from tests.support.compiled import strict as strict

Function = Callable[..., Tensor]


def product(x: Tensor, w: Tensor) -> Tensor:
    return (x * w).tanh()


def compiled() -> Function:
    made: Function = torch.compile(lambda x, w: product(x, w), backend=BACKEND)
    return made


def test_a_gradient_that_is_negated_when_it_is_read() -> None:
    call, w = compiled(), torch.ones(3)
    x = torch.full((3,), 0.3, requires_grad=True)
    for given in (torch.ones(3), torch._neg_view(torch.ones(3)), torch._neg_view(w)):
        for _ in range(2):
            (expected,) = torch.autograd.grad(product(x, w), x, given)
            (actual,) = torch.autograd.grad(call(x, w), x, given)
            torch.testing.assert_close(actual, expected)


def test_the_parts_of_a_conjugate() -> None:
    def sums(x: Tensor) -> tuple[Tensor, Tensor]:
        return (x * 2).tanh().sum(), (x + 1).sin().sum()

    x = torch.full((3,), 0.3, requires_grad=True)
    found = []
    for function in (sums, torch.compile(sums, backend=BACKEND)):
        for _ in range(2):
            z = torch.complex(*function(x)).conj()
            found.append(torch.autograd.grad(z.imag * 2 + z.real, x)[0])
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])


@pytest.mark.parametrize("negated", [True, False])
def test_an_argument_that_is_updated(negated: bool) -> None:
    call = torch.compile(lambda v, w: v.mul_(w).add_(1), backend=BACKEND)
    for is_negated in (negated, not negated):
        memory = torch.full((3, 1), 2.0)
        seen = torch._neg_view(memory) if is_negated else memory
        call(seen, torch.full((3, 1), 3.0))
        torch.testing.assert_close(seen, torch.full((3, 1), -5.0 if is_negated else 7.0))


def test_zeros_without_memory() -> None:
    call, zeros = compiled(), torch._efficientzerotensor(3)
    x, w = torch.full((3,), 0.3, requires_grad=True), torch.ones(3)
    for given in (w, zeros):
        torch.testing.assert_close(call(given, w), product(given, w))
        (actual,) = torch.autograd.grad(call(x, w), x, given)
        torch.testing.assert_close(actual, torch.autograd.grad(product(x, w), x, given)[0])


def test_zeros_of_forward_mode_differentiation() -> None:
    """The Hessian times a vector, differentiated again."""

    def curvature(w: Tensor, v: Tensor, x: Tensor) -> Tensor:
        slope = torch.func.grad(lambda w: (x @ w).tanh().sum())
        result: Tensor = torch.func.jvp(slope, (w,), (v,))[1]
        return result

    w, v, x = torch.randn(4, requires_grad=True), torch.randn(4), torch.randn(3, 4)
    (expected,) = torch.autograd.grad(curvature(w, v, x).sum(), w)
    call = torch.compile(curvature, backend=BACKEND)
    (actual,) = torch.autograd.grad(call(w, v, x).sum(), w)
    torch.testing.assert_close(actual, expected)
    zeros = torch.compile(lambda x: torch._efficientzerotensor((3, 4)).clone() + x, backend=BACKEND)
    torch.testing.assert_close(zeros(x), x)


def test_a_batch_of_gradients() -> None:
    call, w = compiled(), torch.randn(4)
    x, rows = torch.randn(3, 4, requires_grad=True), torch.eye(12).view(12, 3, 4)
    (expected,) = torch.autograd.grad(product(x, w), x, rows, is_grads_batched=True)
    for _ in range(2):
        (actual,) = torch.autograd.grad(call(x, w), x, rows, is_grads_batched=True)
        torch.testing.assert_close(actual, expected)
    jacobian = torch.autograd.functional.jacobian(lambda x: call(x, w), x.detach(), vectorize=True)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(jacobian.view(12, 3, 4), expected)


def test_a_tensor_without_elements() -> None:
    call = compiled()
    call(torch.randn(3, 4), torch.randn(4))
    with FakeTensorMode() as mode:
        made = call(mode.from_tensor(torch.randn(3, 4)), mode.from_tensor(torch.randn(4)))
    assert made.shape == (3, 4)
