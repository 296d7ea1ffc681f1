"""Graphs that Dynamo records and AOTAutograd can't trace: torch runs them, with one warning."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pyfuser.errors import UnsupportedError
from tests.support.compiled import BACKEND
from tests.support.compiled import strict as strict

_WARNING = "a graph that AOTAutograd can trace"


def _written_windows(x: Tensor) -> Tensor:
    """Functionalization refuses to write to windows that overlap."""
    windows = (x * 1).unfold(0, 4, 2)
    windows[1].fill_(0.0)
    return windows + 1


def _run_by_torch(function: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch) -> Tensor:
    monkeypatch.delenv("PYFUSER_STRICT")
    with pytest.warns(RuntimeWarning, match=_WARNING):
        return function(torch.arange(8.0))


def test_writes_to_overlapping_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = torch.compile(_written_windows, backend=BACKEND)
    assert torch.equal(_run_by_torch(compiled, monkeypatch), _written_windows(torch.arange(8.0)))


def test_writes_to_an_expanded_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(rows: Tensor) -> Tensor:
        rows.fill_(3.0)
        return rows * 2

    compiled = torch.compile(fill, backend=BACKEND)
    got = _run_by_torch(lambda x: compiled(x[:1].expand(3, 1)), monkeypatch)
    assert torch.equal(got, torch.full((3, 1), 6.0))


def test_the_gradient_of_a_grid_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    def grid(theta: Tensor, image: Tensor) -> Tensor:
        return functional.affine_grid(theta, list(image.shape), align_corners=False) * 2

    monkeypatch.delenv("PYFUSER_STRICT")
    compiled = torch.compile(grid, backend=BACKEND, dynamic=True)
    gradients = []
    for function in (grid, compiled):
        theta = torch.ones(4, 2, 3, requires_grad=True)
        function(theta, torch.zeros(4, 2, 7, 9)).square().sum().backward()
        gradients.append(theta.grad)
    torch.testing.assert_close(*gradients)


def test_strictly_they_are_an_error() -> None:
    compiled = torch.compile(_written_windows, backend=BACKEND)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=_WARNING) as caught:
        compiled(torch.arange(8.0))
    assert isinstance(caught.value.inner_exception, UnsupportedError)


def test_an_error_of_the_program_is_eager_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result of `exp` is needed for its gradient."""

    def overwrite(x: Tensor) -> Tensor:
        y = x.exp()
        y.add_(1)
        return y

    monkeypatch.delenv("PYFUSER_STRICT")
    compiled = torch.compile(overwrite, backend=BACKEND)
    with pytest.warns(RuntimeWarning, match=_WARNING):
        result = compiled(torch.ones(3, requires_grad=True))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()
