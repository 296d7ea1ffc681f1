"""Gives other tensors the loop domain of a reference tensor.

`transform_like` replays the splits, merges, swizzles and reversals that made the reference's loops
on every other tensor.  Corresponding axes are found in the iteration space of the whole fusion, so
it doesn't matter along which path a tensor is reached.  If a tensor lacks an axis that a merge
needs, or one left of axes it does have, it gets a broadcast stand-in, so that the loops of all
tensors line up from the left and can be shared.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.iteration_space import IterationSpace
from ..analysis.mapping import AxisMap, consumer_to_producer, downstream, upstream
from ..analysis.mapping import producers as producers_of
from ..errors import ScheduleError, expected
from ..ir.domains import (
    IdExpr,
    IdFactory,
    IterDomain,
    Merge,
    ParallelType,
    Reverse,
    Split,
    history,
)
from ..ir.schedule import ScheduledFusion
from ..ir.vals import TensorView


class Replay:
    """Replays the transformations of one tensor's loop axes on the axes of another."""

    def __init__(self, ids: IdFactory, mapping: AxisMap, target: TensorView | None = None) -> None:
        self.ids = ids
        self.made: dict[IterDomain, IterDomain | None] = dict(mapping)
        self.existing: list[IdExpr] = []
        if target is not None and target.domain.root is not None:
            # the transformations of a reshape are reused, not made again
            self.existing = history(target.domain.logical, target.domain.root)

    def axis(self, source: IterDomain) -> IterDomain | None:
        """The target's version of a source axis; None if the target has no part of it."""
        if source in self.made:
            return self.made[source]
        expr = source.definition
        if expr is None:
            self.made[source] = None
            return None
        inputs = [self.axis(i) for i in expr.inputs]
        outputs: Sequence[IterDomain | None]
        if all(i is None for i in inputs):
            outputs = [None] * len(expr.outputs)
        else:
            present = [self.ids.broadcast() if i is None else i for i in inputs]
            outputs = self._apply(expr, present)
        for old, new in zip(expr.outputs, outputs, strict=True):
            self.made[old] = new
        return self.made[source]

    def _apply(self, expr: IdExpr, inputs: list[IterDomain]) -> Sequence[IterDomain]:
        for old in self.existing:
            if type(old) is type(expr) and list(old.inputs) == inputs:
                same = not isinstance(expr, Split) or (isinstance(old, Split) and old.is_like(expr))
                if same:
                    return old.outputs
        match expr:
            case Split():
                known = (expr.inner_split, expr.is_whole, expr.is_even)
                return self.ids.split(inputs[0], expr.factor, *known)
            case Merge():
                self._check_merge(*inputs)
                return (self.ids.merge(*inputs),)
            case Reverse():
                return (self.ids.reverse(*inputs),)
            case _:
                return self.ids.swizzle(*inputs)

    def _check_merge(self, outer: IterDomain, inner: IterDomain) -> None:
        either_broadcast = outer.is_broadcast or inner.is_broadcast
        if outer.is_reduction != inner.is_reduction and not either_broadcast:
            what = "two iteration or two reduction axes to merge"
            raise ScheduleError(expected("transform_like", what, f"{outer} and {inner}"))


def _leaves(roots: Sequence[IterDomain], loop: Sequence[IterDomain]) -> bool:
    """True if `loop` uses each of `roots` and uses nothing twice."""
    used: set[IterDomain] = set()
    for expr in history(loop, roots):
        for axis in expr.inputs:
            if axis in used:
                return False
            used.add(axis)
    used.update(loop)
    return all(root in used for root in roots)


def _replayed_loop(
    scheduled: ScheduledFusion,
    replayer: Replay,
    loops: Sequence[IterDomain],
    target: TensorView,
) -> list[IterDomain] | None:
    """The target's version of some loops, or None if there is none.

    Axes of the target that the loops don't have come last.
    """
    ids = scheduled.fusion.ids
    made = [replayer.axis(axis) for axis in loops]
    while made and made[-1] is None:
        made.pop()
    loop = [ids.broadcast() if axis is None else axis for axis in made]
    logical = target.domain.logical
    consumed = {axis for expr in history(loop, logical) for axis in expr.inputs} | set(loop)
    produced = {axis for expr in history(loop, logical) for axis in expr.outputs}
    found = [axis for axis in replayer.made.values() if axis is not None and axis in produced]
    loop += [a for a in dict.fromkeys((*logical, *found)) if a not in consumed]
    return loop if _leaves(logical, loop) and _reaches_logical(loop, target) else None


