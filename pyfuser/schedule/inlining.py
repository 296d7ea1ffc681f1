"""How many outer loops each tensor shares with its consumers.

A tensor may share a loop with its consumers if the loop matches theirs, isn't one of its own
reduction or vectorised axes, and sharing makes no cycle: among the tensors that would share the
loop, none may need a tensor of which that very loop makes all elements (the result of a reduction
over it, or a tensor that is read along another axis), and no tensor outside this set may lie on a
path between two tensors inside it.  Sets of tensors are bit masks, so the
check takes a few integer operations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..analysis.extents import effective_extents
from ..analysis.mapping import consumers, producer_to_consumer
from ..analysis.matching import Pairs, axes_match
from ..errors import ScheduleError, expected
from ..ir.disjoint_sets import DisjointSets
from ..ir.domains import IterDomain, ParallelType
from ..ir.exprs import Expr
from ..ir.scalars import ONE, IntExpr
from ..ir.schedule import ScheduledFusion, TensorSchedule
from ..ir.vals import TensorView
from .propagation import _between, bounded_transform_backward

# For a shared loop: its tensors, their ancestors, their descendants, and the tensors that need what
# the whole loop makes.
Masks = tuple[int, int, int, int]


class LoopSharing:
    """The loops that tensors share, with the masks that decide whether another may join."""

    def __init__(self, scheduled: ScheduledFusion) -> None:
        self.scheduled = scheduled
        self.tensors = [t for t in scheduled.fusion.tensors if t.expr is not None]
        self.number = {t: i for i, t in enumerate(self.tensors)}
        self.ancestors = [0] * len(self.tensors)
        self.descendants = [0] * len(self.tensors)
        self._reach()
        self.sets: DisjointSets[tuple[int, int]] = DisjointSets()
        self.members: dict[tuple[int, int], Masks] = {}
        self.extents: dict[tuple[int, int], IntExpr] = {}
        self.shapes: dict[tuple[int, int], tuple[IntExpr, ...]] = {}
        self.own_extents: dict[TensorView, dict[IterDomain, IntExpr]] = {}
        self.shared: dict[int, set[tuple[int, int]]] = {}  # by position: loops of several tensors
        for tensor in self.tensors:
            for position in range(scheduled[tensor].compute_at):
                for _, consumer in consumers(tensor):
                    for each in (tensor, consumer):
                        if position >= len(scheduled[each].loop):
                            what = f"axis {position} of T{tensor.name} to match T{consumer.name}"
                            got = f"T{each.name} with fewer axes"
                            raise ScheduleError(expected("inline", what, got))
                    self.join(tensor, consumer, position)

    def _reach(self) -> None:
        for i, tensor in enumerate(self.tensors):
            assert tensor.expr is not None
            for producer in tensor.expr.tensor_inputs:
                j = self.number.get(producer)
                if j is not None:
                    self.ancestors[i] |= self.ancestors[j] | 1 << j
        for i in reversed(range(len(self.tensors))):
            for _, consumer in consumers(self.tensors[i]):
                j = self.number[consumer]
                self.descendants[i] |= self.descendants[j] | 1 << j

    def find(self, tensor: TensorView, position: int) -> tuple[int, int]:
        """The representative of the loop at `position` of a tensor."""
        return self.sets.find((self.number[tensor], position))

    def masks(self, root: tuple[int, int]) -> Masks:
        """The masks of the tensors that share a loop, and of those above and below them."""
        found = self.members.get(root)
        if found is None:
            i, position = root
            found = (1 << i, self.ancestors[i], self.descendants[i], self._later(i, position))
            self.members[root] = found
        return found

    def _later(self, i: int, position: int) -> int:
        """The tensors that need all that the loop at a position of a tensor makes."""
        tensor = self.tensors[i]
        loop = self.scheduled[tensor].loop
        if position >= len(loop):
            return 0
        if loop[position].is_reduction:
            return self.descendants[i]
        later = 0
        for expr, consumer in consumers(tensor):
            other = self.scheduled[consumer].loop
            mapping = producer_to_consumer(expr, tensor, consumer)
            if position >= len(other) or not axes_match(
                loop[position], other[position], mapping, {}
            ):
                j = self.number[consumer]
                later |= 1 << j | self.descendants[j]
        return later

    def join(self, tensor: TensorView, consumer: TensorView, position: int) -> None:
        """Makes two tensors share the loop at a position."""
        a, b = self.find(tensor, position), self.find(consumer, position)
        if a != b:
            joined = _united(self.masks(a), self.masks(b))
            extent = self.extent(a) if self.extent(b) is ONE else self.extent(b)
            self.sets.join(b, a)
            self.shapes[b] = max(self.shape(a), self.shape(b), key=len)
            self.members[b], self.extents[b] = joined, extent
            shared = self.shared.setdefault(position, set())
            shared.discard(a)
            shared.add(b)

    def extent(self, root: tuple[int, int]) -> IntExpr:
        """The extent of a loop: 1 while only broadcast axes share it."""
        found = self.extents.get(root)
        if found is None:
            tensor = self.tensors[root[0]]
            axis = self.scheduled[tensor].loop[root[1]]
            found = ONE if axis.is_broadcast else axis.extent
            # An output is materialised: its loops run over the full extent of expanded axes.
            if tensor.has_expanded_axis:
                found = self._own_extents(tensor)[axis]
        return found

    def _own_extents(self, tensor: TensorView) -> dict[IterDomain, IntExpr]:
        """The extents of a tensor's axes before it shares a loop; computed once per tensor."""
        found = self.own_extents.get(tensor)
        if found is None:
            found = self.own_extents[tensor] = effective_extents(self.scheduled, tensor, {})
        return found

    def shape(self, root: tuple[int, int]) -> tuple[IntExpr, ...]:
        """The extents of the axes that a loop is made of, without those of 1.

        Loops of equal extent may still walk along different axes if sizes are constants.
        """
        found = self.shapes.get(root)
        if found is None:
            tensor = self.tensors[root[0]]
            extents = self._own_extents(tensor)
            leaves = _leaves(self.scheduled[tensor].loop[root[1]], tensor)
            found = tuple(e for leaf in leaves if (e := extents.get(leaf, leaf.extent)) is not ONE)
            self.shapes[root] = found
        return found

    def makes_cycle(self, tensor: TensorView, position: int) -> bool:
        """True if the tensor can't share the loop at `position` with all its consumers."""
        united = self.masks(self.find(tensor, position))
        for _, consumer in consumers(tensor):
            united = _united(united, self.masks(self.find(consumer, position)))
        mask, above, below, later = united
        if later & mask or above & below & ~mask:
            return True
        others = [self.masks(root) for root in self.shared.get(position, ())]
        others = [other for other in others if not other[0] & mask]
        above = _reached(above, [(other[0], other[1]) for other in others])
        below = _reached(below, [(other[0], other[2]) for other in others])
        return bool(above & below & ~mask)

    def highest(self, tensor: TensorView) -> tuple[int, str]:
        """How many loops a tensor can share with its consumers, and why not one more."""
        loop = self.scheduled[tensor].loop
        readers = consumers(tensor)
        if not readers:
            return 0, "it has no consumers"
        for position, axis in enumerate(loop):
            if axis.is_reduction:
                return position, f"axis {axis} is a reduction axis"
            if axis.parallel_type is ParallelType.vectorize:
                return position, f"axis {axis} is vectorized"
            pairs: Pairs = {}
            for expr, consumer in readers:
                other = self.scheduled[consumer].loop
                mapping = producer_to_consumer(expr, tensor, consumer)
                if position >= len(other) or not axes_match(axis, other[position], mapping, pairs):
                    return position, f"axis {axis} has no match in T{consumer.name}"
                if other[position].parallel_type is ParallelType.vectorize:
                    return position, f"axis {other[position]} of T{consumer.name} is vectorized"
            if pairs and self._disagree(readers, position):
                return position, f"axis {axis} is broadcast to one consumer and not to another"
            if self.makes_cycle(tensor, position):
                return position, f"what axis {axis} makes must be complete first"
        return len(loop), "it shares all its loops"

    def _disagree(self, readers: list[tuple[Expr, TensorView]], position: int) -> bool:
        """True if the consumers' loops at a position walk along different axes.

        This is checked only if the producer broadcasts: its real axes are matched one by one.
        """
        roots = [self.find(consumer, position) for _, consumer in readers]
        extents = {self.extent(root) for root in roots}
        return len(extents) > 1 or len({self.shape(root) for root in roots}) > 1

    def inline(self, tensor: TensorView, position: int) -> None:
        """Sets the compute position of a tensor (never lower than it was)."""
        schedule = self.scheduled[tensor]
        for p in range(schedule.compute_at, position):
            for _, consumer in consumers(tensor):
                self.join(tensor, consumer, p)
        schedule.compute_at = max(schedule.compute_at, position)


