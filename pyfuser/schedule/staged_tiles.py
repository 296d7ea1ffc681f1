"""Transposed inputs through a stage: whole rows of a tile are in a buffer before they are stored.

    stage:   [outer][task: tile][task: chunk][columns][rows][unroll][lanes]   (as in transpose.py)
    output:  [outer][task: tile][task: chunk][row of the tile][columns of the chunk]

A step over square tiles writes a vector of each row: only a part of a cache line if rows don't
begin with one, and rows that are far from each other.  From the stage, whole cache lines are
stored, whatever a row begins with.  So the rows may be any range of the inputs' memory, also one
that is several in the output's.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.domains import IterDomain, ParallelType
from ..ir.fusion import Fusion
from ..ir.schedule import MemoryType, ScheduledFusion
from ..ir.vals import TensorView
from ..target.parameters import PointwiseParameters
from .common import Layouts, merge_rows_and_columns, ordered_axes, range_to
from .rewrite import cache_before


def may_stage(fusion: Fusion) -> bool:
    """True if all that the fusion stores is one tensor with all axes."""
    return len(fusion.outputs) == 1


def staged_rows_and_columns(
    axes: Sequence[IterDomain], row_axis: IterDomain, transposed: list[TensorView], layouts: Layouts
) -> tuple[list[IterDomain], list[IterDomain]]:
    """The rows that are one range in the memory of the transposed inputs and end with `row_axis`,
    in the inputs' order, and the columns, one range in all leaves."""
    real = [axis for axis in axes if not axis.is_broadcast]
    columns = range_to(real[-1], real, layouts)
    number = layouts.space.number
    left = {number(axis): axis for axis in real if axis not in columns}
    inputs = [leaf for leaf in layouts.leaves if leaf.tensor in transposed]
    order, inner = inputs[0].order, number(row_axis)
    rows = [row_axis]
    for outer in reversed(order[: order.index(inner)]):
        if outer not in left or not all(leaf.merges(outer, inner) for leaf in inputs):
            break
        rows.insert(0, left[outer])
        inner = outer
    return rows, columns


def insert_stage(scheduled: ScheduledFusion, output: TensorView) -> TensorView:
    """A buffer for what a task stores."""
    stage = cache_before(scheduled, output)
    scheduled[stage].memory_type = MemoryType.shared
    return stage


def schedule_rows(
    scheduled: ScheduledFusion,
    output: TensorView,
    stage: TensorView,
    rows: Sequence[IterDomain],
    columns: Sequence[IterDomain],
    parameters: PointwiseParameters,
) -> None:
    """The loops of the output, which copies the rows of the stage; rows and columns are its."""
    own, of = scheduled[output], dict(zip(stage.axes, output.axes, strict=True))
    own.loop = list(ordered_axes(output))
    first = merge_rows_and_columns(
        scheduled, output, [of[a] for a in rows], [of[a] for a in columns]
    )
    own.split(first, parameters.tile)
    own.split(first + 2, parameters.chunk)
    own.reorder({first + 1: first + 2})
    kinds = [ParallelType.grid_z] * first
    kinds += [ParallelType.grid_x, ParallelType.grid_y, ParallelType.serial, ParallelType.block_x]
    for position, kind in enumerate(kinds):
        own.parallelize(position, kind)
