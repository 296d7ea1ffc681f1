"""Profiles of calls: the time each part of a program takes, and the bytes it reads and writes.

While a `Recorder` records, plans are written with a clock around every part (plans/clock.py), so
other plans have no trace of it.  The clock waits until the device has done everything launched
before.  A part's time includes the allocation of its outputs.  A graph of torch.compile is timed,
call by call and fusion by fusion, if it is compiled while a Recorder records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from time import perf_counter

import torch

from .devices.runtime import Runtime
from .devices.switches import forget_plans
from .locks import ForkSafeLock


@dataclass(frozen=True, slots=True)
class PartProfile:
    """What one part of a call did.

    scheduler   the kernel's scheduler; "library" or "view" for parts without a kernel
    seconds     from the end of the previous part to the end of this one, on an idle device
    read, written   bytes of its inputs and outputs, each counted once
    grid, block     extents of the kernel's first launch, x first
    """

    number: int
    scheduler: str
    device: torch.device
    seconds: float
    read: int
    written: int
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()


@dataclass(slots=True)
class CallProfile:
    """One call: its parts, the whole time on the host, and the time that compiling took before."""

    device: torch.device
    parts: list[PartProfile] = field(default_factory=list)
    host_seconds: float = 0.0
    compile_seconds: float = 0.0


class Recorder:
    """Keeps the profiles of the calls made while it records, in order."""

    def __init__(self) -> None:
        self.calls: list[CallProfile] = []
        self.compile_seconds = 0.0

    def begin(self, runtime: Runtime, kinds: Sequence[str]) -> _Call:
        """Begins a call whose parts are of these kinds."""
        return _Call(self, runtime, kinds)


class _Call:
    """A call that is running."""

    def __init__(self, recorder: Recorder, runtime: Runtime, kinds: Sequence[str]) -> None:
        self.recorder, self.runtime, self.kinds = recorder, runtime, kinds
        self.profile = CallProfile(runtime.device, compile_seconds=recorder.compile_seconds)
        recorder.compile_seconds = 0.0
        self.started = perf_counter()

    def clock(self) -> float:
        """Seconds, once the device is idle."""
        self.runtime.synchronize()
        return perf_counter()

    def part(
        self,
        number: int,
        since: float,
        inputs: Sequence[object],
        outputs: Sequence[object],
        grid: tuple[int, ...],
        block: tuple[int, ...],
    ) -> None:
        """Records a part that began at `since` and has just been launched."""
        seconds = self.clock() - since
        read, written = (sum(bytes_of(t) for t in distinct(values)) for values in (inputs, outputs))
        kind, device = self.kinds[number], self.runtime.device
        made = PartProfile(number, kind, device, seconds, read, written, grid, block)
        self.profile.parts.append(made)

    def end(self) -> None:
        """Records the call."""
        self.profile.host_seconds = perf_counter() - self.started
        self.recorder.calls.append(self.profile)


def distinct(values: Sequence[object]) -> list[torch.Tensor]:
    """The tensors among some values, each once."""
    return list({id(v): v for v in values if isinstance(v, torch.Tensor)}.values())


def bytes_of(tensor: torch.Tensor) -> int:
    """The bytes of a tensor's elements; an expanded dimension has one."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return prod(n if stride else min(n, 1) for n, stride in pairs) * tensor.element_size()


_recorders: list[Recorder] = []
_lock = ForkSafeLock()


def active_recorder() -> Recorder | None:
    """The recorder that new plans report to."""
    return _recorders[-1] if _recorders else None


@contextmanager
def recording(recorder: Recorder) -> Iterator[Recorder]:
    """Records the calls of all fusions, in all threads; they get other plans before and after."""
    with _lock:
        _recorders.append(recorder)
    forget_plans()
    try:
        yield recorder
    finally:
        with _lock:
            _recorders.remove(recorder)
        forget_plans()
