"""Groups of units, merged while a scheduler accepts them and no cycle arises.

A group carries its `Summary`, so that a merge is judged without reading expressions again, and a
place in a topological order of all groups.  Merging moves only the affected groups in that order
(Pearce and Kelly, "A dynamic topological sort algorithm for directed acyclic graphs", 2007), and
the smaller group's units are moved into the larger: near-linear over a whole fusion.

Invariant: the group graph is acyclic and `order` is a topological order of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..analysis.costs import is_expensive, is_root
from ..analysis.innermost import common_innermost
from ..analysis.iteration_space import Axes, Signature, windowed_input
from ..analysis.part_axes import shares_parts
from ..ir.exprs import LibraryOp
from ..ir.vals import TensorView
from ..schedule.acceptance import (
    NORMALIZATION,
    Summary,
    greedy_refusal,
    inner_outer_refusal,
    nested_refusal,
    persistent_refusal,
    pointwise_refusal,
    reduction_refusal,
)
from ..schedule.facts import reduced_bytes
from ..schedule.registry import DISABLED, Refusal
from ..schedule.size_info import SizeInfo
from .memory_directions import Direction, crossing, directions, has_fixed_order
from .repeated_work import Innermost, innermost, repeats
from .units import Unit, UnitGraph


@dataclass(slots=True, eq=False)
class Group:
    """Units that will be one kernel; `version` counts its merges.

    `reads` are the tensors that it reads along their axes, `windowed` the inputs that it reads
    through windows.  `is_expensive` says that it has expensive operations, `has_roots` that it has
    square roots, `inner` which axis of its largest tensor is innermost in memory; `directions` are
    those of the fusion's inputs and outputs in it, `written` those of the outputs.
    `shares_parts` says that parts have expensive operations in common, which only a pointwise
    kernel computes once.
    """

    units: list[Unit]
    summary: Summary
    order: int
    evaluated: bool
    barriers: set[int]
    reads: set[TensorView]
    windowed: set[TensorView] = field(default_factory=set)
    producers: set[Group] = field(default_factory=set)
    consumers: set[Group] = field(default_factory=set)
    version: int = 0
    is_output: bool = False
    is_expensive: bool = False
    has_roots: bool = False
    inner: Innermost = Innermost()
    directions: set[Direction] = field(default_factory=set)
    written: set[Direction] = field(default_factory=set)
    shares_parts: bool = False


@dataclass(slots=True)
class Merge:
    """An acceptable merge, and the kinds of reductions that units follow because of it."""

    summary: Summary
    dependent: dict[Unit, frozenset[Signature]]


class Groups:
    """All groups of a fusion; at first, one per unit."""

    def __init__(self, graph: UnitGraph, sizes: SizeInfo) -> None:
        self.graph, self.sizes = graph, sizes
        self.of: dict[Unit, Group] = {}
        self._outside = {
            t: len(graph.readers.get(t, ())) for unit in graph.units for t in unit.outputs
        }
        self._refused: dict[tuple[Group, Group], tuple[int, int, str]] = {}
        for order, unit in enumerate(graph.units):
            unit.follows = frozenset() if unit.signature is None else frozenset([unit.signature])
            self.of[unit] = self._single(unit, order)
        for unit in graph.units:
            group = self.of[unit]
            group.producers = {self.of[p] for p in unit.producers}
            group.consumers = {self.of[c] for c in unit.consumers}

    def _single(self, unit: Unit, order: int) -> Group:
        loops = self.graph.space.loops
        summary = Summary(axes=set(unit.axes), steps=set(unit.steps))
        leaving = (t for t in unit.outputs if self._outside[t] or t in self.graph.outputs)
        summary.outputs = Counter(loops(tensor) for tensor in leaving)
        summary.terminals = summary.outputs.copy()
        if unit.signature is not None:
            summary.row_bytes = reduced_bytes(unit.expr)
            summary.signatures.add(unit.signature)
            for tensor in unit.outputs:
                summary.add_after([unit.signature], loops(tensor))
        source = windowed_input(unit.expr)
        is_output = not self.graph.outputs.isdisjoint(unit.outputs)
        group = Group([unit], summary, order, unit.evaluated, set(unit.barriers), set(unit.aligned))
        group.windowed = set() if source is None else {source}
        group.is_output = is_output
        group.is_expensive, group.has_roots = is_expensive(unit.expr), is_root(unit.expr)
        group.inner = innermost(self.graph.space, [*unit.aligned, *unit.outputs])
        fixed = [tensor for tensor in unit.aligned if has_fixed_order(tensor)]
        group.written = directions(self.graph.space, self.graph.outputs & {*unit.outputs})
        group.directions = directions(self.graph.space, fixed) | group.written
        return group

    def in_order(self) -> list[Group]:
        """The groups, each after those it reads from."""
        return in_order(set(self.of.values()))

    # -- judging a merge

    def refusal(self, a: Group, b: Group) -> str | None:
        """Why two groups can't be one kernel; None if they can (apart from cycles)."""
        made = self._judge(a, b)
        return made if isinstance(made, str) else None

    def _judge(self, a: Group, b: Group) -> Merge | str:
        if a.evaluated or b.evaluated:
            if any(isinstance(group.units[0].expr, LibraryOp) for group in (a, b)):
                return "a library operation is a part of its own"
            if a.evaluated and b.evaluated:
                return self._joined(a, b)
            return "torch computes one of them, a kernel the other"
        barriers = a.barriers & b.barriers
        if barriers:
            is_cut = not barriers.isdisjoint(self.graph.cuts)
            return "segment_set" if is_cut else "a tensor is read along axes in different orders"
        if not self._is_linked(a, b):
            return "they have axes of equal size that no tensor between them puts in one loop"
        repeated = self._repeats(a, b) or self._repeats(b, a)
        if repeated is not None:
            return repeated
        if (a.shares_parts or b.shares_parts) and (a.summary.signatures or b.summary.signatures):
            return "a reduction would repeat what parts have in common"
        merge = self._joined(a, b)
        reason = self._kernel_refusal(merge.summary, _innermost(a, b))
        if reason is None:
            has_rows = merge.summary.has_rows
            both = a.directions | b.directions if has_rows else a.written | b.written
            reason = crossing(both, self.sizes, self.graph.space.extents, has_rows)
        return merge if reason is None else reason

    def _is_linked(self, a: Group, b: Group) -> bool:
        """True if each axis they share is in a tensor between the groups or read by both.

        Axes are numbered over the whole fusion; within a kernel, only its own tensors map them.
        """
        small, large = (a, b) if len(a.units) <= len(b.units) else (b, a)
        missing = small.summary.axes & large.summary.axes
        for unit in small.units:
            if not missing:
                return True
            for tensor in unit.aligned:
                known = tensor in large.reads or tensor in large.windowed
                if known or self._maker_group(tensor, unit) is large:
                    missing -= self.graph.space.axes(tensor)
            source = windowed_input(unit.expr)
            if source in large.reads or source in large.windowed:
                missing -= self.graph.space.axes(source)
            for tensor in unit.outputs:
                if tensor in large.reads:
                    missing -= self.graph.space.axes(tensor)
        return not missing

    def _repeats(self, few: Group, many: Group) -> str | None:
        """Why expensive operations stay out of a group with more axes; None if they needn't."""
        a, b = few.summary.axes, many.summary.axes
        if not (few.is_expensive or few.has_roots) or few.summary.signatures or not a < b:
            return None
        inner, are_roots = _innermost(many), not few.is_expensive
        extents, is_pointwise = self.graph.space.extents, not many.summary.signatures
        reason = repeats(a, b, inner, self.sizes, extents, are_roots, is_pointwise)
        if reason is None:
            return None
        if inner in a and many in few.producers and b - a <= _reduced(many):
            return None  # they follow from sums of columns, and are computed once for each
        if any(self._normalises(p, c) for p in few.producers for c in few.consumers):
            return None  # its uses along the reduced axes would read everything again
        return reason

    def _shares(self, few: Group, many: Group) -> bool:
        """True if the parts of one group have the expensive operations of the other in common."""
        is_pointwise = not few.summary.signatures and not many.summary.signatures
        is_dear = is_pointwise and (few.is_expensive or few.has_roots)
        axes = few.summary.axes, many.summary.axes
        is_shared = is_dear and shares_parts(*axes, self.graph.space.extents)
        return is_shared and self.sizes.target.shares_parts

    def _normalises(self, producer: Group, consumer: Group) -> bool:
        """True if one kernel can use a group's reductions along the axes that they reduce."""
        if _reduced(producer).isdisjoint(consumer.summary.axes):
            return False
        both = self._joined(producer, consumer).summary
        return self._kernel_refusal(both, _innermost(producer, consumer)) is None

    def ends_repeated_work(self, few: Group, many: Group) -> bool:
        """True if `few` ends a chain of groups on its axes of which one stays out of `many`."""
        if not few.summary.axes < many.summary.axes:
            return False
        waiting, found = [few], {few}
        while waiting:
            group = waiting.pop()
            if self._repeats(group, many) is not None:
                return True
            alike = {p for p in group.producers if p.summary.axes == few.summary.axes} - found
            found |= alike
            waiting += alike
        return False

    def _kernel_refusal(self, summary: Summary, innermost: int) -> str | None:
        """None if a kernel scheduler takes the summary, else the closest one's reason.

        `innermost` is the axis that is innermost in memory.
        """
        if not summary.signatures:
            reason = pointwise_refusal(summary)
            return reason and str(Refusal("pointwise", reason))
        if summary.is_ordered:
            reason = greedy_refusal(summary)
            if "greedy" in self.sizes.disabled:
                reason = DISABLED
            return reason and str(Refusal("greedy", reason))
        reason = reduction_refusal(summary)
        if reason is None:
            return None
        extents = self.graph.space.extents
        persistent = persistent_refusal(summary, innermost, self.sizes, extents)
        if persistent is None:
            return None
        if inner_outer_refusal(summary, innermost, self.sizes, extents) is None:
            return None
        if nested_refusal(summary, innermost, self.sizes, extents) is None:
            return None
        if reason == NORMALIZATION:
            return str(Refusal("inner_persistent", persistent))
        return str(Refusal("reduction", reason))

    def _joined(self, a: Group, b: Group) -> Merge:
        """The summary of both together; only the smaller one's edges are examined."""
        small, large = (a, b) if len(a.units) <= len(b.units) else (b, a)
        x, y = a.summary, b.summary
        crossing = self._crossing(small, large)
        axes, inside, read = self.graph.space.axes, Counter[Axes](), Counter[Axes]()
        for tensor, count in self._read_inside(small, large).items():
            if count and count == self._outside[tensor] and tensor not in self.graph.outputs:
                inside[axes(tensor)] += 1
            if count and self._outside[tensor] == len(self.graph.readers[tensor]):
                read[axes(tensor)] += 1
        dependent = self._dependents(crossing, {a, b})
        summary = Summary(
            x.axes | y.axes,
            x.outputs + y.outputs - inside,
            x.signatures | y.signatures,
            dict(x.after),
            x.terminals + y.terminals - read,
            x.steps | y.steps if x.steps or y.steps else x.steps,
            max(x.row_bytes, y.row_bytes),
        )
        for signature, after in y.after.items():
            summary.add_after([signature], after)
        for unit, signatures in dependent.items():
            for tensor in unit.outputs:
                summary.add_after(signatures, axes(tensor))
        return Merge(summary, dependent)

    def _crossing(self, small: Group, large: Group) -> list[tuple[Unit, Unit]]:
        edges = []
        for unit in small.units:
            edges += [(p, unit) for p in unit.producers if self.of[p] is large]
            edges += [(unit, c) for c in unit.consumers if self.of[c] is large]
        return edges

    def _read_inside(self, small: Group, large: Group) -> Counter[TensorView]:
        """How many more readers each tensor gets within its group."""
        found: Counter[TensorView] = Counter()
        for unit in small.units:
            for tensor in unit.reads:
                if tensor in self._outside and self._maker_group(tensor, unit) is large:
                    found[tensor] += 1
            for tensor in unit.outputs:
                readers = self.graph.readers.get(tensor, ())
                found[tensor] += sum(self.of[reader] is large for reader in readers)
        return found

    def _maker_group(self, tensor: TensorView, reader: Unit) -> Group | None:
        for producer in reader.producers:
            if tensor.expr is producer.expr:
                return self.of[producer]
        return None

    def _dependents(
        self, crossing: list[tuple[Unit, Unit]], pair: set[Group]
    ) -> dict[Unit, frozenset[Signature]]:
        """What units will follow, besides what they do, once the crossing edges are inside."""
        found: dict[Unit, frozenset[Signature]] = {}
        stack = [(consumer, producer.follows) for producer, consumer in crossing]
        while stack:
            unit, follows = stack.pop()
            known = found.get(unit, frozenset())
            more = follows - unit.follows - known
            if more:
                found[unit] = known | more
                stack += [(c, more) for c in unit.consumers if self.of[c] in pair]
        return found

    # -- merging

    def try_merge(self, a: Group, b: Group) -> bool:
        """Merges two groups if a scheduler takes them together and the graph stays acyclic."""
        if a is b:
            return False
        if a.order > b.order:
            a, b = b, a
        known = self._refused.get((a, b))
        if known is not None and known[:2] == (a.version, b.version):
            return False
        merge = self._judge(a, b)
        if isinstance(merge, str):
            self._refused[a, b] = (a.version, b.version, merge)
            return False
        after = self._between(a, b)
        if after is None:
            return False
        self._reorder(a, b, after)
        self._contract(a, b, merge)
        return True

    def _between(self, a: Group, b: Group) -> list[Group] | None:
        """The groups after `a` and before `b` that `a` leads to; None if one leads to `b`."""
        stack = [g for g in a.consumers if g.order < b.order]
        found = set(stack)
        while stack:
            group = stack.pop()
            if b in group.consumers:
                return None
            fresh = [g for g in group.consumers if g.order < b.order and g not in found]
            found.update(fresh)
            stack += fresh
        return list(found)

    def _reorder(self, a: Group, b: Group, after: list[Group]) -> None:
        """Gives both one place: after what leads to `b`, before what `a` leads to."""
        stack = [g for g in b.producers if g.order > a.order]
        before = set(stack)
        while stack:
            fresh = [g for g in stack.pop().producers if g.order > a.order and g not in before]
            before.update(fresh)
            stack += fresh
        before.discard(a)
        sequence = [*in_order(before), a, *in_order(after)]
        places = sorted([g.order for g in sequence] + [b.order])
        for group, place in zip(sequence, places[:-1], strict=True):
            group.order = place
        b.order = a.order

    def _contract(self, a: Group, b: Group, merge: Merge) -> None:
        keep, gone = (a, b) if len(a.units) >= len(b.units) else (b, a)
        keep.shares_parts |= gone.shares_parts or self._shares(a, b) or self._shares(b, a)
        for tensor, count in self._read_inside(gone, keep).items():
            self._outside[tensor] -= count
        for unit, signatures in merge.dependent.items():
            unit.follows |= signatures
        for unit in gone.units:
            self.of[unit] = keep
        keep.units += gone.units
        keep.summary = merge.summary
        keep.barriers |= gone.barriers
        keep.reads |= gone.reads
        keep.windowed |= gone.windowed
        keep.is_output |= gone.is_output
        keep.is_expensive |= gone.is_expensive
        keep.has_roots |= gone.has_roots
        keep.inner = max(keep.inner, gone.inner)
        keep.directions |= gone.directions
        keep.written |= gone.written
        keep.version += 1
        for group in gone.producers:
            group.consumers.discard(gone)
            group.consumers.add(keep)
        for group in gone.consumers:
            group.producers.discard(gone)
            group.producers.add(keep)
        keep.producers |= gone.producers
        keep.consumers |= gone.consumers
        for neighbours in (keep.producers, keep.consumers):
            neighbours.discard(keep)
            neighbours.discard(gone)


def in_order(groups: Iterable[Group]) -> list[Group]:
    """These groups, each after those it reads from; a set of them has no order of its own."""
    return sorted(groups, key=lambda group: group.order)


def _reduced(group: Group) -> set[int]:
    """The axes that a group reduces."""
    return {n for signature in group.summary.signatures for n in signature.reduced}


def _innermost(*groups: Group) -> int:
    """The axis that is innermost in the loops of these groups in one kernel."""
    largest = max(group.inner for group in groups).axis
    found = {direction for group in groups for direction in group.directions}
    return common_innermost([largest], [(*(axes - {n}), n) for axes, n in found])[0]
