"""A compiled function beside eager, both against eager in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Compared:
    """The three results of one call; shape and dtype of the first two are equal."""

    got: Tensor
    eager: Tensor
    exact: Tensor

    def require_as_precise(self, slack: float) -> None:
        """The error is at most twice eager's, and `slack`."""
        if not self.exact.numel():
            return
        error, by_eager = (
            (each.double() - self.exact).abs().max().item() for each in (self.got, self.eager)
        )
        assert error <= 2 * by_eager + slack

    @property
    def rounding(self) -> float:
        """The distance between two numbers at 1."""
        return torch.finfo(self.eager.dtype).eps

    @property
    def scale(self) -> float:
        """The greatest magnitude."""
        return self.exact.abs().max().item() if self.exact.numel() else 0.0


def compared(
    function: Callable[..., Tensor], *inputs: Tensor, dynamic: bool | None = None
) -> Compared:
    """Runs the function compiled, in eager, and in eager in float64."""
    compiled = torch.compile(function, backend="pyfuser", dynamic=dynamic)
    got, eager = compiled(*inputs), function(*inputs)
    exact = function(*(t.double() if t.is_floating_point() else t for t in inputs))
    assert (got.shape, got.dtype) == (eager.shape, eager.dtype)
    return Compared(got, eager, exact)
