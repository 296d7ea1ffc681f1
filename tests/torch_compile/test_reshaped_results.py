"""What is computed of a reshaped result: moved before the reshape, if it has the same elements."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from tests.support.compiled import strict as strict
from tests.support.long_cases import pairwise

pytestmark = pytest.mark.usefixtures("poison")

Shape = tuple[int, ...]

SOURCES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a copy": lambda x: x,
    "computed": lambda x: x.exp() * 2,
    "normalised": lambda x: x - x.mean(-1, keepdim=True),
}


@pytest.mark.parametrize(
    ("shape", "other", "source", "dynamic", "differentiable"),
    pairwise(
        [
            pytest.param((9,), (3, 1)),  # repeats the reshaped result
            pytest.param((9, 1), (9, 3)),
            pytest.param((1, 9), (2, 9)),
            pytest.param((9,), (2, 3, 9)),
            pytest.param((9,), (9,)),  # and these don't
            pytest.param((1, 3, 3), (3,)),
            pytest.param((9,), ()),
        ],
        SOURCES,
        [pytest.param(False, id="static"), pytest.param(True, id="dynamic")],
        [pytest.param(True, id="gradients"), pytest.param(False, id="inference")],
    ),
)
def test_another_operand_of_any_shape(
    shape: Shape, other: Shape, source: str, dynamic: bool, differentiable: bool
) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        reshaped = SOURCES[source](x).reshape(shape)
        added = reshaped + y
        return added, torch.maximum(y, reshaped), added.flatten() * 1.5

    x, y = torch.randn(3, 5)[:, 1:-1], torch.randn(other)
    inputs = [x, y]
    if differentiable:
        inputs = [each.detach().clone().requires_grad_() for each in inputs]
    compiled = torch.compile(function, backend="pyfuser", dynamic=dynamic)
    for one, another in zip(compiled(*inputs), function(*inputs), strict=True):
        assert one.stride() == another.stride()
        torch.testing.assert_close(one, another)
    if not differentiable:
        return
    gradients = (torch.autograd.grad(sum(each.sum() for each in f(*inputs)), inputs)
                 for f in (compiled, function))  # fmt: skip
    for one, another in zip(*gradients, strict=True):
        torch.testing.assert_close(one, another)


def test_a_reshaped_norm_that_weights_repeat() -> None:
    """One norm for several scales: each makes a tensor as large as all."""

    def function(x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        rows = torch.nn.functional.layer_norm(x, x.shape[-1:]).view(-1, math.prod(x.shape[1:]))
        return torch.nn.functional.silu(rows * scales)

    x, scales = torch.randn(1, 6, 8), torch.randn(4, 1)
    torch.testing.assert_close(
        torch.compile(function, backend="pyfuser")(x, scales), function(x, scales)
    )
