"""Results of a compiled function may be changed in place, as eager's results may."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.support.compiled import BACKEND
from tests.support.compiled import fresh as fresh

CASES: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "number": (lambda x: x.sin().copy_(torch.tensor(3.0)) + x * 0, ()),
    "number that is copied": (lambda x: x * 1, ()),
    "copy": (lambda x: x * 1, (3, 4)),
    "copy, permuted": (lambda x: (x.t() * 1).clone(), (3, 4)),
    "empty": (lambda x: torch.lerp(x, x + 1, 0.3), (0, 3)),
    "empty, permuted": (lambda x: x.t() * 2, (0, 3)),
    "filled": (lambda x: x * 2 + torch.zeros_like(x).fill_(2), (3, 1)),
    "kernel": (lambda x: x.sin().t() + 1, (3, 4)),
    "library": (lambda x: (x @ x.t()).t() * 1, (3, 4)),
    "view": (lambda x: x.sin().t()[1:], (3, 4)),
}


@pytest.mark.parametrize("name", CASES)
def test_results_may_be_changed_in_place(name: str) -> None:
    function, shape = CASES[name]

    def program(given: Tensor, called: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        x = given.clone().requires_grad_()
        y = called(x)
        y.mul_(2)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        return y.detach(), gradient

    x = torch.randn(shape)
    compiled = torch.compile(function, backend=BACKEND)
    for got, expected in zip(program(x, compiled), program(x, function), strict=True):
        torch.testing.assert_close(got, expected)
