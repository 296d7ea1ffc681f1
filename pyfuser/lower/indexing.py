"""From loop indices to element offsets, and to the predicates that keep them in bounds.

Going from the loops towards the root axes, a split gives `outer * inner_extent + inner`, a merge
`index // inner_extent` and `index % inner_extent`, and a reversal `extent - 1 - index`.  A producer
in registers or scratch memory is read at *its* loop indices, found by going the other way through
its own history.  Every split that isn't known to divide contributes the predicate
`index of its input < extent of its input`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..analysis.mapping import producer_to_consumer
from ..analysis.matching import axes_match
from ..ir.domains import IdExpr, IterDomain, Merge, Reverse, Split, Swizzle, history
from ..ir.exprs import Expr
from ..ir.kernel import Less, Predicate
from ..ir.scalar_functions import xor
from ..ir.scalar_queries import divides
from ..ir.scalars import (
    ONE,
    ZERO,
    CeilDiv,
    Integer,
    IntExpr,
    Symbol,
    floor_div,
    mod,
    proves_less,
    terms_of,
)
from ..ir.schedule import MemoryType
from ..ir.vals import TensorView
from .loops import LoopStructure

Indices = dict[IterDomain, IntExpr]


def backward(
    loop: list[IterDomain],
    roots: list[IterDomain],
    indices: Indices,
    extents: Mapping[IterDomain, IntExpr],
) -> list[Less]:
    """Fills `indices` from `loop` back to `roots`; returns the predicates of the splits."""
    predicates: list[Less] = []
    steps = history(loop, roots)
    for expr in reversed(steps):
        match expr:
            case Split():
                outer, inner = indices[expr.outer_id], indices[expr.inner_id]
                index = outer * extents[expr.inner_id] + inner
                indices[expr.input_id] = index
                extent = extents[expr.input_id]
                if _is_certain(expr, steps):
                    continue
                if not _is_within(expr, index, extent):
                    # The elements of an even split's inner axis are all in bounds, or none is.
                    is_even = expr.is_even and expr.inner_split
                    predicates.append(Less(index - inner if is_even else index, extent))
            case Merge():
                index, inner_extent = indices[expr.output_id], extents[expr.inner_id]
                if extents[expr.outer_id] is ONE:
                    indices[expr.outer_id], indices[expr.inner_id] = ZERO, index
                elif inner_extent is ONE:
                    indices[expr.outer_id], indices[expr.inner_id] = index, ZERO
                else:
                    found = _divided(index, inner_extent)
                    indices[expr.outer_id], indices[expr.inner_id] = found
            case Swizzle():
                x = indices[expr.out_x_id]
                indices[expr.x_id] = x
                indices[expr.y_id] = xor(x, indices[expr.out_y_id])
            case Reverse():
                last = extents[expr.input_id] - 1
                indices[expr.input_id] = last - indices[expr.output_id]
    return predicates


def _is_within(split: Split, index: IntExpr, extent: IntExpr) -> bool:
    """True if the index of a split's input is in bounds wherever its loops run."""
    if split.is_whole and index is ZERO:  # it has one outer part even if there are no elements
        return isinstance(extent, Integer) and extent.value > 0
    return divides(split.factor, extent) or proves_less(index, extent)


def _is_certain(split: Split, steps: Sequence[IdExpr]) -> bool:
    """True if every pair of the two indices is in bounds: the split is even, and has one outer
    part, or many of which another even split has as many as there are.
    """
    if not split.is_even:
        return False
    following = (s for s in steps if isinstance(s, Split) and s.input_id is split.outer_id)
    return split.is_whole or any(s.is_even for s in following)


def _divided(index: IntExpr, extent: IntExpr) -> tuple[IntExpr, IntExpr]:
    """The quotient and the rest; of an axis without elements, which has no index, 0 and 0."""
    if extent is ZERO:
        return ZERO, ZERO
    return floor_div(index, extent), mod(index, extent)


def forward(
    loop: list[IterDomain],
    roots: list[IterDomain],
    indices: Indices,
    extents: Mapping[IterDomain, IntExpr],
) -> None:
    """Fills `indices` from `roots` to `loop`, as far as the roots' indices are known."""
    for expr in history(loop, roots):
        match expr:
            case Split():
                index = indices.get(expr.input_id)
                if index is not None:
                    found = _divided(index, extents[expr.inner_id])
                    indices[expr.outer_id], indices[expr.inner_id] = found
            case Merge():
                outer, inner = indices.get(expr.outer_id), indices.get(expr.inner_id)
                if outer is not None and inner is not None:
                    indices[expr.output_id] = outer * extents[expr.inner_id] + inner
            case Swizzle():
                x, y = indices.get(expr.x_id), indices.get(expr.y_id)
                if x is not None and y is not None:
                    indices[expr.out_x_id], indices[expr.out_y_id] = x, xor(x, y)
            case Reverse():
                index = indices.get(expr.input_id)
                if index is not None:
                    indices[expr.output_id] = extents[expr.input_id] - 1 - index


