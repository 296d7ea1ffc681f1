"""Transposed inputs on hardware threads, in tiles of vectors: memory is moved 16 bytes at a time.

    tasks:             [outer: grid_z][rows: grid_y][columns: grid_x][switch]
    reference output:  [tasks][rows: unroll][lines: block_y][columns: block_x][vector]
    input, registers:  [tasks][columns: unroll][lines: block_y][rows: block_x][vector]
    tile:              the same; in shared memory: [columns][rows]

The tile has as many rows as columns: as many vectors as threads are side by side.  Rows of columns
and columns of rows are whole vectors, so a vector is in the tile, or isn't.

A row of the tile is what all banks of shared memory hold once.  Within it, elements are moved (a
swizzle): vectors by the vector that the row belongs to along the columns, words by the row's number
in it.  A warp writes one element of each of its vectors at a time, of four rows; it reads one of
each, across the rows, of four columns.  In both, no two words are in one bank.

A block tests once whether its tile is whole; the switch is a loop of one iteration, which peeling
cuts.
"""

from __future__ import annotations

from ..ir.domains import IterDomain, ParallelType
from ..ir.scalars import as_expr
from ..ir.schedule import MemoryType, ScheduledFusion
from ..ir.vals import TensorView
from ..target.thread_parameters import ThreadedPointwise
from .common import Layouts, merge_range
from .propagation import parallelize_like, transform_like
from .rewrite import cache_after
from .threaded_tiles import TILES
from .tiles import Matrix
from .vectors import Copies, make_vector

_WORDS = 4  # of a vector; the rows that a warp writes at once


def schedule_vector_tiles(
    scheduled: ScheduledFusion,
    reference: TensorView,
    row_axis: IterDomain,
    transposed: list[TensorView],
    parameters: ThreadedPointwise,
) -> None:
    """The loops; see the module's docstring.

    `row_axis` is the reference axis along which the transposed inputs are contiguous.
    """
    place = reference.axes.index(row_axis)
    copies, layouts = Copies.of(scheduled, parameters.vector), Layouts(scheduled.fusion)
    registers = [copy for tensor in transposed for copy in copies.movers(tensor)]
    tiles = [cache_after(scheduled, tensor) for tensor in registers]
    matrix = Matrix.of(reference, reference.axes[place], layouts)
    inside = _split_into_tiles(scheduled, reference, matrix, parameters)
    transform_like(scheduled, reference)
    for tensor in (*registers, *tiles):
        # [...][row vectors][rows of one][column vectors][columns of one]
        _place_own_broadcasts(scheduled, tensor, inside)
        rows, row, columns, column = scheduled[tensor].loop[inside:]
        if tensor in tiles:
            _place_in_shared_memory(scheduled, tensor, (rows, row, columns, column), parameters)
        scheduled[tensor].loop[inside:] = [columns, column, rows, row]
        _split_into_lines(scheduled, tensor, inside, parameters)
    _split_into_lines(scheduled, reference, inside, parameters)
    apart = {*registers, *tiles}
    others = [t for t in scheduled.fusion.tensors if t.expr is not None and t not in apart]
    transform_like(scheduled, reference, others)
    parallelize_like(scheduled, reference, tensors=others)
    last = len(scheduled[reference].loop) - 1
    for register in registers:
        make_vector(scheduled, register, last)
    copies.inline(scheduled, layouts, matrix.columns[-1], last + 1, inside)


def _split_into_tiles(
    scheduled: ScheduledFusion, tensor: TensorView, matrix: Matrix, parameters: ThreadedPointwise
) -> int:
    """[tasks][row vectors][rows of one][column vectors][columns of one]; returns how many loops the
    tasks are."""
    own, first = scheduled[tensor], matrix.merge(scheduled, tensor)
    for position in (first + 1, first):
        own.split(position, parameters.vector, is_even=True)
        own.split(position, parameters.lanes)
    # [outer][rows][row vectors][rows of one][columns][column vectors][columns of one]
    own.reorder({first + 3: first + 1})
    own.split(first + 1, 1)
    return first + 3


def _place_own_broadcasts(scheduled: ScheduledFusion, tensor: TensorView, inside: int) -> None:
    """Broadcast axes of a tensor's own that correspond to no loop are last: they take the place of
    the outer loop, if what it has of the reference's is a stand-in for broadcast axes.
    """
    own = scheduled[tensor]
    count = len(own.loop) - (inside + 4)
    if count and own.loop[0].is_broadcast:
        own.loop = [*own.loop[-count:], *own.loop[1:-count]]
        merge_range(scheduled, tensor, 0, count)


def _split_into_lines(
    scheduled: ScheduledFusion, tensor: TensorView, inside: int, parameters: ThreadedPointwise
) -> None:
    """[vectors][elements of one][lanes][vector] -> [unroll][unroll][lines][lanes][vector].

    A warp's lines are of one vector.
    """
    own = scheduled[tensor]
    own.split(inside + 1, _WORDS)
    own.split(inside, parameters.lines // _WORDS)
    own.reorder({inside + 1: inside + 2})
    own.merge(inside + 2)
    kinds = (*TILES[-inside:], *_INSIDE)
    for position, kind in enumerate(kinds):
        own.parallelize(position, kind)


_INSIDE = (
    ParallelType.unroll,
    ParallelType.unroll,
    ParallelType.block_y,
    ParallelType.block_x,
    ParallelType.unroll,
)


def _place_in_shared_memory(
    scheduled: ScheduledFusion,
    tile: TensorView,
    axes: tuple[IterDomain, IterDomain, IterDomain, IterDomain],
    parameters: ThreadedPointwise,
) -> None:
    """The layout of a tile: [columns][rows], swizzled."""
    ids, schedule = scheduled.fusion.ids, scheduled[tile]
    rows, row, columns, column = axes
    groups, lines = ids.split(column, as_expr(_WORDS))
    words, elements = ids.split(row, as_expr(parameters.vector // _WORDS))
    columns, rows = ids.swizzle(columns, rows)
    lines, words = ids.swizzle(lines, words)
    schedule.memory_type = MemoryType.shared
    schedule.allocation = (columns, groups, lines, rows, words, elements)
