"""Transposed inputs on hardware threads: a block reads a tile along its memory, then its columns.

    tasks:             [outer: grid_z][rows: grid_y][columns: grid_x][switch]
    reference output:  [tasks][rows: unroll][lines][lanes]
    tile of an input:  [tasks][columns: unroll][lines][lanes]

`lines` is block_y and `lanes` block_x: columns in the reference, rows in the tile, along which the
input is contiguous.  The tile has as many rows as columns, so the same threads fit both.  Its rows
are padded in shared memory: the elements of a column are in different banks.  A block tests once
whether its tile is whole; the switch is a loop of one iteration, which peeling cuts.  Tiles of
vectors: vector_tiles.py.
"""

from __future__ import annotations

from ..dtypes import size_in_bytes
from ..ir.domains import IterDomain, ParallelType
from ..ir.schedule import MemoryType, ScheduledFusion
from ..ir.vals import TensorView
from ..target.thread_parameters import ThreadedPointwise
from .common import Layouts
from .inlining import inline_most
from .propagation import parallelize_like, transform_like
from .rewrite import cache_after
from .tiles import Matrix


def schedule_tiles(
    scheduled: ScheduledFusion,
    reference: TensorView,
    row_axis: IterDomain,
    transposed: list[TensorView],
    layouts: Layouts,
    parameters: ThreadedPointwise,
) -> None:
    """The loops; see the module's docstring.

    `row_axis` is the reference axis along which the transposed inputs are contiguous.
    """
    tiles = [cache_after(scheduled, tensor) for tensor in transposed]
    own, matrix = scheduled[reference], Matrix.of(reference, row_axis, layouts)
    switch = matrix.split_into_tasks(
        scheduled, reference, parameters.tile, parameters.chunk, TILES[:-1]
    )
    own.split(switch - 1, 1)
    kinds = TILES[-switch - 1 :]
    # [outer][rows][columns][switch][rows of a tile][columns of a tile]
    inside = len(kinds)
    transform_like(scheduled, reference)
    for tile in tiles:
        schedule = scheduled[tile]
        schedule.memory_type = MemoryType.shared
        schedule.padding = parameters.padding * max(_WORD_BYTES // size_in_bytes(tile.dtype), 1)
        schedule.split(inside + 1, parameters.lines)
        schedule.reorder({inside: inside + 2})
        for position, kind in enumerate(kinds):
            schedule.parallelize(position, kind)
        _parallelize_inside(scheduled, tile, inside)
    own.split(inside, parameters.lines)
    for position, kind in enumerate(kinds):
        own.parallelize(position, kind)
    _parallelize_inside(scheduled, reference, inside)
    others = [t for t in scheduled.fusion.tensors if t.expr is not None and t not in tiles]
    transform_like(scheduled, reference, others)
    parallelize_like(scheduled, reference, tensors=others)
    inline_most(scheduled)


TILES = (ParallelType.grid_z, ParallelType.grid_y, ParallelType.grid_x, ParallelType.unswitch)
_WORD_BYTES = 4  # of a bank of shared memory


def _parallelize_inside(scheduled: ScheduledFusion, tensor: TensorView, inside: int) -> None:
    """[...][unroll][lines][lanes] from this position on."""
    for place, kind in enumerate((ParallelType.unroll, ParallelType.block_y, ParallelType.block_x)):
        scheduled[tensor].parallelize(inside + place, kind)
