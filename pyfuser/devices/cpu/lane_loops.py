"""Loops that run in lanes: whole vectors of iterations, then one with a mask for those left.

for i in [0, n)  ->  for i in [0, n - n % 16) step 16: 16 iterations at once
                     if n % 16 > 0: n % 16 of 16 at once
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import InternalError, expected
from ...ir.domains import ParallelType
from ...ir.kernel import For
from ...ir.kernel_queries import walk
from ...ir.scalars import ZERO, Integer, IntExpr, Symbol, floor_div
from .lanes import Lanes
from .llvm_writer import I64, Value
from .statement_facts import widest

if TYPE_CHECKING:
    from .codegen import PhaseGenerator

MAXIMUM_LANES = 64


class LaneLoops:
    """Writes the loops over lanes of one phase."""

    def __init__(self, phase: PhaseGenerator) -> None:
        self.phase, self.writer = phase, phase.writer

    def runs_in_lanes(self, loop: For) -> bool:
        """True for the innermost of the loops whose iterations may run at once."""
        if self.phase.lanes is not None:
            return False
        if loop.parallel_type is ParallelType.vectorize:
            return True
        return loop.parallel_type is ParallelType.block_x and not any(
            isinstance(s, For) and s.parallel_type is ParallelType.vectorize
            for s in walk(loop.body)
        )

    def count(self, loop: For) -> int:
        """As many lanes as a vector of the widest type has, or as the loop has iterations.

        A power of two of iterations takes up to four such vectors at once.  Measured on a Zen 4,
        where a row's positions (Int) are added to float32 or bfloat16: 0.8 of the time of one.
        """
        most = max((widest(s) for s in walk(loop.body)), default=4)
        native = max(self.phase.vector_bytes // most, 2)
        extent = loop.stop
        if isinstance(extent, Integer):
            size = extent.value
            if size and size & (size - 1) == 0:
                return min(size, 4 * native, MAXIMUM_LANES)
            while native > 2 and native // 2 >= size:
                native //= 2
        return native

    def emit(self, loop: For) -> None:
        """The whole loop: its vectors, and those lanes of one more that are left."""
        count = self.count(loop)
        extent = loop.stop
        if isinstance(extent, Integer) and extent.value == count:
            self._vector(loop, count, ZERO, None)
            return
        whole = floor_div(extent, Integer.of(count)) * count
        base = Symbol.of(f"{loop.index}_base", extent)

        def full(index: Value) -> None:
            self.phase.scopes.define(base, index)
            self._vector(loop, count, base, None)

        if whole is not ZERO:
            self.phase.loop_between(
                self.writer.constant(0, I64), self.phase.scopes.integer(whole), count, full
            )
        if whole is not extent:
            self._tail(loop, count, whole)

    def _tail(self, loop: For, count: int, whole: IntExpr) -> None:
        w = self.writer
        rest = self.phase.scopes.integer(loop.stop - whole)

        def tail() -> None:
            mask = w.icmp(
                "slt",
                w.lane_numbers(I64.with_lanes(count)),
                w.splat(rest, count),
            )
            self._vector(loop, count, whole, mask)

        if isinstance(loop.stop, Integer):
            tail()
        else:
            self.phase.branch_on(w.icmp("sgt", rest, w.constant(0, I64)), tail)

    def _vector(self, loop: For, count: int, base: IntExpr, mask: Value | None) -> None:
        if count == 1:
            raise InternalError(expected("cpu codegen", "two or more lanes", count))
        phase = self.phase
        phase.lanes = phase.statements.lanes = Lanes(loop.index, count, base, mask)
        phase.body(loop.body)
        phase.lanes = phase.statements.lanes = None
