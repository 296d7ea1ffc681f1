"""Segmentation: Fusion -> SegmentedFusion, as few kernels as the schedulers accept.

The whole fusion is tried first.  Otherwise units are merged where it saves most: down-casts with
the expressions they round, reductions with producers that only they read, then producers with
consumers (largest tensors first), then groups that read the same large tensor.  Of two orders of
merges, the one whose cut moves fewer bytes is taken.  Every resulting group is examined again by
the schedulers themselves, and halved if none accepts it; `recomputation` then recomputes cheap
tensors.  Invariant: segments are in an order in which they can run, and together contain every live
expression; an output that is an input is in none.  Source of the first order of merges: nvFuser's
public source.
"""

from __future__ import annotations

from collections.abc import Collection

from ..analysis.costs import is_narrowing
from ..ir.fusion import Fusion
from ..ir.segmented import PartKind, Segment, SegmentedFusion
from ..ir.vals import TensorView
from ..schedule.facts import Facts, examine, examine_exprs
from ..schedule.registry import BY_LIBRARY, AutomaticScheduler, closest, find
from ..schedule.size_info import SizeInfo
from .boundary import make_segment
from .drafts import Cut, SegmentDraft, with_free
from .groups import Group, Groups, in_order
from .memory_directions import has_crossing
from .memory_orders import set_memory_orders
from .recomputation import recompute_across_cuts
from .repeated_work import has_repeated_work
from .units import Unit, UnitGraph, unit_graph

# For each tensor, this many readers that don't merge with each other are kept as candidates for the
# next ones: one for each way to reduce up to three axes, and one that reduces none.
_SIBLING_KINDS = 8


def segment(fusion: Fusion, sizes: SizeInfo, stored: Collection[int] = ()) -> SegmentedFusion:
    """Cuts a fusion into segments, each with its scheduler and the reason why it ends there.

    `sizes` is the target and the facts about run-time sizes that may be used. A tensor whose name
    is in `stored` is read from memory by all its readers.
    """
    facts = examine(fusion)
    chosen, _ = find(facts, sizes)
    if chosen is not None and not stored:
        is_kernel = chosen.kind is PartKind.kernel
        if not (is_kernel and _is_slow_whole(facts, sizes)):
            return _whole(fusion, chosen, facts)
    graph = unit_graph(fusion, sizes.target, stored)
    best = _cut(graph, sizes)
    kinds = {unit.signature for unit in graph.units} - {None}
    # What follows a norm may go to another reduction, or to a reshape that no norm takes.
    if len(kinds) > 1 or (kinds and any(unit.steps for unit in graph.units)):
        best = min(best, _cut(graph, sizes, epilogues_first=True), key=_cost)
    set_memory_orders(best)
    return SegmentedFusion(fusion, [_segment_of(best, draft) for draft in best.drafts])


def _is_slow_whole(facts: Facts, sizes: SizeInfo) -> bool:
    """True if several kernels may be faster than one for everything."""
    return has_repeated_work(facts, sizes) or has_crossing(facts, sizes)


def _cost(cut: Cut) -> int:
    """The cost of running the drafts, in bytes moved."""
    return cut.bytes_moved() + cut.sizes.target.launch_bytes * len(cut.drafts)


def _cut(graph: UnitGraph, sizes: SizeInfo, epilogues_first: bool = False) -> Cut:
    """The drafts that result from merging in one order."""
    groups = Groups(graph, sizes)
    merge_all(groups, epilogues_first)
    return recompute_across_cuts(Cut(graph, sizes, accepted_drafts(groups)))


def accepted_drafts(groups: Groups) -> list[SegmentDraft]:
    """The groups as drafts that a scheduler accepts, in order."""
    drafts: list[SegmentDraft] = []
    for group in groups.in_order():
        found = _accepted(groups.graph, groups.sizes, group.units)
        if len(found) == 1:
            found[0].reason = found[0].reason or _reason(groups, group)
        drafts += found
    return drafts


def _whole(fusion: Fusion, scheduler: AutomaticScheduler, facts: Facts) -> SegmentedFusion:
    """One segment; none if every output is an input."""
    exprs = fusion.live_exprs()
    distinct = dict.fromkeys(fusion.outputs)
    outputs = [v for v in distinct if isinstance(v, TensorView) and v.expr is not None]
    if not outputs:
        return SegmentedFusion(fusion)
    return SegmentedFusion(fusion, [make_segment(fusion, exprs, outputs, scheduler, facts.space)])


def merge_all(groups: Groups, epilogues_first: bool = False) -> None:
    """Merges groups until nothing more can be merged."""
    _merge_down_casts(groups)
    _merge_reduction_producers(groups)
    if epilogues_first:
        _merge_epilogues(groups)
    while True:
        changed = _merge_vertically(groups)
        changed |= _merge_siblings(groups)
        if not changed:
            return


def _merge_down_casts(groups: Groups) -> None:
    """Keeps a rounding with its operand's expression, so the smaller dtype crosses the boundary."""
    for unit in groups.graph.units:
        if is_narrowing(unit.expr) and len(unit.producers) == 1:
            groups.try_merge(groups.of[unit.producers[0]], groups.of[unit])