def _leaves(axis: IterDomain, tensor: TensorView) -> list[IterDomain]:
    """The axes that a loop axis is made of: for reshapes and reductions, axes of the input.

    The logical axes of an rfactor's partial result are the loops it had at the time, and those of a
    reshape may merge an axis that its input only repeats.
    """
    known = tensor.domain.root_or_logical
    leaves: list[IterDomain] = []
    # Both results of a split are made of the same axes, which are listed once.
    seen: set[IterDomain] = set()
    pending = [axis]
    while pending:
        axis = pending.pop()
        if axis in seen:
            continue
        seen.add(axis)
        if axis.definition is None or axis in known:
            leaves.append(axis)
        else:
            pending += reversed(axis.definition.inputs)
    return leaves


def _reached(start: int, sets: list[tuple[int, int]]) -> int:
    """`start`, extended by each (members, beyond) pair with which it has a member in common."""
    found, left = start, sets
    while met := [each for each in left if each[0] & found]:
        left = [each for each in left if not each[0] & found]
        for members, beyond in met:
            found |= members | beyond
    return found


def _united(a: Masks, b: Masks) -> Masks:
    return a[0] | b[0], a[1] | b[1], a[2] | b[2], a[3] | b[3]


def _selected(scheduled: ScheduledFusion, tensors: Sequence[TensorView] | None) -> set[TensorView]:
    return set(tensors) if tensors else set(scheduled.fusion.tensors)


