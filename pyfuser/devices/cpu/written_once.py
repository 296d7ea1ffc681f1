"""Results in memory along which tasks have no loop: one task writes them for all.

Buffers of a kernel that aren't in memory belong to a task, and every task computes its own.  If one
statement computes both (a welford whose mean is in a register and whose variance is an output), the
other tasks work on a copy of the result in memory that nobody reads.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from ...ir.kernel import Buffer, Compute, Initialise, Reduce, Scan, Scatter
from ...ir.kernel_queries import written
from ...ir.scalars import ONE, IntExpr
from ...ir.schedule import MemoryType
from .llvm_types import I64
from .llvm_writer import Value

if TYPE_CHECKING:
    from .codegen import PhaseGenerator

Writing = Compute | Initialise | Reduce | Scan | Scatter


class WrittenOnce:
    """The conditions of one phase's statements, and the copies of results."""

    def __init__(self, phase: PhaseGenerator) -> None:
        self._phase = phase
        self._copied: set[Buffer] = set()

    def condition(self, statement: Writing) -> Value | None:
        """When a task runs a statement; None for always.

        If it computes something for each task, too, its results in memory are copied.
        """
        phase = self._phase
        outputs = written(statement)
        stored = [o.buffer for o in outputs if o.buffer.memory is MemoryType.global_]
        if not stored or phase.open_grid.issuperset(phase.phase.grid):
            return None
        if len(stored) == len(outputs):
            return self._is_first()
        for buffer in stored:
            if buffer not in self._copied:
                self._copy(buffer)
        return None

    def _is_first(self) -> Value:
        """True in the first task along the axes of the grid without a loop around the statement."""
        phase, w = self._phase, self._phase.writer
        zero = w.constant(0, I64)
        missing = (kind for kind in phase.phase.grid if kind not in phase.open_grid)
        return reduce(w.and_, [w.icmp("eq", phase.grid_index[kind], zero) for kind in missing])

    def _copy(self, buffer: Buffer) -> None:
        phase = self._phase
        self._copied.add(buffer)
        own = phase.in_workspace(self._elements(buffer) * buffer.bytes_each)
        with phase.scopes.at(1):
            shared = phase.pointers[buffer]
            phase.pointers[buffer] = phase.writer.select(self._is_first(), shared, own)

    def _elements(self, buffer: Buffer) -> IntExpr:
        """How many elements lie between the first and the end of a buffer, or a few more."""
        parameter = self._phase.statements.parameters.get(buffer)
        if parameter is None:
            return buffer.size
        count: IntExpr = ONE
        for size, stride in zip(parameter.sizes, parameter.strides, strict=True):
            count = count + size * stride
        return count
