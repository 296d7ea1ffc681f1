"""Clocks in plans: the statements that time the parts of a program while a Recorder records.

    call = begin(...)
    since = call.clock()
    launch(...)
    call.part(0, since, (x0,), (t2,), (8,), ())
    call.end()

What they call, and what comes of it, is in profiling.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..compiler import Program
from ..devices.runtime import LoadedKernel
from ..ir.domains import ParallelType
from ..ir.scalar_queries import substitute
from ..ir.scalars import IntExpr
from ..ir.vals import TensorView
from ..parts import KernelPart, LibraryPart, Part
from ..profiling import Recorder, active_recorder
from .program_writer import ProgramWriter
from .text import Writer, tuple_text


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
