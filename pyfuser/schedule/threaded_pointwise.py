"""The pointwise scheduler on hardware threads: a few vectors a thread, all read before it computes.

    1-D:  [range]          ->  [grid_x][switch][vectors: unroll][lanes][vector]
    2-D:  [outer][range]   ->  [grid_y][grid_x][switch][rows: unroll][lines][lanes][vector]

`lanes` is block_x and `lines` block_y: rows shorter than a block share one.  A value that has no
outer axis, such as a bias, is read once for the unrolled rows.  The switch is a loop of one
iteration, in which lowering separates whole blocks from those at an edge.
"""

from __future__ import annotations

from ..ir.domains import ParallelType
from ..ir.schedule import ScheduledFusion
from ..ir.vals import TensorView
from ..target.thread_parameters import ThreadedPointwise
from .common import Layouts, merge_adjacent, merge_range, ordered_axes, parallelize_positions
from .inlining import inline_most, inline_tasks
from .propagation import transform_like
from .vectors import Copies


def schedule_vectors(
    scheduled: ScheduledFusion, reference: TensorView, parameters: ThreadedPointwise
) -> None:
    """The loops; see the module's docstring."""
    scheduled.least_blocks = parameters.resident
    copies = Copies.of(scheduled, parameters.vector)
    layouts = Layouts(scheduled.fusion)
    own = scheduled[reference]
    own.loop = list(ordered_axes(reference))
    if not own.loop:
        inline_most(scheduled)
        return
    inner = merge_adjacent(scheduled, reference, layouts, 0, len(own.loop))
    merge_range(scheduled, reference, 0, inner)
    kinds = [ParallelType.grid_x, ParallelType.unswitch, ParallelType.unroll]
    if inner:
        # [outer][range] -> [rows][switch][unroll][lines][columns][lanes][vector]
        own.split(1, parameters.vector, is_even=parameters.is_even)
        own.split(1, parameters.lanes)
        own.split(0, parameters.lines)
        own.split(0, parameters.unroll)
        own.split(0, 1)
        own.reorder({4: 1})
        kinds = [ParallelType.grid_y, *kinds, ParallelType.block_y]
    else:
        own.split(0, parameters.vector, is_even=parameters.is_even)
        own.split(0, parameters.lanes)
        own.split(0, parameters.unroll)
        own.split(0, 1)
    kinds += [ParallelType.block_x, ParallelType.unroll]
    transform_like(scheduled, reference)
    parallelize_positions(scheduled, reference, dict(enumerate(kinds)))
    inside = kinds.index(ParallelType.unswitch) + 1
    innermost = ordered_axes(reference)[-1]
    copies.inline(scheduled, layouts, innermost, len(own.loop), inside, by=inline_tasks)
