"""Rows normalised and their columns added up in one pass, on hardware threads.

    rows and their results      [task][rows: serial][switch][lines][vectors: unroll][lanes][vector]
    a thread's sums of columns  the same loops, in its registers, over all rows of its line
    a task's sums of columns    [task][vectors: unroll][lanes][vector], in scratch memory
    sums of columns             [columns: grid_x][tasks: serial, unroll][lines][lanes], after all

A thread has the same columns of every row, so it adds them up in registers.  The switch is only in
kernels for full rows (threaded_rows.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from ..ir.domains import ParallelType
from ..ir.schedule import ScheduledFusion
from ..ir.vals import TensorView
from ..target.thread_parameters import ThreadedReduction
from .common import Layouts, parallelize_positions
from .propagation import parallelize_like, transform_like
from .reduced_axes import (
    after_columns,
    arrange,
    arrange_columns,
    kept_places,
    rows_and_columns,
    split_axes,
    weights,
)
from .rewrite import cache_after, rfactor
from .threaded_parts import PARTS_AT_ONCE, store_partials
from .vectors import Copies, make_vector

# Of the blocks that add up the tasks' sums: a sector of each along the columns, so that there are
# blocks for few columns, too, and as many tasks beside each other as a block has threads for.
_LANES, _LINES = 8, 32


def schedule_rows_and_columns(
    scheduled: ScheduledFusion, parameters: ThreadedReduction, after: AbstractSet[TensorView]
) -> None:
    """The loops; see the module's docstring.  `after` are the tensors computed after all rows."""
    copies = Copies.of(scheduled, parameters.vector, after, _reread(scheduled, parameters))
    layouts = Layouts(scheduled.fusion)
    inner, outer = rows_and_columns(scheduled.fusion, layouts)
    after = after_columns(scheduled.fusion, layouts, outer)
    axes, _ = split_axes(inner[0], layouts)
    if not parameters.rereads:
        for tensor in weights(layouts, axes):
            copies.limits |= dict.fromkeys(copies.movers(tensor), 1)
    places = kept_places(outer[0], layouts)
    reference = inner[0]
    own = scheduled[reference]
    arrange(scheduled, reference, layouts)
    own.split(1, parameters.vector, is_even=parameters.vector > 1)
    own.split(1, parameters.lanes, is_even=parameters.is_full)
    own.split(1, parameters.unroll, is_whole=True, is_even=parameters.is_full)
    own.split(0, parameters.lines)
    tasks = [ParallelType.grid_x, ParallelType.serial]
    if parameters.is_full:
        own.split(0, 1)
        tasks.append(ParallelType.unswitch)
    own.split(0, parameters.parts, inner_split=False)
    start = len(tasks) + 1
    kinds = [*tasks, ParallelType.block_y]
    kinds += [ParallelType.serial, ParallelType.unroll, ParallelType.block_x, ParallelType.unroll]
    transform_like(scheduled, reference)
    parallelize_positions(scheduled, reference, dict(enumerate(kinds)))
    for tensor in inner:
        rfactor(scheduled, tensor, [start, start + 1])
        rfactor(scheduled, tensor, [start + 1])
    for tensor in outer:
        rfactor(scheduled, tensor, list(range(1, len(tasks))))
        for partial, result in store_partials(scheduled, tensor, [1]).items():
            make_vector(scheduled, partial, len(scheduled[partial].loop) - 1)
            copy = cache_after(scheduled, partial)
            after.add(copy)
            copies.limits |= {partial: 0, result: 1, copy: 2}
    _schedule_columns(scheduled, outer, places, after)
    copies.inline(scheduled, layouts, axes[-1], len(kinds), start)


def _reread(scheduled: ScheduledFusion, parameters: ThreadedReduction) -> set[TensorView]:
    """The inputs with columns, if a thread doesn't keep them."""
    if not parameters.rereads:
        return set()
    layouts = Layouts(scheduled.fusion)
    inner, _ = rows_and_columns(scheduled.fusion, layouts)
    axes, _ = split_axes(inner[0], layouts)
    column = layouts.number(axes[-1])
    return {e.tensor for e in layouts.leaves if e.tensor.expr is None and column in e.own.axes}


def _schedule_columns(
    scheduled: ScheduledFusion,
    outer: Sequence[TensorView],
    places: Sequence[int],
    after: AbstractSet[TensorView],
) -> None:
    """[columns: grid_x][tasks: serial, unroll][lines][lanes] for what follows from those sums."""
    reference = outer[0]
    own = scheduled[reference]
    arrange_columns(scheduled, reference, places, after)
    own.split(0, _LANES)
    own.split(2, _LINES)
    own.split(2, PARTS_AT_ONCE)
    own.reorder({1: 4})
    own_tensors = [t for t in scheduled.fusion.tensors if t in after]
    transform_like(scheduled, reference, own_tensors)
    kinds = [ParallelType.grid_x, ParallelType.serial, ParallelType.unroll]
    kinds += [ParallelType.block_y, ParallelType.block_x]
    for position, kind in enumerate(kinds):
        own.parallelize(position, kind)
    parallelize_like(scheduled, reference, tensors=own_tensors)
    for tensor in outer:
        rfactor(scheduled, tensor, [1, 2])
