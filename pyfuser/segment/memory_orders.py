"""Memory orders of the tensors that segments store for each other: those of their neighbours.

By default such a tensor is in memory in the order of its own axes.  If it follows a permute, that
isn't the order in which its kernel and its readers traverse their other tensors, and one of the two
would be accessed in short pieces far apart.  Runs after the choice of drafts, and before the
segments become separate fusions.

Before:  t [b, d, t, n] = permute(s [t, b, d, n]) * u [b, d, n], stored in the order of its axes
After:   the same, stored in the order of s, because more bytes moved with it are in that
"""

from __future__ import annotations

from collections.abc import Iterator

from ..ir.domains import IterDomain
from ..ir.exprs import WindowOp
from ..ir.vals import TensorView
from ..schedule.registry import find
from .drafts import Cut, SegmentDraft

Order = tuple[int, ...]

# A byte beside a reduction counts as so many: pointwise kernels transpose in tiles, others can't.
_REDUCING = 2


def set_memory_orders(cut: Cut) -> None:
    """Gives each tensor that only drafts read the order of most bytes that are moved with it.

    A draft that makes or reads one in a new order is asked for its scheduler again.
    """
    changed: set[int] = set()
    undecided = {t for t in cut.readers if t in cut.maker and t not in cut.graph.outputs}
    for draft in cut.drafts:
        for tensor in cut.outputs(draft):
            if tensor not in undecided:
                continue
            undecided.discard(tensor)
            if draft.moves_data and tensor.domain.allocation is None:
                order = _order(cut, tensor, undecided)
                if order is not None:
                    tensor.domain.allocation = order
                    tensor.domain.contiguity = [None if a.is_broadcast else True for a in order]
                    changed |= {cut.maker[tensor], *cut.readers[tensor]}
    for number in changed:
        draft = cut.drafts[number]
        chosen, _ = find(cut.facts(draft), cut.sizes)
        draft.scheduler = chosen or draft.scheduler


def _order(cut: Cut, tensor: TensorView, undecided: set[TensorView]) -> list[IterDomain] | None:
    """The axes of a tensor, outermost in memory first; None if that is their own order."""
    if tensor.has_expanded_axis:
        return None
    ones = [axis for axis in tensor.axes if axis.is_broadcast]
    numbers = {cut.graph.space.number(axis): axis for axis in tensor.axes if axis not in ones}
    if len(numbers) < 2:
        return None
    own = tuple(numbers)
    votes: dict[Order, int] = {own: 0}
    for number in (cut.maker[tensor], *cut.readers[tensor]):
        weight = _REDUCING if any(e.accumulates for e in cut.drafts[number].exprs) else 1
        for beside, all_axes in _layouts(cut, cut.drafts[number]):
            order = tuple(n for n in all_axes if n in numbers)
            if beside is not tensor and beside not in undecided and len(order) == len(own):
                votes[order] = votes.get(order, 0) + weight * cut.bytes_of(beside)
    best = max(votes, key=votes.__getitem__)
    return None if best == own else [*ones, *(numbers[n] for n in best)]


def _layouts(cut: Cut, draft: SegmentDraft) -> Iterator[tuple[TensorView, Order]]:
    """The tensors that a draft reads and stores, with their axes, outermost in memory first.

    A tensor that is read through a window counts with the axes of the window's result.
    """
    space = cut.graph.space
    shown = {
        expr.source: dict(zip(expr.source.axes, expr.tensor_outputs[0].axes, strict=True))
        for expr in draft.exprs
        if isinstance(expr, WindowOp) and expr.source is not None
    }
    for tensor in (*draft.reads, *cut.outputs(draft)):
        names = shown.get(tensor, {})
        along = [names.get(axis, axis) for axis in tensor.domain.allocated]
        yield tensor, tuple(space.number(axis) for axis in along if not axis.is_broadcast)
