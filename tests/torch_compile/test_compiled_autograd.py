"""Torch's compiled autograd with this backend: backwards are graphs whose inputs are lists."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import compiled_autograd

from tests.support.compiled import BACKEND
from tests.support.compiled import strict as strict


def _backward_compiled() -> AbstractContextManager[object]:
    compiled: AbstractContextManager[object] = compiled_autograd._enable(
        torch.compile(backend=BACKEND)
    )
    return compiled


def _gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    model.zero_grad()
    model(x).relu().square().sum().backward()
    return [x.grad, *(each.grad.clone() for each in model.parameters())]  # type: ignore[union-attr,list-item]


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3)).double()


def test_gradients_of_batches_of_several_sizes() -> None:
    model = _model()
    for rows in (5, 5, 7, 2):
        x = torch.randn(rows, 8).double()
        expected = _gradients(model, x)
        with _backward_compiled():
            torch.testing.assert_close(_gradients(model, x), expected)


def test_the_switch_of_torch() -> None:
    model, x = _model(), torch.randn(5, 8).double()
    expected = _gradients(model, x)
    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.testing.assert_close(torch.compile(_gradients, backend=BACKEND)(model, x), expected)


def test_a_backward_that_is_not_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no tracing today")

    model, x = _model(), torch.randn(5, 8).double()
    expected = _gradients(model, x)
    monkeypatch.delenv("PYFUSER_STRICT")
    backend = importlib.import_module("pyfuser.torch_compile.backend")
    monkeypatch.setattr(backend, "aot_module_simplified", refuse)
    with _backward_compiled(), pytest.warns(RuntimeWarning, match="got RuntimeError: no tracing"):
        torch.testing.assert_close(_gradients(model, x), expected)