def _reaches_logical(loop: Sequence[IterDomain], target: TensorView) -> bool:
    """No loop may be made of root axes past the logical domain (a reshape undone)."""
    root = target.domain.root
    if root is None:
        return True
    logical = target.domain.logical
    hidden = set(root) - set(logical)
    used = {axis for expr in history(loop, logical) for axis in expr.inputs}
    return hidden.isdisjoint(used) and hidden.isdisjoint(loop)


AxisPair = tuple[IterDomain, IterDomain]


class Correspondence:
    """Which axes of two tensors correspond, by their numbers in the iteration space; reshapes are
    followed through the splits and merges that they consist of.
    """

    def __init__(self, scheduled: ScheduledFusion) -> None:
        self.space = IterationSpace.of_fusion(scheduled.fusion)
        self.reshaped: dict[int, list[IterDomain]] = {}
        """The axes of each number that reshapes make; they may make it of different axes."""
        self.alike: dict[bool, dict[AxisPair, bool]] = {}
        """Which pairs of axes are made alike, loosely or not: results of a split ask the same."""
        for expr in self.space.reshapes:
            for axis in expr.outputs:
                self.reshaped.setdefault(self.space.number(axis), []).append(axis)

    def number(self, axis: IterDomain) -> int | None:
        """The number of a tensor's axis; None for broadcasts and for axes that a schedule made."""
        if axis.is_broadcast or not self.space.knows(axis):
            return None
        return self.space.number(axis)

    def of(self, tensor: TensorView) -> dict[int, IterDomain]:
        """The axes of a tensor by number; the logical one where the root has the same number."""
        axes = tensor.domain.root_and_logical
        return {n: axis for axis in axes if (n := self.number(axis)) is not None}


class NumberedReplay(Replay):
    """A replay that finds the target's axes by number, and makes those a reshape would make."""

    def __init__(self, ids: IdFactory, correspondence: Correspondence, target: TensorView) -> None:
        super().__init__(ids, {}, target)
        self.correspondence = correspondence
        self.by_number = correspondence.of(target)

    def axis(self, source: IterDomain) -> IterDomain | None:
        if source in self.made:
            return self.made[source]
        number = self.correspondence.number(source)
        if number is not None:
            found = self.by_number.get(number)
            for axis in self.correspondence.reshaped.get(number, ()):
                found = super().axis(axis) if found is None else found
            self.made[source] = found
            return found
        return super().axis(source)


def transform_like(
    scheduled: ScheduledFusion,
    reference: TensorView,
    tensors: Sequence[TensorView] | None = None,
) -> list[TensorView]:
    """Replays the reference's loop transformations on all (or the given) tensors.

    Returns the tensors whose loops could not be made this way (because of a reshape); they keep
    their loops.  ScheduleError, and nothing changes, if a tensor would lose loops that it shares.
    """
    correspondence = Correspondence(scheduled)
    failed: list[TensorView] = []
    found: dict[TensorView, list[IterDomain]] = {}
    for target in tensors or scheduled.fusion.tensors:
        if target is reference:
            continue
        replayer = NumberedReplay(scheduled.fusion.ids, correspondence, target)
        loop = _replayed_loop(scheduled, replayer, scheduled[reference].loop, target)
        if loop is None:
            failed.append(target)
            continue
        _check_shared(scheduled, target, loop, "transform_like")
        found[target] = loop
    for target, loop in found.items():
        scheduled[target].loop = loop
    return failed


def _check_shared(
    scheduled: ScheduledFusion, target: TensorView, loop: Sequence[IterDomain], operation: str
) -> None:
    shared = scheduled[target].compute_at
    if len(loop) < shared:
        what = f"T{target.name} to keep the loops that it shares with its consumers ({shared})"
        raise ScheduleError(expected(operation, what, f"{len(loop)} loops"))


def bounded_transform_backward(
    scheduled: ScheduledFusion,
    source: TensorView,
    position: int,
    to: Sequence[TensorView],
    propagate_parallel_type: bool = False,
) -> None:
    """Replays the outer `position` loops of `source` on its producers, back to the tensors `to`.

    ScheduleError, and nothing changes, if one has other axes, or would lose loops that it shares.
    """
    operation = "bounded_transform_backward"
    rank = len(scheduled[source].loop)
    if not -rank - 1 <= position <= rank:
        what = f"a position of T{source.name} in [{-rank - 1}, {rank}]"
        raise ScheduleError(expected(operation, what, position))
    position = rank + position + 1 if position < 0 else position
    between = _between(source, to)
    found: dict[TensorView, list[IterDomain]] = {source: scheduled[source].loop}
    reached: list[tuple[TensorView, TensorView]] = []
    pending = [source]
    while pending:
        consumer = pending.pop()
        for expr, producer in producers_of(consumer):
            if producer in found or producer not in between:
                continue
            mapping = consumer_to_producer(expr, producer, consumer)
            replayer = Replay(scheduled.fusion.ids, mapping, producer)
            loop = _replayed_loop(scheduled, replayer, found[consumer][:position], producer)
            if loop is None:
                what = f"T{producer.name} to have the axes of T{consumer.name}"
                raise ScheduleError(expected(operation, what, str(producer)))
            _check_shared(scheduled, producer, loop, operation)
            found[producer] = loop
            reached.append((consumer, producer))
            pending.append(producer)
    for consumer, producer in reached:
        scheduled[producer].loop = found[producer]
        if propagate_parallel_type:
            _copy_parallel_types(scheduled, consumer, producer, position)


