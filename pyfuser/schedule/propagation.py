"""Gives other tensors the loop domain of a reference tensor.

`transform_like` walks from the reference over producers and consumers, best-informed tensors
first, and replays the splits, merges and swizzles that made the reference's loops on each.  Where
a producer lacks an axis that a merge needs, or one left of axes it does have, it gets a broadcast
stand-in, so that loops of all tensors line up from the left and can be shared.

Source: the maximum-information spanning tree of nvFuser's TransformPropagator, restated.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from ..analysis.mapping import AxisMap, consumer_to_producer, consumers, producer_to_consumer
from ..analysis.mapping import producers as producers_of
from ..errors import ScheduleError, expected
from ..ir.domains import (
    IdExpr,
    IdFactory,
    IterDomain,
    Merge,
    ParallelType,
    Split,
    history,
)
from ..ir.schedule import ScheduledFusion
from ..ir.vals import TensorView


class Replay:
    """Replays the making of one tensor's loop axes on the axes of another."""

    def __init__(self, ids: IdFactory, mapping: AxisMap, target: TensorView | None = None) -> None:
        self.ids = ids
        self.made: dict[IterDomain, IterDomain | None] = dict(mapping)
        self.existing: list[IdExpr] = []
        if target is not None and target.domain.root is not None:
            # the transformations of a reshape: used again, not made anew
            self.existing = history(target.domain.logical, target.domain.root)

    def axis(self, source: IterDomain) -> IterDomain | None:
        """The target's version of a source axis; None where the target has nothing of it."""
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
                same = not isinstance(expr, Split) or (
                    isinstance(old, Split)
                    and old.factor is expr.factor
                    and old.inner_split == expr.inner_split
                )
                if same:
                    return old.outputs
        match expr:
            case Split():
                return self.ids.split(inputs[0], expr.factor, expr.inner_split)
            case Merge():
                self._check_merge(*inputs)
                return (self.ids.merge(*inputs),)
            case _:
                return self.ids.swizzle(*inputs)

    def _check_merge(self, outer: IterDomain, inner: IterDomain) -> None:
        either_broadcast = outer.is_broadcast or inner.is_broadcast
        if outer.is_reduction != inner.is_reduction and not either_broadcast:
            what = "two iteration or two reduction axes to merge"
            raise ScheduleError(expected("transform_like", what, f"{outer} and {inner}"))


def _leaves(roots: Sequence[IterDomain], loop: Sequence[IterDomain]) -> bool:
    """True when `loop` uses each of `roots` and uses nothing twice."""
    used: set[IterDomain] = set()
    for expr in history(loop, roots):
        for axis in expr.inputs:
            if axis in used:
                return False
            used.add(axis)
    used.update(loop)
    return all(root in used for root in roots)


def replay(
    scheduled: ScheduledFusion,
    mapping: AxisMap,
    source: TensorView,
    target: TensorView,
    position: int | None = None,
) -> list[IterDomain] | None:
    """The loop domain of `target` made like that of `source`, or None where that's impossible.

    `mapping` leads from axes of the source to axes of the target.  With `position` only that many
    outer loops are replayed.  Axes of the target that the source lacks come last.
    """
    ids = scheduled.fusion.ids
    replayer = Replay(ids, mapping, target)
    loops = scheduled[source].loop[:position]
    made = [replayer.axis(axis) for axis in loops]
    while made and made[-1] is None:
        made.pop()
    loop = [ids.broadcast() if axis is None else axis for axis in made]
    logical = target.domain.logical
    consumed = {axis for expr in history(loop, logical) for axis in expr.inputs} | set(loop)
    produced = {axis for expr in history(loop, logical) for axis in expr.outputs}
    pending = [a for a in (*logical, *_ordered(produced, replayer)) if a not in consumed]
    loop += pending
    return loop if _leaves(logical, loop) and _reaches_logical(loop, target) else None


def _ordered(axes: set[IterDomain], replayer: Replay) -> list[IterDomain]:
    made = [axis for axis in replayer.made.values() if axis is not None]
    return [axis for axis in made if axis in axes]


