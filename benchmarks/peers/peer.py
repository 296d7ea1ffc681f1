"""What a contestant offers, and what a call computes: a function, or it and its gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..cases import Case
from ..kernels import outputs_of

Call = Callable[[], Any]


@dataclass(frozen=True)
class Work:
    """One row's function and inputs.

    With `gradients`, one for each output, a call also computes the gradients of all inputs that
    require them.
    """

    case: Case
    inputs: list[torch.Tensor]
    gradients: list[torch.Tensor] | None = None

    @property
    def wanted(self) -> list[torch.Tensor]:
        """The inputs whose gradients a call computes."""
        return [each for each in self.inputs if each.requires_grad]

    def call_of(self, function: Callable[..., Any]) -> Call:
        """A call of a torch function with these inputs; its results are torch tensors."""
        if self.gradients is None:
            return lambda: outputs_of(function(*self.inputs))
        wanted, gradients = self.wanted, self.gradients

        def both() -> list[torch.Tensor]:
            outputs = outputs_of(function(*self.inputs))
            return [*outputs, *torch.autograd.grad(outputs, wanted, gradients)]

        return both


@dataclass(frozen=True)
class Peer:
    """A contestant.  `make` returns None for what it can't express.

    `tensors` converts its results to torch tensors, to check them; `is_torch` says that its memory
    is allocated by torch.
    """

    name: str
    make: Callable[[Work], Call | None]
    tensors: Callable[[Any], Sequence[torch.Tensor]] = outputs_of
    is_torch: bool = True
