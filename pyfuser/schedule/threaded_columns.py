"""Reductions and normalisations across the memory on hardware threads: rows of a block of columns.

    short: [others: grid_y][columns: grid_x][switch][unroll][lines][lanes][vector]
    long:  [others: grid_y][columns: grid_x][part: grid_z][rows][unroll][lines][lanes][vector]

`lanes` is block_x, along the columns, and `lines` block_y: so many threads add rows of a column,
and combine their results.  Unrolled are rows that a thread reads before it adds them.  Its part of
a short column stays in its registers, where all passes of a normalisation find it; that of a longer
one is kept in shared memory if it fits, or else read in each pass.  The results of the parts of a
column are combined by one block.
"""

from __future__ import annotations

from ..ir.domains import ParallelType
from ..ir.schedule import ScheduledFusion
from ..ir.vals import TensorView
from ..target.thread_parameters import ThreadedReduction
from .cascade import rfactor_blocks, split_chain
from .common import Layouts, merge_adjacent, merge_range, parallelize_positions, reductions
from .propagation import transform_like
from .reduced_axes import split_axes
from .rewrite import rfactor
from .threaded_parts import combine_parts, copies_of
from .vectors import Copies


def schedule_columns(scheduled: ScheduledFusion, parameters: ThreadedReduction) -> None:
    """The loops; see the module's docstring."""
    copies = copies_of(scheduled, parameters)
    layouts = Layouts(scheduled.fusion)
    reference = reductions(scheduled.fusion)[0]
    own = scheduled[reference]
    axes, _ = split_axes(reference, layouts)
    kept = [axis for axis in axes if not axis.is_reduction]
    own.loop = [*kept, *(axis for axis in axes if axis.is_reduction)]
    columns = merge_adjacent(scheduled, reference, layouts, 0, len(kept))
    merge_range(scheduled, reference, 0, columns)
    columns = min(columns, 1)
    last = merge_adjacent(scheduled, reference, layouts, columns + 1, len(own.loop))
    own.split(columns, parameters.vector, is_even=parameters.vector > 1)
    own.split(columns, parameters.lanes)
    # [others][columns][lanes][vector][reduced...][rows]
    if parameters.is_whole:
        most, loops = _short_columns(scheduled, reference, columns, last + 2, parameters)
    else:
        most, loops = _long_columns(scheduled, reference, columns, last + 2, parameters, copies)
    copies.inline(scheduled, layouts, kept[-1], loops, most)


def _short_columns(
    scheduled: ScheduledFusion,
    reference: TensorView,
    columns: int,
    rows: int,
    parameters: ThreadedReduction,
) -> tuple[int, int]:
    """Returns the position at which inputs are copied, and the number of loops."""
    own = scheduled[reference]
    own.split(rows, parameters.lines)
    own.split(rows, parameters.unroll, is_whole=True)
    own.split(columns, 1)
    end = len(own.loop) - 1
    own.reorder({columns + 2: end - 1, columns + 3: end})
    start = columns + 2
    kinds = dict(enumerate((ParallelType.grid_y,) * columns))
    kinds |= {columns: ParallelType.grid_x, columns + 1: ParallelType.unswitch}
    _parallelize(scheduled, reference, kinds, start + 1)
    for tensor in reductions(scheduled.fusion):
        rfactor(scheduled, tensor, [start, start + 1])
    return start, start + 5


def _long_columns(
    scheduled: ScheduledFusion,
    reference: TensorView,
    columns: int,
    rows: int,
    parameters: ThreadedReduction,
    copies: Copies,
) -> tuple[int, int]:
    """Returns the position at which inputs are copied, and the number of loops."""
    own = scheduled[reference]
    own.split(rows, parameters.lines)
    own.split(rows, parameters.unroll)
    start = columns + 1
    kinds = dict(enumerate((ParallelType.grid_y,) * columns))
    kinds[columns] = ParallelType.grid_x
    if parameters.parts > 1:
        own.split(rows, parameters.parts, inner_split=False)
        own.reorder({rows: start})
        kinds[start] = ParallelType.grid_z
        start += 1
    end = len(own.loop) - 1
    own.reorder({start: end - 1, start + 1: end})
    counts = split_chain(scheduled, reference, start, end - 3, parameters.cascade)
    unrolled = start + sum(counts)
    _parallelize(scheduled, reference, kinds, unrolled)
    for tensor in reductions(scheduled.fusion):
        left = rfactor_blocks(scheduled, tensor, start, counts)
        rfactor(scheduled, tensor, list(range(start, start + left + 1)))
        if parameters.parts > 1:
            kind = ParallelType.block_y
            copies.limits |= combine_parts(
                scheduled, tensor, start, start - 1, kind, parameters.lines
            )
    return unrolled, unrolled + 4


def _parallelize(
    scheduled: ScheduledFusion,
    reference: TensorView,
    kinds: dict[int, ParallelType],
    unrolled: int,
) -> None:
    """[...][rows: unroll][lines][lanes][vector]"""
    inside = (ParallelType.unroll, ParallelType.block_y, ParallelType.block_x, ParallelType.unroll)
    transform_like(scheduled, reference)
    parallelize_positions(
        scheduled, reference, kinds | {unrolled + i: kind for i, kind in enumerate(inside)}
    )
