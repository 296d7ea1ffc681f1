"""Rows normalised and their columns added up in one pass, on hardware threads.

    rows and their results      [task][rows: serial][switch][lines][vectors: unroll][lanes][vector]
    a thread's sums of columns  the same loops, in its registers, over all rows of its line
    a task's sums of columns    [task][vectors: unroll][lanes][vector], in scratch memory
    sums of columns             [columns: grid_x][tasks: serial][lines][lanes], after all tasks

A thread has the same columns of every row, so it adds them up in registers.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.mapping import downstream
from ..ir.domains import ParallelType
from ..ir.schedule import MemoryType, ScheduledFusion
from ..ir.vals import TensorView
from ..target.thread_parameters import ThreadedReduction
from .common import Layouts, merge_range, parallelize_positions, reductions
from .propagation import parallelize_like, transform_like
from .reduced_axes import arrange, split_axes, weights
from .rewrite import cache_before, rfactor
from .vectors import Copies, make_vector

# Of the blocks that add up the tasks' sums: a warp along the columns, and as many tasks at once as
# keep the columns of a small model on all multiprocessors.
_LANES, _LINES = 32, 8


def schedule_rows_and_columns(scheduled: ScheduledFusion, parameters: ThreadedReduction) -> None:
    """The loops; see the module's docstring."""
    copies = Copies.of(scheduled, parameters.vector)
    layouts = Layouts(scheduled.fusion)
    found = reductions(scheduled.fusion)
    inner = [tensor for tensor in found if split_axes(tensor, layouts)[1]]
    outer = [tensor for tensor in found if tensor not in inner]
    axes, _ = split_axes(inner[0], layouts)
    for tensor in weights(layouts, axes):
        copies.limits |= dict.fromkeys(copies.movers(tensor), 1)
    kept = [a for a in split_axes(outer[0], layouts)[0] if not a.is_reduction]
    columns = [outer[0].axes.index(axis) for axis in kept]
    reference = inner[0]
    own = scheduled[reference]
    arrange(scheduled, reference, layouts)
    own.split(1, parameters.vector, is_even=parameters.vector > 1)
    own.split(1, parameters.lanes, is_even=parameters.is_full)
    own.split(1, parameters.unroll, is_whole=True, is_even=parameters.is_full)
    own.split(0, parameters.lines)
    own.split(0, 1)
    own.split(0, parameters.parts, inner_split=False)
    kinds = [ParallelType.grid_x, ParallelType.serial, ParallelType.unswitch, ParallelType.block_y]
    kinds += [ParallelType.serial, ParallelType.unroll, ParallelType.block_x, ParallelType.unroll]
    transform_like(scheduled, reference)
    parallelize_positions(scheduled, reference, dict(enumerate(kinds)))
    for tensor in inner:
        rfactor(scheduled, tensor, [4, 5])
        rfactor(scheduled, tensor, [5])
    for tensor in outer:
        rfactor(scheduled, tensor, [1, 2])
        made = rfactor(scheduled, tensor, [1])
        for partial in (made,) if isinstance(made, TensorView) else made:
            result = cache_before(scheduled, partial)
            transform_like(scheduled, result, [partial])
            parallelize_like(scheduled, result, tensors=[partial])
            scheduled[partial].memory_type = MemoryType.global_
            make_vector(scheduled, partial, len(scheduled[partial].loop) - 1)
            copies.limits |= {partial: 0, result: 1}
    _schedule_columns(scheduled, outer, columns)
    copies.inline(scheduled, layouts, axes[-1], len(kinds), 4)


def _schedule_columns(
    scheduled: ScheduledFusion,
    outer: Sequence[TensorView],
    columns: Sequence[int],
) -> None:
    """[columns: grid_x][tasks: serial][lines][lanes] for what follows from the tasks' sums."""
    reference = outer[0]
    own = scheduled[reference]
    kept = [reference.axes[place] for place in columns]
    tasks = [axis for axis in own.loop if axis.is_reduction]
    own.loop = [*kept, *tasks]
    merge_range(scheduled, reference, 0, len(kept))
    for axis in tasks:
        axis.parallel_type = ParallelType.serial
    own.split(0, _LANES)
    own.split(2, _LINES)
    own.reorder({1: 3})
    after = [t for t in scheduled.fusion.tensors if t in downstream(outer)]
    transform_like(scheduled, reference, [t for t in after if t is not reference])
    kinds = (ParallelType.grid_x, ParallelType.serial, ParallelType.block_y, ParallelType.block_x)
    for position, kind in enumerate(kinds):
        own.parallelize(position, kind)
    parallelize_like(scheduled, reference, tensors=after)
    for tensor in outer:
        rfactor(scheduled, tensor, [1])
