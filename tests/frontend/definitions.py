"""Helpers of the front-end tests: a fake engine, and a definition."""

from __future__ import annotations

from typing import Any

import torch

from pyfuser import FusionDefinition
from pyfuser.ops.evaluator import evaluate


class Engine:
    """Replaces the compiled fusion; counts how many were made and run."""

    made = 0
    calls = 0

    def __init__(self, fusion: Any) -> None:
        Engine.made += 1
        self.fusion = fusion

    def execute(self, inputs: list[Any]) -> list[torch.Tensor]:
        Engine.calls += 1
        return evaluate(self.fusion, inputs)


def doubled() -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.mul(x, 2.0))
    return fd
