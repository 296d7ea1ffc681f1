"""What the tests of tuning tune, costs instead of time, and which parameters are used then."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pyfuser import FusionDefinition
from pyfuser.caches import tuning_store
from pyfuser.tuning.measuring import Contestant


def softmax() -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        power = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, 1, keepdim=True)))
        fd.add_output(fd.ops.div(power, fd.ops.sum(power, 1, keepdim=True)))
    return fd


def doubled() -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        fd.add_output(fd.ops.mul(x, 2.0))
    return fd


def likes_unroll_of_four(contestant: Contestant, calls: int) -> float:
    rows = getattr(contestant.parameters, "rows", None)
    parameters = contestant.parameters if isinstance(rows, (bool, type(None))) else rows
    return 0.5 if parameters.unroll == 4 else 1.0


def indifferent(contestant: Contestant, calls: int) -> float:
    return 1.0


def refuses_to_measure(contestant: Contestant, calls: int) -> float:
    raise AssertionError("measured again")


def unrolls(fd: FusionDefinition, x: torch.Tensor) -> list[int]:
    """The unrolling of the kernels that a call runs, after it ran as eager does."""
    resolved = fd.engine.executor.resolve([x])
    return [variant.parameters.unroll for variant in used(resolved)]


def used(resolved: Any) -> list[Any]:
    found = []
    for part, kernel in zip(resolved.program.parts, resolved.kernels, strict=True):
        found += [variant for variant, made in part.kernels.items() if made is kernel]
    return found


def reset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgets what this process knows of the folder, as a new process does."""
    tuning_store._store_of.cache_clear()
