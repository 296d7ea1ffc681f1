"""Measures functions on a GPU: by its own events, with a cold second cache.

Functions -> seconds on the GPU (medians), and seconds of the host per call.  Before each call a
buffer larger than the second cache is read, so that every contestant reads from memory, and none
pays for writing back what the cache holds; this also keeps the GPU busy while the host launches, so
that a slow host doesn't count as a slow kernel.  The host's time is measured apart, on an idle GPU.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

# Reading this takes an H200 some 0.25 ms, longer than a host needs to launch several kernels.
_FLUSHED_BYTES = 1 << 30
COPIED_BYTES = 1 << 30
_HOST_CALLS = 50

SECONDS = 0.1  # per contestant and row: at least a hundred rounds of the longest kernels


class Clock(Protocol):
    """What measuring needs from a GPU; the tests have one without a GPU."""

    def flush(self) -> None:
        """Replaces what the caches hold."""

    def mark(self) -> Any:
        """A point in the GPU's work."""

    def seconds(self, start: Any, end: Any) -> float:
        """The time between two marks."""

    def wait(self) -> None:
        """Returns when the GPU's work is done."""


class CudaClock:
    """CUDA events on the current stream."""

    def __init__(self, device: str = "cuda") -> None:
        self._buffer = torch.ones(_FLUSHED_BYTES // 4, device=device)
        self._sum = torch.empty((), device=device)

    def flush(self) -> None:
        """Reads a buffer."""
        torch.sum(self._buffer, 0, out=self._sum)

    def mark(self) -> torch.cuda.Event:
        """An event."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """The time between two events, both of which have happened."""
        return start.elapsed_time(end) / 1e3

    def wait(self) -> None:
        """torch.cuda.synchronize"""
        torch.cuda.synchronize()


class HostClock:
    """The CPU in a GPU's place, for a dry run: what it does is done when a call returns."""

    def flush(self) -> None:
        """Leaves the caches alone."""

    def mark(self) -> float:
        """The time."""
        return time.perf_counter()

    def seconds(self, start: float, end: float) -> float:
        """The time between two marks."""
        return end - start

    def wait(self) -> None:
        """Nothing is running."""


def cold_seconds(
    contestants: Mapping[str, Callable[[], object]],
    clock: Clock,
    seconds: float = SECONDS,
    fewest_rounds: int = 10,
) -> dict[str, float]:
    """Median seconds on the GPU per call; every contestant takes its turn in every round.

    Rounds continue until `seconds` have passed for each contestant.  All have been called before.
    """
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    order = list(contestants)
    end = time.perf_counter() + seconds * len(order)
    while len(samples[order[0]]) < fewest_rounds or time.perf_counter() < end:
        for name in order:
            clock.flush()
            start = clock.mark()
            contestants[name]()
            done = clock.mark()
            clock.wait()
            samples[name].append(clock.seconds(start, done))
        order.append(order.pop(0))
    return {name: statistics.median(samples[name]) for name in contestants}


def host_seconds(
    contestants: Mapping[str, Callable[[], object]], clock: Clock, calls: int = _HOST_CALLS
) -> dict[str, float]:
    """Median seconds until a call returns, on an idle GPU."""
    found = {}
    for name, function in contestants.items():
        samples = []
        for _ in range(calls):
            clock.wait()
            start = time.perf_counter()
            function()
            samples.append(time.perf_counter() - start)
        found[name] = statistics.median(samples)
    clock.wait()
    return found


def copy_bandwidth(clock: Clock, device: str = "cuda", size_bytes: int = COPIED_BYTES) -> float:
    """Bytes read and written per second by `copy_` between two tensors of `size_bytes`."""
    source = torch.ones(size_bytes // 4, device=device)
    target = torch.zeros_like(source)
    target.copy_(source)
    found = cold_seconds({"copy": lambda: target.copy_(source)}, clock)
    return 2 * size_bytes / found["copy"]


def file_name(gpu: str) -> str:
    """The name of the file with a GPU's results."""
    return f"gpu_{re.sub(r'[^a-z0-9]+', '_', gpu.lower()).strip('_')}.json"