def _between(source: TensorView, to: Sequence[TensorView]) -> set[TensorView]:
    """The tensors on the paths from `to` to `source`, ends included."""
    return downstream(to) & upstream([source])


def _copy_parallel_types(
    scheduled: ScheduledFusion,
    reference: TensorView,
    target: TensorView,
    position: int,
    kinds: set[ParallelType] | None = None,
) -> None:
    pairs = zip(scheduled[reference].loop[:position], scheduled[target].loop, strict=False)
    for old, new in pairs:
        if old.parallel_type is not ParallelType.serial and (
            not kinds or old.parallel_type in kinds
        ):
            new.parallel_type = old.parallel_type


def parallelize_like(
    scheduled: ScheduledFusion,
    reference: TensorView,
    position: int = -1,
    tensors: Sequence[TensorView] | None = None,
    parallel_types: set[ParallelType] | None = None,
) -> None:
    """Copies parallel types from the reference's outer `position` loops to matching loops."""
    rank = len(scheduled[reference].loop)
    position = rank + position + 1 if position < 0 else position
    correspondence = Correspondence(scheduled)
    loops = scheduled[reference].loop[:position]
    for target in tensors or scheduled.fusion.tensors:
        if target is reference or target in scheduled.fusion.inputs:
            continue
        free = dict.fromkeys(scheduled[target].loop)
        for place, axis in enumerate(loops):
            kind = axis.parallel_type
            wanted = kind is not ParallelType.serial and (
                not parallel_types or kind in parallel_types
            )
            partner = _partner(axis, place, scheduled[target].loop, free, correspondence)
            if partner is not None:
                del free[partner]
                if wanted:
                    partner.parallel_type = kind


def _partner(
    axis: IterDomain,
    place: int,
    loop: Sequence[IterDomain],
    free: dict[IterDomain, None],
    correspondence: Correspondence,
) -> IterDomain | None:
    """The loop made like `axis`; in the same position, a broadcast matches a real axis too."""
    here = loop[place] if place < len(loop) else None
    if here in free and here is not None and _same_loop(axis, here, correspondence, True):
        return here
    return next((a for a in free if _same_loop(axis, a, correspondence, False)), None)


def _same_loop(a: IterDomain, b: IterDomain, numbers: Correspondence, loosely: bool) -> bool:
    """True if b is made like a, out of corresponding axes."""
    decided = numbers.alike.setdefault(loosely, {})
    opened: set[AxisPair] = set()
    pending = [(a, b)]
    while pending:
        pair = pending[-1]
        if pair in decided:
            pending.pop()
            continue
        ways = _ways_to_be_alike(*pair, numbers, loosely)
        undecided = [source for way in ways for source in way if source not in decided]
        if undecided and pair not in opened:
            opened.add(pair)
            pending += undecided
            continue
        decided[pair] = any(all(decided.get(source, False) for source in way) for way in ways)
        pending.pop()
    return decided[a, b]


def _ways_to_be_alike(
    a: IterDomain, b: IterDomain, numbers: Correspondence, loosely: bool
) -> list[list[AxisPair]]:
    """The pairs of axes that must be alike so that a and b are; each list is one way."""
    if loosely and b.is_broadcast:
        return [[]]
    number = numbers.number(a)
    if number is not None and number == numbers.number(b):
        return [[]]
    listed = numbers.reshaped.get(number, ()) if number is not None else ()
    made = [a] if a.definition is not None else listed
    return [way for each in made if (way := _sources_alike(each, b)) is not None]


def _sources_alike(a: IterDomain, b: IterDomain) -> list[AxisPair] | None:
    """The sources of two axes that are the same result of the same step; None if they aren't."""
    made, other = a.definition, b.definition
    if made is None or other is None or type(made) is not type(other):
        return None
    if made.outputs.index(a) != other.outputs.index(b):
        return None
    match made, other:
        case Split(), Split() if not made.is_like(other):
            return None
    return list(zip(made.inputs, other.inputs, strict=True))
