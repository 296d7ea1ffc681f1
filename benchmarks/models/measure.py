"""Measures one model in this process: its speed, its first step, or the memory of a step.

Each function is the work of one child process of `make bench-models`; it returns plain values that
are sent back as JSON. `steady` times all backends in interleaved rounds, after checking their
results against float64; `first_step` is for a process in which nothing of the model has been
compiled.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import peak_memory
from benchmarks.harness import interleaved
from pyfuser import memory
from pyfuser.interface import compiled_kernel_count

from .breakdown import breakdown as breakdown  # for child processes
from .decoding import decoding as decoding
from .library import library_calls, replay
from .work import Inputs, compiled, contestants, infer, made_in, train, warm_up
from .zoo import InFloat64, loss_of, made

CHANGING_CALLS = 200
# No tensor's scale counts as less than this fraction of the greatest one: a gradient that cancels
# to almost nothing is noise in every result.
_LEAST_SCALE = 0.01


def steady(
    name: str, backends: list[str], seconds: float, precision: str = "float32"
) -> dict[str, Any]:
    """Medians of both passes by backend, errors against float64, kernels and late recompiles.

    "library" is timed beside the backends: the library calls of eager, run again by themselves.
    """
    model, inputs = made_in(name, precision)
    calls = {backend: compiled(model, backend) for backend in ["eager", *backends]}
    found: dict[str, Any] = {"parameters": sum(each.numel() for each in model.parameters())}
    found["errors"] = {
        "gradients": errors(_gradients(model, calls, inputs, precision)),
        "output": errors(_outputs(model, calls, inputs, precision)),
    }
    found["seconds"], found["recompiles"] = {}, 0
    for phase in ("training", "forward"):
        timed = contestants(model, calls, inputs, phase, precision)
        for contestant in timed.values():
            warm_up(contestant)
        timed["library"] = replay(library_calls(timed["eager"]))
        graphs = graphs_compiled()
        found["seconds"][phase] = interleaved(timed, seconds, fewest_rounds=5)
        found["recompiles"] += graphs_compiled() - graphs
    found["kernels"] = compiled_kernel_count()
    return found


def graphs_compiled() -> int:
    """Graphs that Dynamo has compiled so far."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def in_float64(model: nn.Module, inputs: Inputs) -> tuple[nn.Module, Inputs]:
    """A copy of the model and its inputs with every floating-point number in float64."""
    doubles = {
        key: each.double() if each.is_floating_point() else each for key, each in inputs.items()
    }
    return copy.deepcopy(model).double(), doubles


def _gradients(
    model: nn.Module, calls: Mapping[str, Callable[..., Any]], inputs: Inputs, precision: str
) -> dict[str, list[Tensor]]:
    """Gradients of all parameters by backend, and as "exact" those of float64."""
    found = {}
    exact, doubles = in_float64(model, inputs)
    with InFloat64():
        train(exact, exact, doubles)
    found["exact"] = [each.grad for each in exact.parameters() if each.grad is not None]
    for name, call in calls.items():
        train(model, call, inputs, precision)
        found[name] = [each.grad for each in model.parameters() if each.grad is not None]
    return found


def _outputs(
    model: nn.Module, calls: Mapping[str, Callable[..., Any]], inputs: Inputs, precision: str
) -> dict[str, list[Tensor]]:
    """Scores in evaluation mode by backend, and as "exact" those of float64."""
    model.eval()
    exact, doubles = in_float64(model, inputs)
    with InFloat64():
        found = {"exact": [infer(exact, doubles)]}
    return found | {name: [infer(call, inputs, precision)] for name, call in calls.items()}


def errors(results: Mapping[str, list[Tensor]]) -> dict[str, float]:
    """By backend: its worst error over eager's, tensor by tensor; eager's itself is absolute."""
    return {name: worst(ratios) for name, ratios in error_ratios(results).items()}


def worst(ratios: list[float]) -> float:
    """The greatest one; a NaN, which max could lose, counts as infinity."""
    return max(ratios) if all(ratio == ratio for ratio in ratios) else float("inf")


def error_ratios(results: Mapping[str, list[Tensor]]) -> dict[str, list[float]]:
    """By backend: each tensor's error over eager's; eager's themselves are absolute.

    Errors are greatest differences from float64; eager's counts as one rounding at least.
    """
    exact = results["exact"]
    scales = [each.abs().max().item() for each in exact]
    floors = [
        torch.finfo(torch.float32).eps * max(scale, _LEAST_SCALE * max(scales)) for scale in scales
    ]
    errors = {
        name: [
            (got.double() - reference).abs().max().item()
            for got, reference in zip(tensors, exact, strict=True)
        ]
        for name, tensors in results.items()
        if name != "exact"
    }
    eager = errors.pop("eager")
    found = {"eager": eager}
    for name, ours in errors.items():
        found[name] = [
            error / (other + floor) for error, other, floor in zip(ours, eager, floors, strict=True)
        ]
    return found


def first_step(name: str, backend: str) -> float:
    """Seconds of the first forward and backward; imports and an unrelated kernel came before."""
    x = torch.randn(64, 64, requires_grad=True)
    torch.compile(lambda tensor: tensor * 2.0, backend=backend)(x).sum().backward()
    model, inputs = made(name)
    call = compiled(model, backend)
    start = time.perf_counter()
    train(model, call, inputs)
    return time.perf_counter() - start


def peak(name: str, backend: str) -> int:
    """Bytes that a training step needs at its peak, beyond parameters, inputs and gradients."""
    model, inputs = made(name)
    call = compiled(model, backend)
    warm_up(lambda: train(model, call, inputs))

    def step() -> None:
        loss_of(call, inputs).backward()

    peaks = []
    for _ in range(3):
        # Zeroed and kept: gradients are added up in place, so they are no part of the peak.
        model.zero_grad(set_to_none=False)
        peaks.append(peak_memory.peak_bytes(step, memory.empty_cache))
    return min(peaks)


def one_element_call(backends: list[str]) -> dict[str, float]:
    """Seconds of a call of a compiled pointwise function on one element, by backend."""
    x = torch.randn(1)

    def function(tensor: Tensor) -> Tensor:
        return tensor * 2.0 + 1.0

    contestants: dict[str, Callable[[], object]] = {"eager": lambda: function(x)}
    for backend in backends:
        call = torch.compile(function, backend=backend)
        contestants[backend] = lambda call=call: call(x)
    with torch.no_grad():
        return interleaved(contestants, seconds=1.0)


def changing_shapes(backend: str) -> dict[str, Any]:
    """`CHANGING_CALLS` calls of GPT-2, batch and length new each time, by default settings."""
    model, _ = made("GPT-2")
    model.eval()
    call = compiled(model, backend)
    graphs = kernels = 0
    worst = 0.0
    for number in range(CHANGING_CALLS):
        tokens = torch.randint(0, 1000, (2 + (3 * number) % 7, 3 + (11 * number) % 61))
        output, expected = (infer(each, {"input_ids": tokens}) for each in (call, model))
        error = (output - expected).abs().max() / expected.abs().max()
        worst = max(worst, error.nan_to_num(float("inf")).item())
        if number == 1:
            graphs, kernels = graphs_compiled(), compiled_kernel_count()
    return {
        "calls": CHANGING_CALLS,
        "recompiles": graphs_compiled() - graphs,
        "new kernels": compiled_kernel_count() - kernels,
        "difference from eager": worst,
    }
