"""Profiles of calls: the time each part of a program takes, and the bytes it reads and writes.

While a `Recorder` records, plans are written with a clock around every part, so other plans have no
trace of it:

    call = begin(...)
    since = clock()
    launch(...)
    call.part(0, since, (x0,), (t2,), (8,), ())
    call.end()

The clock waits until the device has done everything launched before.  A part's time includes the
allocation of its outputs.  A graph of torch.compile is timed, call by call and fusion by fusion, if
it is compiled while a Recorder records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import prod
from time import perf_counter

import torch

from .compiler import Program
from .devices.runtime import LoadedKernel, Runtime
from .devices.switches import forget_plans
from .ir.domains import ParallelType
from .ir.scalar_queries import substitute
from .ir.scalars import IntExpr
from .ir.vals import TensorView
from .locks import ForkSafeLock
from .parts import KernelPart, LibraryPart, Part
from .plan_text import Writer, tuple_text
from .plan_writer import ProgramWriter


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


class PlanClock:
    """Writes the statements that time the parts of one program.

    `prefix` keeps its names apart from those of other programs in the same text.
    """

    def __init__(
        self, recorder: Recorder, program: Program, writer: Writer, prefix: str = ""
    ) -> None:
        self.writer, self.call, self.since = writer, f"{prefix}call", f"{prefix}since"
        kinds = tuple(kind_of(part) for part in program.parts)
        begin = partial(recorder.begin, program.runtime, kinds)
        writer.line(f"{self.call} = {writer.constant(f'{prefix}begin', begin)}()")

    def start(self) -> None:
        """Before a part."""
        self.writer.line(f"{self.since} = {self.call}.clock()")

    def stop(
        self, program: ProgramWriter, number: int, part: Part, built: LoadedKernel | None
    ) -> None:
        """After a part."""
        inputs, outputs = (
            tuple_text([program.described(v) for v in values if isinstance(v, TensorView)])
            for values in (part.segment.inputs, part.segment.outputs)
        )
        grid, block = "()", "()"
        if built is not None:
            phase, joined = built.kernel.phases[0], built.kernel.joined

            def text(extent: IntExpr) -> str:
                return program.sizes.text(substitute(extent, joined))

            grid, block = (_extents(each, text) for each in (phase.grid, phase.block))
        arguments = f"{number}, {self.since}, {inputs}, {outputs}, {grid}, {block}"
        self.writer.line(f"{self.call}.part({arguments})")

    def finish(self) -> None:
        """After the last part."""
        self.writer.line(f"{self.call}.end()")


def clock_for(program: Program, writer: Writer, prefix: str = "") -> PlanClock | None:
    """The clock of a program that is written now; None while nothing records."""
    recorder = active_recorder()
    return None if recorder is None else PlanClock(recorder, program, writer, prefix)


def kind_of(part: Part) -> str:
    """The name of what runs a part."""
    if isinstance(part, KernelPart):
        return part.segment.scheduler
    return "library" if isinstance(part, LibraryPart) else "view"


def _extents(extents: dict[ParallelType, IntExpr], text: Callable[[IntExpr], str]) -> str:
    ordered = sorted(extents.items(), key=lambda item: item[0].value)
    return tuple_text([text(extent) for _, extent in ordered])
