"""Measures one architecture in this process: correctness, compilations, speed of training steps.

This is the work of one child process of `make zoo`.  The first steps are compared with float64
(gradients, loss, and the statistics that layers keep) and watched: which parts ran through torch,
where Dynamo broke the graph, and what later steps compiled again.  Speed comes last, interleaved.
"""

from __future__ import annotations

import copy
import statistics
import time
import warnings
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.harness import interleaved
from benchmarks.models.measure import (
    error_ratios,
    graphs_compiled,
    in_float64,
    worst,
)
from benchmarks.models.work import Inputs, compiled, train, warm_up
from benchmarks.models.zoo import Entry, InFloat64
from pyfuser.interface import compiled_kernel_count

from .architectures import ARCHITECTURES
from .results import MOST_ERROR

# Steps after the first, which should compile nothing again.
_LATER_STEPS = 2
# Inputs that are tried if the first ones give an error over the bar.
_MOST_DRAWS = 5

Parts = dict[str, list[Tensor]]
Errors = dict[str, dict[str, float]]
Ratios = dict[str, dict[str, list[float]]]  # of each tensor


def architecture(name: str, backends: list[str], seconds: float) -> dict[str, Any]:
    """The fields of a ZooRow; `seconds` of timing for each contestant, none for 0."""
    # BigBird draws its blocks from numpy's generator, which Dynamo replaces by default.
    torch._dynamo.config.use_numpy_random_stream = True
    entry = ARCHITECTURES[name]
    model, inputs = entry.made()
    contestants = {backend: _Contestant(model, backend) for backend in ["eager", *backends]}
    found: dict[str, Any] = {"parameters": sum(each.numel() for each in model.parameters())}
    for backend in backends:
        watched = contestants[backend].watched(inputs)
        if backend == "pyfuser":
            found |= watched
        else:
            found.setdefault("other_first_steps", {})[backend] = watched["first_step"]
    found["errors"] = _typical_errors(entry, model, contestants)
    found["kernels"] = compiled_kernel_count()
    if seconds:
        steps = {
            backend: partial(train, each.model, each.call, inputs)
            for backend, each in contestants.items()
        }
        for step in steps.values():
            warm_up(step)
        found["seconds"] = interleaved(steps, seconds, fewest_rounds=5)
    return found


class _Contestant:
    """A copy of the model, run by one backend."""

    def __init__(self, model: nn.Module, backend: str) -> None:
        self.backend = backend
        self.model = copy.deepcopy(model)
        self.call = compiled(self.model, backend)

    def step(self, inputs: Inputs) -> Tensor:
        """The loss of a training step, with the same random numbers each time."""
        torch.manual_seed(0)
        return train(self.model, self.call, inputs)

    def parts(self, model: nn.Module, inputs: Inputs) -> Parts:
        """The results of a step, starting from the layer statistics of `model`."""
        with torch.no_grad():
            for ours, theirs in zip(self.model.buffers(), model.buffers(), strict=True):
                ours.copy_(theirs)
        return _parts(self.model, self.step(inputs))

    def watched(self, inputs: Inputs) -> dict[str, Any]:
        """What the first steps compiled, how long they took, and which parts ran through torch."""
        # What any model needs once per process doesn't count for this one.
        x = torch.randn(64, 64, requires_grad=True)
        torch.compile(lambda tensor: tensor * 2.0, backend=self.backend)(x).sum().backward()
        torch._dynamo.utils.counters.clear()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            start = time.perf_counter()
            self.step(inputs)
            found: dict[str, Any] = {"first_step": time.perf_counter() - start}
            found["graphs"] = graphs_compiled()
            for _ in range(_LATER_STEPS):
                self.step(inputs)
        found["recompiles"] = graphs_compiled() - found["graphs"]
        breaks = torch._dynamo.utils.counters["graph_break"]
        found["graph_breaks"] = {reason.splitlines()[0]: n for reason, n in breaks.items()}
        return {**found, "fallbacks": _fallbacks(caught)}


def _parts(model: nn.Module, loss: Tensor) -> Parts:
    """Gradients, and the loss with the statistics that layers keep."""
    kept = [each for each in model.buffers() if each.is_floating_point()]
    return {
        "gradients": [each.grad for each in model.parameters() if each.grad is not None],
        "state": [each.detach().clone() for each in (loss, *kept)],
    }


def _exact(model: Any, inputs: Inputs) -> Parts:
    """A step in float64, including tensors that the model itself makes."""
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # grouped products don't support float64
    torch.set_default_dtype(torch.float64)
    try:
        with InFloat64():
            torch.manual_seed(0)
            return _parts(model, train(model, model, inputs))
    finally:
        torch.set_default_dtype(torch.float32)


def _typical_errors(entry: Entry, model: nn.Module, contestants: dict[str, _Contestant]) -> Errors:
    """The worst tensor's error for each part of a step's results; for each tensor, the median over
    several inputs if the first errors are too great.

    Gradients jump where the operand of a relu crosses zero, and a batch norm of a channel that is
    almost dead enlarges earlier rounding errors a hundredfold: in eager's favour or not, by chance,
    and in different tensors for different inputs.  A mistake shows for all inputs.
    """
    drawn = []
    for seed in range(_MOST_DRAWS):
        torch.manual_seed(seed)
        drawn.append(_ratios(model, entry.inputs(), contestants))
        ours = [worst(each.get("pyfuser", [0.0])) for each in drawn[0].values()]
        if all(error <= MOST_ERROR for error in ours):
            break
    return {
        part: {who: _worst_median([each[part][who] for each in drawn]) for who in drawn[0][part]}
        for part in drawn[0]
    }


def _worst_median(drawn: list[list[float]]) -> float:
    """The worst median, given errors by draw and tensor."""
    infinite = float("inf")  # for NaN, which has no order
    ordered = [[each if each == each else infinite for each in ratios] for ratios in drawn]
    return worst([statistics.median(ratios) for ratios in zip(*ordered, strict=True)])


def _ratios(model: nn.Module, inputs: Inputs, contestants: dict[str, _Contestant]) -> Ratios:
    results = {"exact": _exact(*in_float64(model, inputs))}
    results |= {who: each.parts(model, inputs) for who, each in contestants.items()}
    return {
        part: error_ratios({who: each[part] for who, each in results.items()})
        for part in results["exact"]
    }


def _fallbacks(caught: list[warnings.WarningMessage]) -> list[str]:
    """What ran through torch, and why."""
    texts = [str(each.message) for each in caught]
    return [text.removeprefix("pyfuser: ") for text in texts if text.startswith("pyfuser: ")]
