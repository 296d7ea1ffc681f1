"""Measures functions side by side: in one process, on the same threads, in interleaved rounds.

Functions -> seconds per call (medians), next to the bytes that an ideal kernel would move and the
bandwidth of a plain copy on the same machine in the same run.  Interleaving keeps the ratios valid
on a noisy machine, because a slow moment affects every contestant of a round.  Nothing here is
specific to pyfuser.
"""

from __future__ import annotations

import math
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch

# A shorter sample would mostly measure the timer; fast functions are called repeatedly.
_SHORTEST_SAMPLE_SECONDS = 0.5e-3
_MOST_CALLS_A_SAMPLE = 1000
# Calls that take longer than this vary little, and a row of them would take minutes.
_LONG_SECONDS = 0.5
_ROUNDS_OF_LONG_CALLS = 3


def interleaved(
    contestants: Mapping[str, Callable[[], object]],
    seconds: float = 0.5,
    fewest_rounds: int = 7,
    synchronise: Callable[[], None] | None = None,
) -> dict[str, float]:
    """Median seconds per call of each contestant."""
    found = rounds(contestants, seconds, fewest_rounds, synchronise)
    return {name: statistics.median(samples) for name, samples in found.items()}


def rounds(
    contestants: Mapping[str, Callable[[], object]],
    seconds: float = 0.5,
    fewest_rounds: int = 7,
    synchronise: Callable[[], None] | None = None,
) -> dict[str, list[float]]:
    """Seconds per call of each contestant in each round.

    Each round times every contestant once, in a random order, the same in each run, because what
    was called before decides what is in the caches.  Rounds continue until about `seconds` have
    passed for each, and for at least `fewest_rounds`: three, if a call takes long.
    A result is dropped before the next call, so that its memory can be reused.
    """
    wait = synchronise or (lambda: None)
    calls = {name: _calls_a_sample(function, wait) for name, function in contestants.items()}
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    order, shuffled = list(contestants), random.Random(0)
    end = time.perf_counter() + seconds * len(order)
    fewest = fewest_rounds
    while len(samples[order[0]]) < fewest or time.perf_counter() < end:
        for name in order:
            samples[name].append(_sample(contestants[name], calls[name], wait))
        if max(listed[-1] for listed in samples.values()) > _LONG_SECONDS:
            fewest = min(fewest, _ROUNDS_OF_LONG_CALLS)
        shuffled.shuffle(order)
    return samples


def _sample(function: Callable[[], object], calls: int, wait: Callable[[], None]) -> float:
    """Seconds per call, over `calls` calls."""
    start = time.perf_counter()
    for _ in range(calls):
        function()
    wait()
    return (time.perf_counter() - start) / calls


def _calls_a_sample(function: Callable[[], object], wait: Callable[[], None]) -> int:
    """The number of calls that fill a sample; also warms up the function."""
    function()
    wait()
    once = _sample(function, 1, wait)
    if once < _LONG_SECONDS:
        once = min(once, _sample(function, 1, wait), _sample(function, 1, wait))
    wanted = math.ceil(_SHORTEST_SAMPLE_SECONDS / max(once, 1e-7))
    return min(wanted, _MOST_CALLS_A_SAMPLE)


def synchroniser(device: str) -> Callable[[], None] | None:
    """A function that waits for `device`; None if calls return when the work is done."""
    return torch.cuda.synchronize if device.startswith("cuda") else None


def copy_bandwidth(device: str = "cpu", size_bytes: int = 128 << 20) -> float:
    """Bytes read and written per second by torch's `copy_` between two tensors of `size_bytes`."""
    source = torch.ones(size_bytes // 4, device=device)
    target = torch.zeros_like(source)
    times = interleaved(
        {"copy": lambda: target.copy_(source)}, 0.2, 5, synchronise=synchroniser(device)
    )
    return 2 * size_bytes / times["copy"]


def traffic_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the distinct elements of inputs and outputs (an expanded dimension counts once)."""
    total = 0
    for tensor in tensors:
        sizes = (
            size
            for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
            if stride != 0 or size == 0
        )
        total += math.prod(sizes) * tensor.element_size()
    return total


def geometric_mean(values: Sequence[float]) -> float:
    """Geometric mean of positive numbers; NaN for none."""
    return math.exp(statistics.fmean(map(math.log, values))) if values else math.nan


def error_of(
    outputs: Sequence[torch.Tensor],
    references: Sequence[torch.Tensor],
    magnitudes: Sequence[torch.Tensor] | None = None,
) -> float:
    """The greatest difference from float64 references, relative to their greatest magnitudes.

    `magnitudes` are the references themselves unless given: a sum that cancels is as precise as the
    sum of the absolute values.
    """
    worst = 0.0
    sizes = references if magnitudes is None else magnitudes
    for output, reference, size in zip(outputs, references, sizes, strict=True):
        if output.shape != reference.shape:
            return math.inf
        scale = max(size.abs().max().item(), 1e-30)
        difference = (output.double() - reference).abs().max().item() / scale
        worst = math.inf if math.isnan(difference) else max(worst, difference)
    return worst


def machine_facts(device: str = "cpu") -> dict[str, object]:
    """What a reader needs to judge the numbers; nothing that identifies the computer."""
    facts: dict[str, object] = {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.system(),
    }
    if device.startswith("cuda"):
        facts["gpu"] = torch.cuda.get_device_name(device)
    return facts


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.machine()
