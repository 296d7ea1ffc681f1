"""The axes of a reduction as loops: those that are kept, and those that are reduced."""

from __future__ import annotations

from ..ir.domains import IterDomain
from ..ir.schedule import ScheduledFusion
from ..ir.vals import TensorView
from .common import Layouts, merge_adjacent


def split_axes(tensor: TensorView, layouts: Layouts) -> tuple[list[IterDomain], bool]:
    """The axes of a reduction in memory order, and whether the innermost is reduced."""
    axes = layouts.memory_order(tensor.domain.logical)
    return axes, bool(axes) and axes[-1].is_reduction


def weights(layouts: Layouts, axes: list[IterDomain]) -> list[TensorView]:
    """The inputs that have none of the axes that a reduction keeps, if it keeps some."""
    kept = {layouts.number(axis) for axis in axes if not axis.is_reduction}
    return [
        leaf.tensor
        for leaf in layouts.leaves
        if kept and leaf.tensor.expr is None and leaf.order and kept.isdisjoint(leaf.order)
    ]


def arrange(scheduled: ScheduledFusion, reference: TensorView, layouts: Layouts) -> tuple[int, int]:
    """Loops [kept axes, merged][other reduced axes][innermost reduced range] of a reduction.

    Returns (number of kept loops: 0 or 1, number of other reduced loops).
    """
    own = scheduled[reference]
    axes, _ = split_axes(reference, layouts)
    kept = [a for a in axes if not a.is_reduction]
    reduced = [a for a in axes if a.is_reduction]
    own.loop = [*kept, *reduced]
    for _ in range(len(kept) - 1):
        own.merge(0)
    rows = 1 if kept else 0
    inner = merge_adjacent(scheduled, reference, layouts, rows, len(own.loop))
    return rows, inner - rows