def _reaches_logical(loop: Sequence[IterDomain], target: TensorView) -> bool:
    """No loop may be made of root axes past the logical domain (a reshape undone)."""
    root = target.domain.root
    if root is None:
        return True
    hidden = set(root) - set(target.domain.logical)
    return not any(
        axis in hidden for e in history(loop, target.domain.logical) for axis in e.inputs
    ) and not (hidden & set(loop))


def _neighbours(tensor: TensorView) -> Iterable[tuple[TensorView, AxisMap]]:
    for expr, consumer in consumers(tensor):
        yield consumer, producer_to_consumer(expr, tensor, consumer)
    for expr, producer in producers_of(tensor):
        yield producer, consumer_to_producer(expr, producer, tensor)
    if tensor.expr is not None:
        for sibling in tensor.expr.tensor_outputs:
            if sibling is not tensor:
                own, other = tensor.domain, sibling.domain
                mapping = dict(zip(own.root_or_logical, other.root_or_logical, strict=True))
                if own.root is not None:
                    mapping |= dict(zip(own.logical, other.logical, strict=True))
                yield sibling, mapping


def spanning_order(
    reference: TensorView,
) -> list[tuple[TensorView, TensorView, AxisMap]]:
    """(from, to, axis map) for every tensor connected to the reference, best-informed first.

    How much a tensor is informed is the number of the reference's root axes that reach it.
    """
    start = {
        axis: {axis} for axis in (*reference.domain.logical, *reference.domain.root_or_logical)
    }
    best: list[tuple[int, int, TensorView, TensorView, AxisMap]] = []
    known: dict[TensorView, dict[IterDomain, set[IterDomain]]] = {reference: start}
    steps: list[tuple[TensorView, TensorView, AxisMap]] = []
    counter = 0

    def push(tensor: TensorView) -> None:
        nonlocal counter
        for other, mapping in _neighbours(tensor):
            if other not in known:
                score = sum(len(known[tensor].get(axis, ())) for axis in mapping)
                heapq.heappush(best, (-score, counter, tensor, other, mapping))
                counter += 1

    push(reference)
    while best:
        _, _, source, target, mapping = heapq.heappop(best)
        if target in known:
            continue
        info = {new: known[source].get(old, set()) for old, new in mapping.items()}
        known[target] = _through_history(target, info)
        steps.append((source, target, mapping))
        push(target)
    return steps


def _through_history(
    tensor: TensorView, info: dict[IterDomain, set[IterDomain]]
) -> dict[IterDomain, set[IterDomain]]:
    """Carries the information between root and logical axes of one tensor."""
    domain = tensor.domain
    if domain.root is None:
        return info
    steps = history(domain.logical, domain.root)
    for expr in steps:
        joined = set().union(*(info.get(i, set()) for i in expr.inputs))
        for axis in expr.outputs:
            info.setdefault(axis, joined if len(expr.outputs) == 1 else set(joined))
    for expr in reversed(steps):
        joined = set().union(*(info.get(o, set()) for o in expr.outputs))
        for axis in expr.inputs:
            info.setdefault(axis, joined)
    return info


def transform_like(
    scheduled: ScheduledFusion,
    reference: TensorView,
    tensors: Sequence[TensorView] | None = None,
) -> list[TensorView]:
    """Replays the reference's loop transformations on all (or the given) tensors.

    Returns the tensors whose loops could not be made so (a reshape stands in the way); they and
    what lies behind them keep the loops they had.
    """
    selected = None if not tensors else set(tensors)
    failed: list[TensorView] = []
    blocked: set[TensorView] = set()
    for source, target, mapping in spanning_order(reference):
        if source in blocked:
            blocked.add(target)
            failed.append(target)
            continue
        loop = replay(scheduled, mapping, source, target)
        if loop is None:
            blocked.add(target)
            failed.append(target)
        elif selected is None or target in selected:
            scheduled[target].loop = loop
        else:
            blocked.add(target)
    return failed