def inline_most(
    scheduled: ScheduledFusion,
    tensors: Sequence[TensorView] | None = None,
    most: Mapping[TensorView, int] | None = None,
) -> None:
    """Inlines all (or the given) tensors as far as possible, consumers first; `most` has the
    positions that some of them don't pass.
    """
    chosen = _selected(scheduled, tensors)
    sharing = LoopSharing(scheduled)
    for tensor in reversed(sharing.tensors):
        if tensor in chosen and tensor.uses_list:
            position = sharing.highest(tensor)[0]
            sharing.inline(tensor, min(position, (most or {}).get(tensor, position)))


def inline_tasks(scheduled: ScheduledFusion, most: Mapping[TensorView, int] | None = None) -> None:
    """`inline_most`, but no tensor is inlined into loops around the tasks of its readers.

    Tasks share no loop.  A tensor whose tasks aren't those of a reader, such as one that the reader
    repeats, is stored before the reader's tasks begin.
    """
    inline_most(scheduled, most=most)
    computed = [tensor for tensor in scheduled.fusion.tensors if tensor.expr is not None]
    read = [tensor for tensor in computed if tensor.uses_list]
    apart = {tensor: 0 for tensor in read if _has_own_tasks(scheduled[tensor])}
    if apart:
        for tensor in computed:
            scheduled[tensor].compute_at = 0
        inline_most(scheduled, most={**(most or {}), **apart})


def _has_own_tasks(schedule: TensorSchedule) -> bool:
    """True if some loops are shared with the readers, and loops over tasks are not."""
    own = schedule.loop[schedule.compute_at :]
    return schedule.compute_at > 0 and any(axis.parallel_type.is_grid for axis in own)


def inline_at(
    scheduled: ScheduledFusion,
    reference: TensorView,
    position: int = -1,
    best_effort: bool = False,
    tensors: Sequence[TensorView] | None = None,
) -> None:
    """Inlines all (or the given) tensors at `position` of the reference's loops.

    It is an error if a tensor can't be; with `best_effort`, it is inlined as far as possible.
    """
    rank = len(scheduled[reference].loop)
    if not -rank - 1 <= position <= rank:
        what = f"a position of T{reference.name} in [{-rank - 1}, {rank}]"
        raise ScheduleError(expected("inline_at", what, position))
    position = rank + position + 1 if position < 0 else position
    chosen = _selected(scheduled, tensors)
    sharing = LoopSharing(scheduled)
    for tensor in reversed(sharing.tensors):
        if tensor not in chosen or not tensor.uses_list or tensor is reference:
            continue
        wanted = min(position, len(scheduled[tensor].loop))
        limit, reason = sharing.highest(tensor)
        if wanted > limit and not best_effort:
            what = f"T{tensor.name} to be inlined at {wanted}"
            raise ScheduleError(expected("inline_at", what, f"at most {limit}: {reason}"))
        sharing.inline(tensor, min(wanted, limit))


def compute_at(
    scheduled: ScheduledFusion,
    producer: TensorView,
    consumer: TensorView,
    position: int,
    mode: str = "standard",
) -> None:
    """Replays the consumer's outer loops on everything back to the producer, and inlines there.

    mode: "standard" (an error if it isn't possible), "best_effort" (as far as possible) or
    "most_inlined" (each tensor as far as possible, the position ignored).
    """
    if mode not in ("standard", "best_effort", "most_inlined"):
        raise ScheduleError(
            expected("compute_at", "mode standard, best_effort or most_inlined", mode)
        )
    rank = len(scheduled[consumer].loop)
    position = rank + position + 1 if position < 0 else position
    if mode == "most_inlined":
        position = rank
    if not 0 <= position <= rank:
        what = f"a position of T{consumer.name} in [0, {rank}]"
        raise ScheduleError(expected("compute_at", what, position))
    between = _between(consumer, [producer])
    if producer not in between:
        what = f"T{consumer.name} to depend on T{producer.name}"
        raise ScheduleError(expected("compute_at", what, "no path between them"))
    bounded_transform_backward(scheduled, consumer, position, [producer])
    chosen = [t for t in between if t is not consumer]
    if mode == "most_inlined":
        inline_most(scheduled, chosen)
    else:
        inline_at(scheduled, consumer, position, mode == "best_effort", chosen)