def _merge_reduction_producers(groups: Groups) -> None:
    """Pulls producers that only a reduction reads into it: this is free and saves storing them."""
    for unit in groups.graph.units:
        if unit.signature is not None:
            _pull_producers(groups, unit)


def _pull_producers(groups: Groups, unit: Unit) -> None:
    """Merges a unit's group with the producers that only it reads, back to reductions; the last
    ones first.
    """
    group = groups.of[unit]
    waiting = in_order(group.producers)
    while waiting:
        producer = waiting.pop()
        if producer.is_output or producer.summary.signatures or len(producer.consumers) > 1:
            continue
        group = groups.of[unit]
        if producer not in group.producers or groups.ends_repeated_work(producer, group):
            continue
        if groups.try_merge(producer, group):
            group = groups.of[unit]
            waiting += in_order(p for p in group.producers if p not in waiting)


def _merge_epilogues(groups: Groups) -> None:
    """Merges each reduction with its epilogue, before other reductions take that."""
    for unit in groups.graph.units:
        if unit.signature is None:
            continue
        waiting = set(groups.of[unit].consumers)
        while waiting:
            consumer = min(waiting, key=lambda group: group.order)
            waiting.discard(consumer)
            if consumer not in groups.of[unit].consumers:
                continue
            # A broadcast along the reduced axes needs the tensor that has them.
            inside = consumer.units[0]
            if inside.signature is None:
                _pull_producers(groups, inside)
            if groups.try_merge(groups.of[unit], groups.of[inside]):
                waiting |= groups.of[unit].consumers


def _merge_vertically(groups: Groups) -> bool:
    """Merges producers with consumers through their tensors, those with most axes first."""
    graph = groups.graph
    edges: list[tuple[int, int, int, Unit, Unit]] = []
    for unit in graph.units:
        for producer in unit.producers:
            if groups.of[producer] is not groups.of[unit]:
                rank = max(len(graph.space.axes(t)) for t in producer.outputs)
                edges.append((-rank, unit.position, producer.position, producer, unit))
    changed = False
    for *_, producer, consumer in sorted(edges, key=lambda edge: edge[:3]):
        changed |= groups.try_merge(groups.of[producer], groups.of[consumer])
    return changed


def _merge_siblings(groups: Groups) -> bool:
    """Merges groups that read one tensor which has all their axes."""
    changed = False
    axes = groups.graph.space.axes
    for tensor, readers in groups.graph.readers.items():
        sharing = in_order(dict.fromkeys(groups.of[r] for r in readers))
        if len(sharing) < 2 or not axes(tensor):
            continue
        fitting = [g.units[0] for g in sharing if g.summary.axes <= axes(tensor)]
        apart: list[Unit] = []
        for unit in fitting:
            if any(groups.try_merge(groups.of[other], groups.of[unit]) for other in apart):
                changed = True
            elif len(apart) < _SIBLING_KINDS:
                apart.append(unit)
    return changed


def _accepted(
    graph: UnitGraph, sizes: SizeInfo, units: list[Unit], reason: str = ""
) -> list[SegmentDraft]:
    """The units as drafts that a scheduler accepts: one, or halves if none accepts them all."""
    units = sorted(units, key=lambda unit: unit.position)
    outputs = _outputs(graph, units)
    chosen_units = set(units)
    stored = [t for t in outputs if not chosen_units.issuperset(graph.readers.get(t, ()))]
    exprs = with_free(graph, (unit.expr for unit in units))
    facts = examine_exprs(exprs, outputs, set(graph.fusion.aliases), stored)
    chosen, refusals = find(facts, sizes)
    if chosen is not None:
        return [SegmentDraft(graph, units, chosen, reason)]
    why = str(closest(facts, refusals))
    if len(units) == 1:
        return [SegmentDraft(graph, units, BY_LIBRARY, why)]
    middle = len(units) // 2
    first = _accepted(graph, sizes, units[:middle], why)
    return first + _accepted(graph, sizes, units[middle:], reason)


def _outputs(graph: UnitGraph, units: list[Unit]) -> list[TensorView]:
    """The tensors that leave the units: outputs of the fusion, and tensors that others read."""
    chosen = set(units)
    return [
        tensor
        for unit in units
        for tensor in unit.outputs
        if tensor in graph.outputs or not chosen.issuperset(graph.readers.get(tensor, ()))
    ]


def _reason(groups: Groups, group: Group) -> str:
    """Why the group ends where it does: the reason that separates it from its first consumer."""
    if not group.consumers:
        return ""
    consumer = min(group.consumers, key=lambda g: g.order)
    why = groups.refusal(group, consumer)
    return why or "merging it with its consumer would make a cycle"


def _segment_of(cut: Cut, draft: SegmentDraft) -> Segment:
    fusion, outputs, space = cut.graph.fusion, cut.outputs(draft), cut.graph.space
    if space.conflicts or space.private:  # those of the draft's own expressions may be fewer
        space = cut.facts(draft).space
    return make_segment(fusion, draft.exprs, outputs, draft.scheduler, space, draft.reason)
