"""The axes of a reduction as loops: those that are kept, and those that are reduced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..analysis.mapping import downstream
from ..ir.domains import IterDomain, ParallelType
from ..ir.fusion import Fusion
from ..ir.schedule import ScheduledFusion
from ..ir.vals import TensorView
from .common import Layouts, is_reduction, merge_adjacent, merge_range, reductions


def split_axes(tensor: TensorView, layouts: Layouts) -> tuple[list[IterDomain], bool]:
    """The axes of a reduction in memory order, and whether the innermost is reduced."""
    axes = layouts.memory_order(tensor.domain.logical)
    return axes, bool(axes) and axes[-1].is_reduction


def rows_and_columns(fusion: Fusion, layouts: Layouts) -> tuple[list[TensorView], list[TensorView]]:
    """The reductions of the innermost axis in memory, and the others."""
    found = reductions(fusion)
    rows = [tensor for tensor in found if split_axes(tensor, layouts)[1]]
    return rows, [tensor for tensor in found if tensor not in rows]


def after_columns(fusion: Fusion, layouts: Layouts, columns: list[TensorView]) -> set[TensorView]:
    """The results of sums of columns, and the tensors that are computed after all rows.

    These are the ones that follow from the sums, outputs that have no axis of the rows, and what is
    computed for these alone.
    """
    if not columns:
        return set()
    found = downstream(t for e in columns if e.expr for t in e.expr.tensor_outputs)
    kept = layouts.space.axes(columns[0])
    for tensor in reversed([t for t in fusion.tensors if t.expr is not None]):
        readers = tensor.uses_list
        is_column = tensor in fusion.outputs and layouts.space.axes(tensor) <= kept
        is_after = (not is_reduction(e) and found.issuperset(e.tensor_outputs) for e in readers)
        if all(is_after) and (readers or is_column):
            found.add(tensor)
    return found


def after_reductions(fusion: Fusion) -> set[TensorView]:
    """The same for all reductions: if their parts are distributed over the grid, what is computed
    once these are combined.
    """
    return after_columns(fusion, Layouts(fusion), reductions(fusion))


def kept_places(tensor: TensorView, layouts: Layouts) -> list[int]:
    """The positions of the axes that a reduction keeps, in memory order."""
    axes, _ = split_axes(tensor, layouts)
    return [tensor.axes.index(axis) for axis in axes if not axis.is_reduction]


def arrange_columns(
    scheduled: ScheduledFusion,
    reference: TensorView,
    places: Sequence[int],
    after: Iterable[TensorView],
) -> None:
    """Loops [columns, merged][partial results: serial] of the sum of partial results.

    `places` are the positions of the columns' axes, outermost first.  The tensors computed `after`
    all rows lose the parallel types of the rows' loops.
    """
    for tensor in after:
        for axis in scheduled[tensor].loop:
            axis.parallel_type = ParallelType.serial
    own = scheduled[reference]
    partial_results = [axis for axis in own.loop if axis.is_reduction]
    own.loop = [*(reference.axes[place] for place in places), *partial_results]
    merge_range(scheduled, reference, 0, len(places))


def weights(layouts: Layouts, axes: list[IterDomain]) -> list[TensorView]:
    """The inputs that have none of the axes that a reduction keeps, if it keeps some, nor any that
    follow from these by a reshape."""
    kept = layouts.space.related(layouts.space.of(axis for axis in axes if not axis.is_reduction))
    return [
        leaf.tensor
        for leaf in layouts.leaves
        if kept and leaf.tensor.expr is None and leaf.own.axes and kept.isdisjoint(leaf.own.axes)
    ]


def repeated_input(
    layouts: Layouts, axes: list[IterDomain]
) -> tuple[TensorView, list[IterDomain]] | None:
    """The input with most axes of those that lack some that a reduction keeps, but not all, and the
    axes that it lacks: rows that differ only in these read the same elements of it.
    """
    kept = [axis for axis in axes if not axis.is_reduction and not axis.is_broadcast]
    found = []
    for leaf in layouts.leaves:
        lacked = [axis for axis in kept if layouts.number(axis) not in leaf.related]
        if leaf.tensor.expr is None and 0 < len(lacked) < len(kept):
            found.append((leaf.tensor, lacked))
    return max(found, key=lambda each: len(layouts.space.axes(each[0])), default=None)


def arrange(
    scheduled: ScheduledFusion, reference: TensorView, layouts: Layouts, together: bool = False
) -> tuple[int, int]:
    """Loops [kept axes, merged][other reduced axes][innermost reduced range] of a reduction.

    If `together`, rows that read the same elements of an input (`repeated_input`) are neighbours.
    Returns (number of kept loops: 0 or 1, number of other reduced loops).
    """
    own = scheduled[reference]
    axes, _ = split_axes(reference, layouts)
    kept = [a for a in axes if not a.is_reduction]
    repeated = repeated_input(layouts, axes) if together else None
    if repeated is not None:
        kept.sort(key=lambda axis: axis in repeated[1])
    reduced = [a for a in axes if a.is_reduction]
    own.loop = [*kept, *reduced]
    merge_range(scheduled, reference, 0, len(kept))
    rows = 1 if kept else 0
    inner = merge_adjacent(scheduled, reference, layouts, rows, len(own.loop))
    return rows, inner - rows