def without_implied(predicates: Iterable[Less]) -> Predicate:
    """Drops `a < ceildiv(n, f)` where the stronger `a*f + ... < n` is present."""
    found = list(predicates)

    def implied(weak: Less) -> bool:
        if not isinstance(weak.b, CeilDiv):
            return False
        size, factor = weak.b.a, weak.b.b
        return any(
            strong.b is size and all(c >= 0 for _, c in terms_of(strong.a - weak.a * factor))
            for strong in found
        )

    return tuple(p for p in found if not implied(p))


class Indexer:
    """Offsets and predicates for one kernel."""

    def __init__(self, structure: LoopStructure, threads_are_hardware: bool) -> None:
        self.structure = structure
        self.scheduled = structure.scheduled
        self.threads_are_hardware = threads_are_hardware
        self._cache: dict[TensorView, tuple[Indices, Predicate]] = {}

    def indices(self, tensor: TensorView) -> tuple[Indices, Predicate]:
        """(index of every axis of a tensor inside its own loops, predicates)."""
        found = self._cache.get(tensor)
        if found is None:
            loop = self.scheduled[tensor].loop
            extents = self.structure.extents[tensor]
            indices: Indices = {
                axis: self.structure.loop(tensor, i).index for i, axis in enumerate(loop)
            }
            logical = tensor.domain.logical
            predicates = backward(loop, logical, indices, extents)
            if tensor.domain.root is not None:
                predicates += backward(logical, tensor.domain.root, indices, extents)
            found = indices, without_implied(dict.fromkeys(predicates))
            self._cache[tensor] = found
        return found

    def size_conditions(self, tensor: TensorView) -> list[Less]:
        """The conditions on sizes under which the tensor's splits are as whole as they claim."""
        extents = self.structure.extents[tensor]
        splits = history(self.scheduled[tensor].loop, tensor.domain.logical)
        found = []
        for split in splits:
            if isinstance(split, Split) and split.is_whole:
                found.append(Less(extents[split.input_id], split.factor + 1))
            if isinstance(split, Split) and split.is_even:
                found.append(Less(mod(extents[split.input_id], split.factor), ONE))
                if split.is_whole:  # and then it isn't empty
                    found.append(Less(ZERO, extents[split.input_id]))
        return [each for each in found if each.a.symbols or each.b.symbols]

    def place(self, tensor: TensorView) -> IntExpr:
        """The number of a tensor's element, row by row, whatever its layout in memory."""
        indices, _ = self.indices(tensor)
        extents = self.structure.extents[tensor]
        axes = [axis for axis in tensor.axes if not axis.is_broadcast]
        return linear([indices[a] for a in axes], [extents.get(a, a.extent) for a in axes])

    def element_predicate(self, tensor: TensorView) -> Predicate:
        """Where the tensor has an element; reduction axes add no condition."""
        loop, logical = self.scheduled[tensor].loop, tensor.domain.logical
        indices: Indices = {
            axis: self.structure.loop(tensor, i).index for i, axis in enumerate(loop)
        }
        predicates = backward(loop, logical, indices, self.structure.extents[tensor])
        reduced = {indices[axis] for axis in loop if axis.is_reduction}
        return tuple(p for p in dict.fromkeys(predicates) if reduced.isdisjoint(p.a.symbols))

    def allocated_positions(self, tensor: TensorView) -> list[int]:
        """The positions of the loop domain for which a tensor's own buffer has elements."""
        schedule = self.scheduled[tensor]
        kept = []
        for position, axis in enumerate(schedule.loop):
            loop = self.structure.loop(tensor, position)
            kind = loop.parallel_type
            if axis.is_reduction or loop.extent is ONE:
                continue
            if schedule.memory_type is not MemoryType.global_:
                if kind.is_grid or (
                    position < schedule.compute_at and not self._shares(tensor, kind.is_block)
                ):
                    continue
                is_register = schedule.memory_type is MemoryType.local
                if kind.is_block and self.threads_are_hardware and is_register:
                    continue
            kept.append(position)
        return kept

    def _shares(self, tensor: TensorView, is_block: bool) -> bool:
        """Shared memory inside a hardware thread loop still needs an element per thread."""
        return (
            is_block
            and self.threads_are_hardware
            and self.scheduled[tensor].memory_type is MemoryType.shared
        )

    def _allocated(self, tensor: TensorView) -> Sequence[IterDomain]:
        """The axes for which a tensor's own buffer has elements, outermost first."""
        schedule = self.scheduled[tensor]
        if schedule.allocation is not None:
            return schedule.allocation
        return [schedule.loop[position] for position in self.allocated_positions(tensor)]

    def buffer_extents(self, tensor: TensorView) -> list[IntExpr]:
        """The extents of a tensor's own buffer, outermost first; the last one with its padding."""
        schedule = self.scheduled[tensor]
        if schedule.allocation is not None:
            known = self.structure.extents[tensor]
            extents = [known[axis] for axis in schedule.allocation]
        else:
            positions = self.allocated_positions(tensor)
            extents = [self.structure.loop(tensor, p).extent for p in positions]
        if extents:
            extents[-1] = extents[-1] + schedule.padding
        return extents

    def own_offset(self, tensor: TensorView) -> IntExpr:
        """Where the tensor's statement writes in its own buffer."""
        indices, _ = self.indices(tensor)
        axes = self._allocated(tensor)
        if any(axis not in indices for axis in axes):
            indices = dict(indices)
            forward([*axes], tensor.domain.logical, indices, self.structure.extents[tensor])
        return linear([indices[axis] for axis in axes], self.buffer_extents(tensor))

    def producer_axes(self, expr: Expr, producer: TensorView, consumer: TensorView) -> Indices:
        """The index of each logical axis of a producer inside the consumer's statement."""
        leader = expr.tensor_outputs[0] if consumer is not expr.tensor_outputs[0] else consumer
        indices, _ = self.indices(leader)
        mapping = producer_to_consumer(expr, producer, leader)
        extents = self.structure.extents.get(producer, {})
        return {
            axis: ZERO if extents.get(axis) is ONE else indices[partner]
            for axis, partner in mapping.items()
        }

    def producer_offset(self, expr: Expr, producer: TensorView, consumer: TensorView) -> IntExpr:
        """Where the consumer's statement reads in the producer's own buffer."""
        axes = self._allocated(producer)
        if not axes:
            return ZERO
        known = self.producer_loops(expr, producer, consumer)
        return linear([known[axis] for axis in axes], self.buffer_extents(producer))

    def producer_loops(self, expr: Expr, producer: TensorView, consumer: TensorView) -> Indices:
        """The index of each of the producer's axes, loops included, in the consumer's statement."""
        schedule = self.scheduled[producer]
        shared = {
            axis: self.structure.loop(producer, position).index
            for position, axis in enumerate(schedule.loop[: schedule.compute_at])
        }
        known = shared | self.producer_axes(expr, producer, consumer)
        self._stand_ins(producer, known)
        extents = self.structure.extents[producer]
        forward(schedule.made, producer.domain.logical, known, extents)
        # A shared loop has the same index for both, however its axis was made.
        return known | self._promoted_loops(expr, producer, consumer) | shared

    def _promoted_loops(self, expr: Expr, producer: TensorView, consumer: TensorView) -> Indices:
        """The indices of loops that aren't shared and walk like the consumer's at their positions,
        because the broadcast axes that they are made of have the consumer's extents.

        The indices of such axes don't follow from those of the producer's own axes.
        """
        schedule, other = self.scheduled[producer], self.scheduled[consumer].loop
        mine, extents = self.structure.extents[producer], self.structure.extents[consumer]
        mapping = producer_to_consumer(expr, producer, consumer)
        found: Indices = {}
        for position in range(schedule.compute_at, min(len(schedule.loop), len(other))):
            axis, pairs = schedule.loop[position], dict[IterDomain, IterDomain]()
            if not axes_match(axis, other[position], mapping, pairs) or not pairs:
                continue
            if all(mine.get(a) is extents.get(b, b.extent) for a, b in pairs.items()):
                found[axis] = self.structure.loop(consumer, position).index
        return found

    def _stand_ins(self, producer: TensorView, known: Indices) -> None:
        """Adds indices of axes that the consumer lacks: those of the producer's shared loops."""
        own, _ = self.indices(producer)
        compute_at = self.scheduled[producer].compute_at
        shared: set[Symbol] = set()
        for position in range(compute_at):
            shared |= self.structure.loop(producer, position).index.symbols
        for axis, index in own.items():
            if axis not in known and axis.is_broadcast:
                known[axis] = index if index.symbols <= shared else ZERO


def linear(indices: list[IntExpr], extents: list[IntExpr]) -> IntExpr:
    """The number of an element, row by row; the first axis is outermost."""
    offset: IntExpr = ZERO
    for index, extent in zip(indices, extents, strict=True):
        offset = offset * extent + index
    return offset
