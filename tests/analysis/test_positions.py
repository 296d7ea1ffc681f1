"""Values that depend only on positions (counts, windows of numbers) cost a kernel no divisions.

An axis on which a count or a window depends stays a separate loop: if it were merged, its index
would be a remainder or a quotient, which vector lanes compute one element after the other.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.support.compiled import BACKEND
from tests.support.compiled import strict as strict

SHAPES = [(3, 5, 7), (4, 6, 100), (64, 9, 2), (2, 300, 16)]


def columns_added(x: Tensor) -> Tensor:
    return x + torch.arange(x.shape[2])


def rows_added(x: Tensor) -> Tensor:
    return x + torch.arange(x.shape[1])[:, None]


def causal(x: Tensor) -> Tensor:
    rows, columns = torch.arange(x.shape[1]), torch.arange(x.shape[2])
    return torch.where(columns <= rows[:, None], x, 0.0)


def lower(x: Tensor) -> Tensor:
    return x.tril() * 2


def rows_filled(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, :2] = 0
    return y


def columns_filled(x: Tensor) -> Tensor:
    y = x.clone()
    y[..., 1:] = 3
    return y


def every_other_filled(x: Tensor) -> Tensor:
    y = x.clone()
    y[..., ::2] = 3
    return y


FUNCTIONS = [
    columns_added, rows_added, causal, lower, rows_filled, columns_filled, every_other_filled
]  # fmt: skip


def divisions_in_lanes(kernels: str) -> list[str]:
    """The lines that divide an index of a lane."""
    signs = ("threadIdx.x) %", "threadIdx.x) //")
    return [line for line in kernels.splitlines() if any(sign in line for sign in signs)]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_positions_are_loops(
    function: Callable[[Tensor], Tensor],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PYFUSER_DUMP", "kernel")
    compiled = torch.compile(function, backend=BACKEND)
    for shape in SHAPES:
        x = torch.randn(shape)
        assert torch.equal(compiled(x), function(x))
    kernels = "\n".join(capfd.readouterr())
    assert "threadIdx.x" in kernels
    assert not divisions_in_lanes(kernels)
