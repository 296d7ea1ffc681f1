"""The parameters of pointwise kernels for an NVIDIA GPU: threads of a block side by side in memory,
or tiles of transposed inputs.

Measured on an H200 (docs/cuda.md); constants whose comments don't say so were computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...ir.scalar_queries import evaluate
from ...target.parameters import PointwiseFacts, PointwiseParameters
from ...target.thread_parameters import WARP, ThreadedPointwise
from ...target.unrolling import unroll_factor
from .vector_widths import VECTOR_BYTES, VECTORS, WORD_BYTES, aligned

if TYPE_CHECKING:
    from .target import CudaTarget

# Rows or columns below which most threads of a tile have nothing to do; transposed inputs are then
# read element by element, and the caches keep the rest of their sectors.
WORTH_A_TILE = 16
# Columns of the vectors of a warp that reads whole sectors, of 32 bytes, of their rows in a
# transposed input's memory: a tile would have few columns for its threads to store.
_FEW_COLUMNS = 16
# Shared memory has 32 banks of a word.
_ROW_BYTES = 32 * WORD_BYTES
# Tiles of a block that leave room for three more on a multiprocessor.
_MOST_TILE_BYTES = 48 << 10
# Threads side by side in a row at least: eight vectors are a line of the cache.
_FEWEST_LANES = 8
# Threads of a multiprocessor that hide what a read at a computed position takes, if each has one
# vector of every input under way: 64 registers are left for each.  RoPE in bfloat16 takes 90 us
# instead of 104 on an H200, its backward 93 instead of 118.
_BUSY_POINTWISE = 1024
# Work of an element, in additions, with which a thread computes two vectors at a time: GELU's
# backward takes 121 us instead of 130, thirty operations (76) 277 instead of 264.
_WORK_OF_TWO = 48


def pointwise(
    target: CudaTarget, facts: PointwiseFacts, sizes: Mapping[str, int]
) -> PointwiseParameters:
    """A block's threads are adjacent in memory, with a few elements each so that reads overlap."""
    rows, columns = evaluate(facts.rows, sizes), evaluate(facts.columns, sizes)
    threads = target.threads
    if facts.transposed is not None and columns >= WORTH_A_TILE:
        size = evaluate(facts.transposed, sizes)
        tiles = _tiles(target, facts, size, rows, columns) if size >= WORTH_A_TILE else None
        if tiles is not None:
            return tiles
    # Few columns that transposed inputs have far apart: vectors of them are stored, and their
    # elements read one by one.
    moved = facts.vector or (facts.squares if columns <= _FEW_COLUMNS else 0)
    vector = max(VECTOR_BYTES // moved, 1) if moved else 1
    while vector > 1 and rows != 1 and columns % vector:
        vector //= 2
    vector = aligned(vector, facts.steps, sizes)
    lanes = threads
    while lanes > 1 and rows != 1 and columns <= lanes // 2 * vector:
        lanes //= 2
    if rows != 1 and columns <= threads * vector:
        lanes = _busy_lanes(lanes, -(-columns // vector))
    # Reads of a thread that are under way together hide the memory's latency, if there are enough
    # threads for all multiprocessors anyway.
    reads = max(facts.inputs, 1)
    under_way = VECTORS // reads if facts.vector else 2 * VECTORS // (reads * vector)
    least = 2 if facts.work <= _WORK_OF_TWO else 1
    unroll = min(max(unroll_factor(facts.work), least), max(under_way, 1))
    while unroll > 1 and rows * columns < target.multiprocessors * threads * vector * unroll:
        unroll //= 2
    while unroll > 1 and rows != 1 and rows < threads // lanes * unroll:
        unroll //= 2
    is_even = vector > 1 and rows != 1  # one kernel for all lengths of a single row
    lines = threads // lanes
    resident = _BUSY_POINTWISE // threads if facts.steps and unroll == 1 else 1
    return ThreadedPointwise(
        lanes, unroll, 0, lines=lines, vector=vector, is_even=is_even, resident=resident
    )


def _busy_lanes(lanes: int, vectors: int) -> int:
    """As many threads side by side, or fewer if a padded short row is a tenth shorter: 48 vectors,
    of 192 floats, are three times 16, but leave a fourth of 64 or 32 threads idle.  Three parts of
    64 floats, concatenated, take 407 us instead of 546 on an H200.
    """
    busiest = lanes
    while lanes > _FEWEST_LANES:
        lanes //= 2
        if 10 * _padded(vectors, lanes) <= 9 * _padded(vectors, busiest):
            busiest = lanes
    return busiest


def _padded(vectors: int, lanes: int) -> int:
    return -(-vectors // lanes) * lanes


def _tiles(
    target: CudaTarget, facts: PointwiseFacts, size: int, rows: int, columns: int
) -> ThreadedPointwise | None:
    """Tiles whose rows all banks of shared memory hold once, of whole vectors if rows and columns
    have these and there are enough tiles for all multiprocessors; a thread for each element of a
    row otherwise.  None if a block has no room for a tile of each transposed input.
    """
    vector = VECTOR_BYTES // facts.squares if 0 < facts.squares <= WORD_BYTES else 1
    if vector > 1 and columns <= _FEW_COLUMNS and columns % vector == 0:
        return None
    lanes = _ROW_BYTES // VECTOR_BYTES
    side = lanes * vector
    is_enough = rows * columns >= target.multiprocessors * side**2
    has_room = facts.tiles * side**2 <= _MOST_TILE_BYTES
    if vector > 1 and is_enough and has_room and size % vector == columns % vector == 0:
        lines = min(side // 2, WARP)  # two vectors a thread, or four
        return ThreadedPointwise(
            lanes, side // lines, side, side, lines=lines, vector=vector, squares=True
        )
    padded = WARP + WORD_BYTES
    if facts.tiles * WARP * padded > target.limits.shared_bytes:
        return None
    return ThreadedPointwise.tiles(target.threads // WARP)
