"""Which loops the tensors of a schedule share, how long they are, and how they run.

Consumers are visited first: a producer inlined at position p runs inside the consumer's outer p
loops.  A broadcast axis of the producer that takes part in a shared loop is *promoted*: as a loop
it has the consumer's extent, though in memory it still has one element.  This makes the extents of
shared loops equal, which is checked.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..analysis.extents import effective_extents
from ..analysis.mapping import consumers, producer_to_consumer
from ..analysis.matching import axes_match
from ..errors import ScheduleError, expected
from ..ir.disjoint_sets import DisjointSets
from ..ir.domains import IterDomain, ParallelType
from ..ir.scalars import ONE, ZERO, IntExpr, Symbol
from ..ir.schedule import ScheduledFusion
from ..ir.vals import TensorView

LoopPlace = tuple[TensorView, int]  # a position in a tensor's loop domain


@dataclass(eq=False, slots=True)
class Loop:
    """One loop of the kernel, shared by one or more tensors."""

    index: IntExpr
    extent: IntExpr
    parallel_type: ParallelType


class LoopStructure:
    """The loops of every computed tensor of a scheduled fusion."""

    def __init__(self, scheduled: ScheduledFusion) -> None:
        self.scheduled = scheduled
        self.tensors = [t for t in scheduled.fusion.tensors if t.expr is not None]
        self.extents: dict[TensorView, dict[IterDomain, IntExpr]] = {}
        self._shared: DisjointSets[LoopPlace] = DisjointSets()
        self._loops: dict[LoopPlace, Loop] = {}
        for tensor in reversed(self.tensors):
            self._analyse(tensor)
        self._name_loops()

    def loop(self, tensor: TensorView, position: int) -> Loop:
        """The loop at a position of a tensor's loop domain."""
        return self._loops[self.place(tensor, position)]

    def loops(self, tensor: TensorView) -> list[Loop]:
        """All loops of a tensor, outermost first."""
        return [self.loop(tensor, i) for i in range(len(self.scheduled[tensor].loop))]

    def place(self, tensor: TensorView, position: int) -> LoopPlace:
        """The representative of the places that share the loop at a position of a tensor."""
        return self._shared.find((tensor, position))

    def _analyse(self, tensor: TensorView) -> None:
        schedule = self.scheduled[tensor]
        promoted: dict[IterDomain, IntExpr] = {}
        shared: list[tuple[int, TensorView]] = []
        for expr, consumer in consumers(tensor):
            if consumer not in self.extents:
                continue  # a sibling output that nothing needs
            mapping = producer_to_consumer(expr, tensor, consumer)
            other = self.scheduled[consumer].loop
            for position in range(schedule.compute_at):
                pairs: dict[IterDomain, IterDomain] = {}
                if position >= len(other) or not axes_match(
                    schedule.loop[position], other[position], mapping, pairs
                ):
                    what = f"axis {position} of T{tensor.name} to match T{consumer.name}"
                    own = schedule.loop[position : position + 1]
                    got = f"{own[0]}" if own else f"T{tensor.name} with fewer axes"
                    raise ScheduleError(expected("inline", what, got))
                for axis, partner in pairs.items():
                    extent = self.extents[consumer].get(partner, partner.extent)
                    if extent is not ONE:
                        promoted.setdefault(axis, extent)
                shared.append((position, consumer))
                self._shared.join((consumer, position), (tensor, position))
        self.extents[tensor] = effective_extents(self.scheduled, tensor, promoted)
        for position, consumer in shared:
            self._check_extents(tensor, consumer, position)
        assert tensor.expr is not None
        for sibling in tensor.expr.tensor_outputs:
            if sibling in self.extents and sibling is not tensor:
                for position in range(len(schedule.loop)):
                    self._shared.join((sibling, position), (tensor, position))

    def _check_extents(self, tensor: TensorView, consumer: TensorView, position: int) -> None:
        """A shared loop is as long in both tensors, and made of axes as long.

        Loops of equal length may walk along different axes if sizes are constants: 6 elements and
        12 elements split by 16 are one iteration each.
        """
        pending = [(self.scheduled[tensor].loop[position], self.scheduled[consumer].loop[position])]
        compared: set[tuple[IterDomain, IterDomain]] = set()
        while pending:
            mine, other = pending.pop()
            if (mine, other) in compared:
                continue
            compared.add((mine, other))
            length, wanted = self.extents[tensor][mine], self.extents[consumer][other]
            if length is not wanted:
                axis = f"axis {position} of T{tensor.name}"
                what = f"{axis} to be as long as that of T{consumer.name} ({wanted})"
                raise ScheduleError(expected("inline", what, length))
            if mine in tensor.domain.logical or mine.definition is None or other.definition is None:
                continue
            pending += zip(mine.definition.inputs, other.definition.inputs, strict=True)

    def _name_loops(self) -> None:
        members: dict[LoopPlace, list[LoopPlace]] = {}
        for tensor in self.tensors:
            for position in range(len(self.scheduled[tensor].loop)):
                place = self.place(tensor, position)
                members.setdefault(place, []).append((tensor, position))
        for number, (root, group) in enumerate(members.items()):
            kind = self._parallel_type(group)
            extents = [self.extents[t][self.scheduled[t].loop[p]] for t, p in group]
            # An unused sibling has no consumer to promote its broadcast axes.
            extent = next((extent for extent in extents if extent is not ONE), ONE)
            name = kind.value if kind.is_thread else f"j{number}"
            index: IntExpr = ZERO if extent is ONE else Symbol.of(name, extent)
            self._loops[root] = Loop(index, extent, kind)

    def _parallel_type(self, group: list[LoopPlace]) -> ParallelType:
        kinds = {self.scheduled[t].loop[p].parallel_type for t, p in group}
        kinds.discard(ParallelType.serial)
        if len(kinds) > 1:
            names = ", ".join(sorted(k.name for k in kinds))
            tensor, position = group[0]
            what = f"one parallel type for the loop shared at axis {position} of T{tensor.name}"
            raise ScheduleError(expected("parallelize", what, names))
        return kinds.pop() if kinds else ParallelType.serial
