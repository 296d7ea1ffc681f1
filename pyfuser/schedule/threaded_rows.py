"""Reductions and normalisations along the innermost axis on hardware threads.

    full rows:   [rows: grid_x][repeats][switch][lines][vectors: unroll][lanes][vector]
    short rows:  [rows: grid_x][repeats][lines][vectors: unroll][lanes][vector]
    long rows:   [row: grid_x][part: grid_y][others][serial][vectors: unroll][lines, lanes][vector]

`lines` is block_y: rows shorter than a block share one.  A thread's part of a short row is read
once, before anything is computed, into registers, where all passes find it.  A line repeats this
for a few rows if there are weights, which it reads once for all of them.  Full rows are short ones
that end with their threads' last vectors: the switch is a loop of one iteration, in which lowering
separates whole blocks, which need no conditions; the vectors of other rows need them in all blocks.

Of long rows, the inputs of a normalisation are kept in shared memory if they fit, or else read in
each pass.  The lines of a long row, whose innermost axis is shorter than a block, are of the axis
around it: they are block_x, with the lanes, and unrolled.

Each thread has as many partial results as its vectors have elements; they are added up before the
threads of a row combine theirs.  The results of the parts of a row are combined by one block.
"""

from __future__ import annotations

from ..ir.domains import ParallelType
from ..ir.schedule import ScheduledFusion, TensorSchedule
from ..ir.vals import TensorView
from ..target.thread_parameters import ThreadedReduction
from .cascade import rfactor_blocks, split_chain
from .common import Layouts, parallelize_positions, reductions
from .propagation import transform_like
from .reduced_axes import arrange, split_axes, weights
from .rewrite import rfactor
from .threaded_parts import combine_parts, copies_of
from .vectors import Copies


def schedule_rows(scheduled: ScheduledFusion, parameters: ThreadedReduction) -> None:
    """The loops; see the module's docstring."""
    copies = copies_of(scheduled, parameters)
    layouts = Layouts(scheduled.fusion)
    reference = reductions(scheduled.fusion)[0]
    axes, _ = split_axes(reference, layouts)
    if parameters.repeats > 1:
        for tensor in weights(layouts, axes):
            copies.limits |= dict.fromkeys(copies.movers(tensor), 1)
    if parameters.is_whole:
        most, loops = _short_rows(scheduled, reference, layouts, parameters)
    else:
        most, loops = _long_rows(scheduled, reference, layouts, parameters, copies)
    copies.inline(scheduled, layouts, axes[-1], loops, most)


def _short_rows(
    scheduled: ScheduledFusion,
    reference: TensorView,
    layouts: Layouts,
    parameters: ThreadedReduction,
) -> tuple[int, int]:
    """Returns the position at which inputs are copied, and the number of loops."""
    own = scheduled[reference]
    rows, _ = arrange(scheduled, reference, layouts, parameters.together)
    own.split(rows, parameters.vector, is_even=parameters.vector > 1)
    own.split(rows, parameters.lanes, is_even=parameters.is_full)
    own.split(rows, parameters.unroll, is_whole=True, is_even=parameters.is_full)
    kinds: list[ParallelType] = []
    if rows:
        own.split(0, parameters.lines)
        kinds = [ParallelType.block_y]
        if parameters.is_full:
            own.split(0, 1)
            kinds.insert(0, ParallelType.unswitch)
        own.split(0, parameters.repeats)
        kinds = [ParallelType.grid_x, ParallelType.serial, *kinds]
    start = len(kinds)
    kinds += [ParallelType.serial, ParallelType.unroll, ParallelType.block_x, ParallelType.unroll]
    transform_like(scheduled, reference)
    parallelize_positions(scheduled, reference, dict(enumerate(kinds)))
    for tensor in reductions(scheduled.fusion):
        rfactor(scheduled, tensor, [start, start + 1])
        rfactor(scheduled, tensor, [start + 1])
    return start, len(kinds)


def _lines_of_others(own: TensorSchedule, position: int, parameters: ThreadedReduction) -> None:
    """[others][serial][lanes] -> [others][serial][unroll][lines, lanes]; serial: `position`."""
    own.split(position - 1, parameters.lines)
    own.split(position - 1, parameters.unroll)
    own.reorder({position + 2: position})
    own.merge(position + 2)


def _long_rows(
    scheduled: ScheduledFusion,
    reference: TensorView,
    layouts: Layouts,
    parameters: ThreadedReduction,
    copies: Copies,
) -> tuple[int, int]:
    """Returns the position at which inputs are copied, and the number of loops."""
    own = scheduled[reference]
    rows, others = arrange(scheduled, reference, layouts, parameters.together)
    lines = parameters.lines if others else 1
    kinds: dict[int, ParallelType] = {0: ParallelType.grid_x} if rows else {}
    start, position = rows, rows + others
    own.split(position, parameters.vector)
    if parameters.parts > 1 and not parameters.outermost:
        own.split(position, parameters.lanes * parameters.unroll)
        own.split(position, parameters.parts, inner_split=False)
        own.split(position + 2, parameters.lanes)
        own.reorder({position: rows})
    else:
        own.split(position, parameters.lanes)
        if lines > 1:
            _lines_of_others(own, position, parameters)
        else:
            own.split(position, parameters.unroll)
        if parameters.parts > 1:
            own.split(rows, parameters.parts, inner_split=False)
    position += 1
    if parameters.parts > 1:
        kinds[rows] = ParallelType.grid_y if rows else ParallelType.grid_x
        start, position = rows + 1, position + 1
    counts = split_chain(scheduled, reference, start, position, parameters.cascade)
    position = start + sum(counts)
    kinds[position] = ParallelType.unroll
    kinds[position + 1] = ParallelType.block_x
    kinds[position + 2] = ParallelType.unroll
    transform_like(scheduled, reference)
    parallelize_positions(scheduled, reference, kinds)
    for tensor in reductions(scheduled.fusion):
        left = rfactor_blocks(scheduled, tensor, start, counts)
        rfactor(scheduled, tensor, list(range(start, start + left)))
        rfactor(scheduled, tensor, [start])
        rfactor(scheduled, tensor, [start + 1])
        if parameters.parts > 1:
            kind = ParallelType.block_x
            threads = parameters.lanes * lines
            copies.limits |= combine_parts(scheduled, tensor, start, rows, kind, threads)
    return position, position + 3
