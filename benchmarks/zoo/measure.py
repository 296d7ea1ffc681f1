"""One architecture in this process: are its training steps right, what compiled, how fast are they.

What one child process of `make zoo` does.  The first steps are compared with float64, gradients and
loss and the statistics that layers keep, and watched: which parts ran through torch, where Dynamo
broke the graph, and what later steps compiled again.  Speed comes behind, all in turn.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.harness import interleaved
from benchmarks.models.measure import (
    WARM_UP_CALLS,
    Inputs,
    compiled,
    errors,
    graphs_compiled,
    in_float64,
    train,
)
from benchmarks.models.zoo import InFloat64
from pyfuser.interface import compiled_kernel_count

from .architectures import ARCHITECTURES

# A step after the first, of which nothing should be compiled again.
_LATER_STEPS = 2

Step = Callable[[], Tensor]


def architecture(name: str, backends: list[str], seconds: float) -> dict[str, Any]:
    """The fields of a ZooRow; `seconds` of timing for each contestant, none for 0."""
    model, inputs = ARCHITECTURES[name].made()
    found: dict[str, Any] = {"parameters": sum(each.numel() for each in model.parameters())}
    # BigBird draws its blocks from numpy's stream, which Dynamo replaces unless told.
    torch._dynamo.config.use_numpy_random_stream = True
    exact, doubles = in_float64(model, inputs)
    results = {"exact": _exact(exact, doubles)}
    steps = {"eager": _step(copy.deepcopy(model), inputs, "eager", results)}
    for backend in backends:
        contestant = copy.deepcopy(model)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            steps[backend], watched = _watched(contestant, inputs, backend, results)
        if backend == "pyfuser":
            found |= {**watched, "fallbacks": _fallbacks(caught)}
        else:
            found.setdefault("other_first_steps", {})[backend] = watched["first_step"]
    found["errors"] = {
        part: errors({who: each[part] for who, each in results.items() if each[part]})
        for part in ("gradients", "state")
        if results["exact"][part]
    }
    found["kernels"] = compiled_kernel_count()
    if seconds:
        for step in steps.values():
            for _ in range(WARM_UP_CALLS):
                step()
        found["seconds"] = interleaved(steps, seconds, fewest_rounds=5)
    return found


Parts = dict[str, list[Tensor]]


def _parts(model: nn.Module, loss: Tensor) -> Parts:
    """What a step leaves behind: gradients, and beside the loss what layers keep."""
    kept = [each for each in model.buffers() if each.is_floating_point()]
    return {
        "gradients": [each.grad for each in model.parameters() if each.grad is not None],
        "state": [each.detach().clone() for each in (loss, *kept)],
    }


def _exact(model: Any, inputs: Inputs) -> Parts:
    """A step in float64, with what a model makes by itself in float64 as well."""
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # grouped products know no float64
    torch.set_default_dtype(torch.float64)
    try:
        with InFloat64():
            torch.manual_seed(0)
            return _parts(model, train(model, model, inputs))
    finally:
        torch.set_default_dtype(torch.float32)


def _step(model: nn.Module, inputs: Inputs, backend: str, results: dict[str, Parts]) -> Step:
    """A training step of this model; its first one is made, and its results noted."""
    step = partial(train, model, compiled(model, backend), inputs)
    torch.manual_seed(0)
    results[backend] = _parts(model, step())
    return step


def _watched(
    model: nn.Module, inputs: Inputs, backend: str, results: dict[str, Parts]
) -> tuple[Step, dict[str, Any]]:
    """The step, and what its first calls compiled and took."""
    # What any model needs once in a process isn't this one's.
    x = torch.randn(64, 64, requires_grad=True)
    torch.compile(lambda tensor: tensor * 2.0, backend=backend)(x).sum().backward()
    torch._dynamo.utils.counters.clear()
    start = time.perf_counter()
    step = _step(model, inputs, backend, results)
    watched: dict[str, Any] = {"first_step": time.perf_counter() - start}
    watched["graphs"] = graphs_compiled()
    for _ in range(_LATER_STEPS):
        step()
    watched["recompiles"] = graphs_compiled() - watched["graphs"]
    breaks = torch._dynamo.utils.counters["graph_break"]
    watched["graph_breaks"] = {reason.splitlines()[0]: n for reason, n in breaks.items()}
    return step, watched


def _fallbacks(caught: list[warnings.WarningMessage]) -> list[str]:
    """What ran through torch, and why."""
    texts = [str(each.message) for each in caught]
    return [text.removeprefix("pyfuser: ") for text in texts if text.startswith("pyfuser: ")]
