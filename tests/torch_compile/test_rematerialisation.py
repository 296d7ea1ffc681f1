"""What a forward keeps for its gradients, and what these compute again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.support.compiled import BACKEND
from tests.support.compiled import strict as strict

ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "silu": (functional.silu, 2),
    "gelu": (functional.gelu, 2),
    "gelu by tanh": (partial(functional.gelu, approximate="tanh"), 2),
    "tanh": (torch.tanh, 2),  # its gradient needs the result, not the input
    "softplus": (functional.softplus, 3),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_gate_saves_its_operands(name: str, dtype: torch.dtype) -> None:
    """The gradient of silu and gelu computes their results on the way."""
    activation, count = ACTIVATIONS[name]
    compiled = torch.compile(lambda x, y: activation(x) * y, backend=BACKEND, fullgraph=True)
    x, y = (torch.randn(31, 7).to(dtype).requires_grad_() for _ in "xy")
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        result = compiled(x, y)
    assert len(saved) == count
    slope = torch.linspace(-1, 1, x.numel()).view(x.shape)
    found = torch.autograd.grad(result, (x, y), slope.to(dtype))
    exact = [each.detach().double().requires_grad_() for each in (x, y)]
    wanted = torch.autograd.grad(activation(exact[0]) * exact[1], exact, slope.to(dtype).double())
    tolerance = 4 * torch.finfo(dtype).eps
    for mine, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine.double(), expected, rtol=tolerance, atol=tolerance)
