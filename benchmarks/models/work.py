"""A model's work: a training step, a forward pass, in a precision, by a backend.

Precisions are `float32`, `bfloat16` (the model's parameters are) and `autocast` (the parameters are
float32, and torch.autocast chooses bfloat16 for products).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from .zoo import logits_of, loss_of, made

PRECISIONS = ("float32", "bfloat16", "autocast")
# Calls before anything is timed: the first ones compile, and later ones may compile again.
WARM_UP_CALLS = 3

Inputs = dict[str, Tensor]


def made_in(name: str, precision: str = "float32") -> tuple[nn.Module, Inputs]:
    """The model in training mode and its inputs, with numbers of this precision."""
    model, inputs = made(name)
    if precision == "bfloat16":
        return model.bfloat16(), {
            key: each.bfloat16() if each.is_floating_point() else each
            for key, each in inputs.items()
        }
    return model, inputs


def surroundings(precision: str) -> AbstractContextManager[object]:
    """What a call of this precision runs in."""
    return torch.autocast("cpu", torch.bfloat16) if precision == "autocast" else nullcontext()


def compiled(model: nn.Module, backend: str) -> Callable[..., Any]:
    """The model as `backend` runs it."""
    return model if backend == "eager" else torch.compile(model, backend=backend)


def train(
    model: nn.Module, call: Callable[..., Any], inputs: Inputs, precision: str = "float32"
) -> Tensor:
    """One training step without the optimiser: forward and backward."""
    model.zero_grad(set_to_none=True)
    with surroundings(precision):
        loss = loss_of(call, inputs)
    loss.backward()
    return loss.detach()


def infer(call: Callable[..., Any], inputs: Inputs, precision: str = "float32") -> Tensor:
    """Only the forward pass, without saving tensors for a gradient."""
    with torch.no_grad(), surroundings(precision):
        return logits_of(call, inputs)


def warm_up(call: Callable[[], object]) -> None:
    """Calls what is timed afterwards."""
    for _ in range(WARM_UP_CALLS):
        call()


def contestants(
    model: nn.Module,
    calls: Mapping[str, Callable[..., Any]],
    inputs: Inputs,
    phase: str,
    precision: str = "float32",
) -> dict[str, Callable[[], object]]:
    """The functions to time: a training step, or the forward pass in evaluation mode."""
    model.train(phase == "training")
    if phase == "training":
        return {
            name: lambda call=call: train(model, call, inputs, precision)
            for name, call in calls.items()
        }
    return {name: lambda call=call: infer(call, inputs, precision) for name, call in calls.items()}
