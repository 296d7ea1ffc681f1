"""Recomputation across a cut: a draft computes a cheap tensor itself instead of reading it.

Runs after the cut into drafts, whose units stay where they are.  A tensor that one draft stores and
others read is recomputed by a reader if a short chain of cheap expressions leads to it from tensors
that are in memory anyway, if this moves no more bytes, and if the schedulers accept the resulting
drafts.  Results that are no longer read are dropped.

Before:  1: xhat = (x - mean) * rstd; ...; stores xhat    2: sum(dy * xhat), reads xhat
After:   1: xhat = (x - mean) * rstd; ...                 2: the same, reads x, mean, rstd
"""

from __future__ import annotations

from dataclasses import dataclass

from ..analysis.costs import is_root, recomputation_cost
from ..ir.exprs import Expr, ReshapeOp, WindowOp
from ..ir.vals import TensorView
from ..schedule.registry import AutomaticScheduler, find
from .drafts import Cut, SegmentDraft
from .memory_directions import has_crossing
from .repeated_work import repeats_any

# Also reading a row or column of scales doesn't count next to a tensor of many of them.
_ROW_SHARE = 16


@dataclass(frozen=True, slots=True)
class Chain:
    """Expressions that make a tensor, their cost for each of its elements, and what a draft has to
    read for them in addition.
    """

    exprs: frozenset[Expr]
    sources: frozenset[TensorView]
    cost: int


def recompute_across_cuts(cut: Cut) -> Cut:
    """The cut with fewer bytes between its drafts."""
    changed = True
    while changed:
        changed = False
        for tensor in [t for t in cut.readers if t in cut.maker]:
            better = _without(cut, tensor) if tensor in cut.readers else None
            if better is not None:
                cut, changed = better, True
    return cut


def _without(cut: Cut, tensor: TensorView) -> Cut | None:
    """The cut in which readers that gain by it compute a tensor; None if there are none."""
    if tensor not in cut.maker or not cut.drafts[cut.maker[tensor]].moves_data:
        return None
    chains = {
        number: chain
        for number in cut.readers[tensor]
        if cut.drafts[number].moves_data
        and (chain := _chain(cut, number, tensor)) is not None
        and not _repeats_work(cut, cut.drafts[number], chain)
    }
    size = cut.bytes_of(tensor)
    added = {n: sum(map(cut.bytes_of, chain.sources)) - size for n, chain in chains.items()}
    is_dropped = len(chains) == len(cut.readers[tensor]) and tensor not in cut.graph.outputs
    if is_dropped and sum(added.values()) <= size + size // _ROW_SHARE:
        better = _accepted(cut, chains)
        if better is not None:
            return better
    gaining = {number: chain for number, chain in chains.items() if added[number] < 0}
    return _accepted(cut, gaining) if gaining else None


def _repeats_work(cut: Cut, draft: SegmentDraft, chain: Chain) -> bool:
    """True if a draft would compute for many rows what one kernel computes once."""
    if not any(map(is_root, chain.exprs)):
        return False  # expensive operations are never computed again
    axes = frozenset[int]().union(*map(cut.graph.space.touched, draft.exprs))
    return repeats_any(chain.exprs, draft.exprs, axes, cut.graph.space, cut.sizes)


def _chain(cut: Cut, number: int, tensor: TensorView) -> Chain | None:
    """How a draft can make a tensor that it reads; None if that is expensive or impossible."""
    draft = cut.drafts[number]
    there = {t for expr in draft.exprs for t in expr.tensor_outputs}
    there |= draft.reads.keys() - {tensor}
    most = cut.sizes.target.recomputation_budget
    axes = cut.graph.space.axes
    unmade: set[TensorView] = set()  # what can only be read

    def price_of(wanted: TensorView) -> int | None:
        expr = wanted.expr
        price = None if expr is None or wanted in cut.graph.stored else _price(expr)
        if price is not None and not axes(wanted) >= axes(tensor):
            return 0  # one value per row or column, not per element
        return price

    def stored(source: TensorView, chain: Chain) -> Chain | None:
        """The chain with the source of a read, which has to be in memory before the draft runs."""
        if source in draft.reads:
            return chain
        if source.expr is not None and (not cut.is_stored(source) or cut.maker[source] == number):
            return None
        return Chain(chain.exprs, chain.sources | {source}, chain.cost)

    def reached(wanted: TensorView, chain: Chain) -> Chain | None:
        """The chain with what makes a tensor, or else with the tensor itself if it is stored."""
        expr = wanted.expr
        if wanted in there or expr in chain.exprs:
            return chain
        price = None if wanted in unmade else price_of(wanted)
        if expr is not None and price is not None and chain.cost + price <= most:
            made: Chain | None = Chain(chain.exprs | {expr}, chain.sources, chain.cost + price)
            for operand in expr.tensor_inputs:
                reach = stored if operand is expr.source else reached
                made = made and reach(operand, made)
            if made is not None:
                return made
        unmade.add(wanted)
        if wanted is not tensor and (expr is None or cut.is_stored(wanted)):
            return Chain(chain.exprs, chain.sources | {wanted}, chain.cost)
        return None

    return reached(tensor, Chain(frozenset(), frozenset(), 0))


def _price(expr: Expr) -> int | None:
    """The cost of computing an expression again.

    A reshape only changes how axes are counted, a window which elements are read.
    """
    is_index = isinstance(expr, ReshapeOp | WindowOp)
    return 0 if is_index else recomputation_cost(expr)


def _accepted(cut: Cut, chains: dict[int, Chain]) -> Cut | None:
    """The cut with these chains computed by these drafts; None if a scheduler refuses one."""
    drafts = list(cut.drafts)
    for number, chain in chains.items():
        drafts[number] = drafts[number].computing(chain.exprs)
    tried = Cut(cut.graph, cut.sizes, drafts).without_dead_units()
    schedulers: dict[SegmentDraft, AutomaticScheduler] = {}
    before = {draft: cut.outputs(draft) for draft in cut.drafts}
    for draft in tried.drafts:
        if before.get(draft) == tried.outputs(draft):
            continue
        facts = tried.facts(draft)
        chosen, _ = find(facts, tried.sizes)
        if chosen is None or has_crossing(facts, tried.sizes):
            return None
        schedulers[draft] = chosen
    for draft, scheduler in schedulers.items():
        draft.scheduler = scheduler
    return tried