def bounded_transform_backward(
    scheduled: ScheduledFusion,
    source: TensorView,
    position: int,
    to: Sequence[TensorView],
    propagate_parallel_type: bool = False,
) -> None:
    """Replays the outer `position` loops of `source` on its producers, back to the tensors `to`."""
    position = len(scheduled[source].loop) + position + 1 if position < 0 else position
    between = _between(source, to)
    done = {source}
    pending = [source]
    while pending:
        consumer = pending.pop()
        for expr, producer in producers_of(consumer):
            if producer in done or producer not in between:
                continue
            mapping = consumer_to_producer(expr, producer, consumer)
            loop = replay(scheduled, mapping, consumer, producer, position)
            if loop is None:
                raise ScheduleError(
                    expected(
                        "bounded_transform_backward",
                        f"T{producer.name} to have the axes of T{consumer.name}",
                        str(producer),
                    )
                )
            scheduled[producer].loop = loop
            if propagate_parallel_type:
                _copy_parallel_types(scheduled, consumer, producer, position)
            done.add(producer)
            pending.append(producer)


def _between(source: TensorView, to: Sequence[TensorView]) -> set[TensorView]:
    """The tensors on the paths from `to` to `source`, ends included."""
    downstream: set[TensorView] = set()
    pending = list(to)
    while pending:
        tensor = pending.pop()
        if tensor not in downstream:
            downstream.add(tensor)
            pending += [c for _, c in consumers(tensor)]
    upstream: set[TensorView] = set()
    pending = [source]
    while pending:
        tensor = pending.pop()
        if tensor not in upstream:
            upstream.add(tensor)
            pending += [p for _, p in producers_of(tensor)]
    return downstream & upstream


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
    selected = None if not tensors else set(tensors)
    counterpart: dict[TensorView, dict[IterDomain, IterDomain]] = {
        reference: {axis: axis for axis in scheduled[reference].loop[:position]}
    }
    for source, target, mapping in spanning_order(reference):
        matched = _matching_loops(scheduled, source, target, mapping, counterpart[source])
        counterpart[target] = matched
        if (selected is not None and target not in selected) or target in scheduled.fusion.inputs:
            continue
        for axis, origin in matched.items():
            kind = origin.parallel_type
            if kind is not ParallelType.serial and (not parallel_types or kind in parallel_types):
                axis.parallel_type = kind


def _matching_loops(
    scheduled: ScheduledFusion,
    source: TensorView,
    target: TensorView,
    mapping: AxisMap,
    known: dict[IterDomain, IterDomain],
) -> dict[IterDomain, IterDomain]:
    """Loop axes of `target` -> axes of the reference, by matching loops of source and target."""
    from_loops, to_loops = scheduled[source].loop, scheduled[target].loop
    matched: dict[IterDomain, IterDomain] = {}
    free = list(to_loops)
    for axis in from_loops:
        if axis not in known:
            continue
        for candidate in free:
            if _same_loop(axis, candidate, mapping):
                matched[candidate] = known[axis]
                free.remove(candidate)
                break
    return matched


def _same_loop(a: IterDomain, b: IterDomain, mapping: AxisMap) -> bool:
    """True when b is made like a, out of mapped axes; stand-ins match stand-ins and missing axes."""
    if a in mapping:
        return mapping[a] is b
    made, other = a.definition, b.definition
    if made is None:
        return other is None and (b.is_broadcast and b not in mapping.values())
    if other is None:
        return b.is_broadcast and b not in mapping.values() and not _any_mapped(a, mapping)
    if type(made) is not type(other) or made.outputs.index(a) != other.outputs.index(b):
        return False
    if isinstance(made, Split) and isinstance(other, Split):
        if made.factor is not other.factor or made.inner_split != other.inner_split:
            return False
    return all(_same_loop(p, c, mapping) for p, c in zip(made.inputs, other.inputs, strict=True))


def _any_mapped(axis: IterDomain, mapping: AxisMap) -> bool:
    if axis in mapping:
        return True
    return axis.definition is not None and any(
        _any_mapped(i, mapping) for i in axis.definition.inputs
    )
