"""Parameters of pointwise kernels with inputs that run across each other: the tiles of a task.

The tiles are squares that are stored at once, or parts of rows, or whole rows, that go through a
stage (`schedule/staged_tiles.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeGuard

from ...ir.scalar_queries import evaluate
from ...ir.scalars import ZERO, Integer, IntExpr
from ...target.parameters import PointwiseFacts, PointwiseParameters
from .processor import Processor
from .short_rows import MOST_PLACES, MOST_SHUFFLED

# The longest part of a row that is put together before it is stored.
_COLUMNS_OF_STAGE = 512
LEAST_LANES = 4  # of vectors along rows that are shorter than a vector
# Columns of a task whose transposed rows are short; 256 to 4096 take the same time.
_COLUMNS_OF_SHORT_ROWS = 512
_PAGE_BYTES = 4096
_BYTES_AHEAD = 256  # of the parts of transposed rows
_MOST_BYTES_AHEAD = 8192  # of whole rows
# Rows of an input that are a multiple of this apart are in few sets of the TLB, the probable cause.
_CONFLICTING_BYTES = 128 * 1024
# Columns that a stage of whole rows has room for.
_WHOLE_ROWS = (128, 256, 512, 1024)


def tiles(
    processor: Processor, facts: PointwiseFacts, sizes: Mapping[str, int]
) -> PointwiseParameters | None:
    """None if no input is transposed, or its tiles would be narrower than a vector."""
    columns = evaluate(facts.columns, sizes)
    lanes = processor.lanes(facts.bytes)
    if facts.transposed is None:
        return None
    short = _short_rows(processor, facts, columns, sizes)
    if short is not None or columns < lanes:
        return short
    transposed = evaluate(facts.transposed, sizes)
    staged = evaluate(facts.staged or ZERO, sizes)
    line = line_elements(processor, facts)
    is_short_part = transposed < staged and transposed <= 4 * line
    if staged >= lanes and (is_short_part or _is_staged(processor, facts, staged, columns, sizes)):
        matrices = Matrices.of(facts, staged, sizes)
        if staged == transposed and columns % line and columns <= _WHOLE_ROWS[-1]:
            return _staged_rows(processor, facts, matrices, sizes)
        return _staged_tiles(processor, facts, matrices, sizes)
    if transposed < lanes:
        return None
    return _tiles(processor, facts, Matrices.of(facts, transposed, sizes), sizes)


@dataclass(frozen=True, slots=True)
class Matrices:
    """Matrices that a transposed input's memory goes along the rows of: how many, and their sizes
    in elements."""

    count: int
    rows: int
    columns: int

    @staticmethod
    def of(facts: PointwiseFacts, rows: int, sizes: Mapping[str, int]) -> Matrices:
        """The matrices of so many rows."""
        return Matrices(evaluate(facts.rows, sizes) // rows, rows, evaluate(facts.columns, sizes))

    def tasks(self, tile: int, chunk: int) -> int:
        """Tasks of so many rows and columns."""
        return self.count * -(-self.rows // tile) * -(-self.columns // chunk)


def _short_rows(
    processor: Processor, facts: PointwiseFacts, columns: int, sizes: Mapping[str, int]
) -> PointwiseParameters | None:
    """A step reads the rows of a vector of columns together; None if they aren't short, or their
    length isn't known.

    Measured on a Zen 5 against the elements of a row one by one: rows of 3, 4, 8 and 12 elements in
    float32 take 0.3 to 0.7 of the time, in bfloat16 0.3 to 0.45.  Half precision is stored in whole
    lines, 0.85 of the time past the caches, if the rows are shuffled; longer ones take 1.4 times as
    long as in a stage there.
    """
    lanes, line = processor.lanes(facts.bytes), line_elements(processor, facts)
    if not (facts.follow and is_known_and_short(facts.transposed)):
        return None
    rows = facts.transposed.value
    if rows <= MOST_SHUFFLED:
        lanes = line
    elif line > lanes and not is_in_cache(processor, facts, sizes):
        return None
    fitting = lanes_for(columns, lanes)
    if fitting is None:
        return None
    return PointwiseParameters(fitting, 1, _COLUMNS_OF_SHORT_ROWS, rows, across=True)


def is_known_and_short(length: IntExpr | None) -> TypeGuard[Integer]:
    """True for rows of which several are loaded or stored together (`short_rows.py`)."""
    return isinstance(length, Integer) and 1 < length.value <= MOST_PLACES


def lanes_for(count: int, lanes: int) -> int | None:
    """The lanes of vectors along so many elements: fewer, a power of two, if there is no vector of
    all lanes; None for less than four elements.

    Measured on a Zen 5: patches of 14x14 pixels of three float32 in 320 us with 8 lanes, in 500
    with 16, of which two are empty.
    """
    while lanes > count:
        lanes //= 2
    return lanes if lanes >= LEAST_LANES else None


def _tiles(
    processor: Processor, facts: PointwiseFacts, matrices: Matrices, sizes: Mapping[str, int]
) -> PointwiseParameters:
    """A step writes whole cache lines and reads four of each row, which the prefetchers follow.

    Measured on an AVX2 machine, out of cache: one or two lines of each row gave 0.4 to 1.1 times
    the speed, eight 0.9 to 1.2 times; but their rows are in more pages than the first TLB holds.
    In the last cache, squares of whole lines write on along one line of rows.  Measured on a Zen 5,
    1024x1024 in float32: 0.5 of the time, 1000x1000 and 768x3072 0.6 to 0.8; in bfloat16, whose
    squares have half a line of each row, 1.2 times as long.  These take 16 lines of each row: 0.9
    to 1.0 of the time, out of cache 0.8 to 0.95; in float32 on a Zen 4, out of cache, 0.75 to 0.95.
    A task that has all rows, which are long, takes them by the cache line: few streams, which the
    prefetchers follow.  Measured on a Granite Rapids, 64 rows of 65536 elements in its third cache:
    1.4 to 3.3 times the speed; 0.7 to 1.3 times where there are more rows.
    Of several outputs, registers hold squares of a vector each.  Measured on a Zen 5: two products
    of images in bfloat16, one of them channels last, in 228 instead of 485 us.
    """
    lanes, line = processor.lanes(facts.bytes), line_elements(processor, facts)
    most, tile = max(16 * lanes, line), 4 * line
    if line == lanes and is_in_cache(processor, facts, sizes):
        most, tile = 64 * line, line
    elif processor.stores_lines_apart and line > lanes:
        tile = 16 * line
    elif processor.stores_lines_apart and matrices.rows > tile:
        most, tile = tile, 16 * line
    chunk, tile = _chunk_and_tile(processor, matrices, line, most, tile)
    ahead, has_all = _ahead(processor, facts, matrices, sizes), matrices.rows <= 4 * line
    vectors = line // lanes if facts.stored == 1 else 1
    return PointwiseParameters(lanes, vectors, chunk, tile, ahead, rows=has_all)


def _is_staged(
    processor: Processor,
    facts: PointwiseFacts,
    rows: int,
    columns: int,
    sizes: Mapping[str, int],
) -> bool:
    """True for results that are stored past the caches, where a step over square tiles jumps from
    page to page, or stores parts of cache lines.

    A task that has all rows, which are few, reads them by the line and jumps less; in the third
    cache, staging 64 rows of 65536 elements took twice as long.  Measured on a Zen 5 in half
    precision, out of cache: squares of whole lines take 0.6 to 0.95 of the time of a stage, but 1.1
    to 1.6 times as long if the rows that are read together are in few sets of the TLB; others 1.1
    to 1.7 times (the last two on a Zen 4), 0.5 for rows of 17 and 31 elements.
    """
    line = line_elements(processor, facts)
    if processor.stores_lines_apart and facts.inputs == 1:  # nothing is read along whole rows
        vectors = line // processor.lanes(facts.bytes)
        are_in_few_sets = rows * facts.narrowest % _CONFLICTING_BYTES == 0 and vectors == 2
        if vectors <= 2 and columns % line == 0 and not are_in_few_sets:
            return False
    if columns < line:
        return False  # no row joins another (`row_copies.py`)
    are_apart = _are_apart(facts, rows) and rows > 4 * line
    bytes_stored = evaluate(facts.rows, sizes) * columns * facts.narrowest
    is_streamed = 2 * bytes_stored >= processor.l3_bytes
    return is_streamed and (are_apart or columns % line > 0)


def _staged_tiles(
    processor: Processor, facts: PointwiseFacts, matrices: Matrices, sizes: Mapping[str, int]
) -> PointwiseParameters:
    """Long parts of the inputs' rows if these are apart, for each part is in another page; the
    stage takes a quarter of the second cache.

    Measured on a Granite Rapids, 8192x4096, not in any cache, against square tiles that are stored
    at once: a transposition takes 0.85 of the time in float32, 0.65 in bfloat16, a transposed add
    0.9 and 0.6.  Four lines of each row give half of that.  Rows of 257 and 4099 elements are 3 to
    6 times as fast, and ranges of 3 to 15 elements 9 to 18 times (in a cache, 1.2 to 2.7 times),
    of 64 elements in a cache 1.1 to 1.9 times.
    """
    lanes, line = processor.lanes(facts.bytes), line_elements(processor, facts)
    tile, most = (16 if _are_apart(facts, matrices.rows) else 4) * line, _COLUMNS_OF_STAGE
    are_cut = matrices.columns % line > 0  # then fewer ends of rows store parts of lines
    while tile * most * facts.narrowest > processor.l2_bytes // 4 and most > 4 * line:
        is_tall = tile > most or (tile == most and are_cut)
        tile, most = (tile // 2, most) if is_tall else (tile, most // 2)
    chunk, tile = _chunk_and_tile(processor, matrices, line, most, tile)
    ahead = _ahead(processor, facts, matrices, sizes)
    return PointwiseParameters(lanes, line // lanes, chunk, tile, ahead, staged=True)


def _staged_rows(
    processor: Processor, facts: PointwiseFacts, matrices: Matrices, sizes: Mapping[str, int]
) -> PointwiseParameters:
    """Whole rows of results that don't end with cache lines.

    They follow each other in memory, so lines are stored whole (`row_copies.py`).  The stage takes
    half of the second cache.  Measured on a Zen 5, out of cache, against parts of rows in a quarter
    of it: rows of 197 to 682 elements take 0.5 to 0.9 of the time.
    """
    lanes, line = processor.lanes(facts.bytes), line_elements(processor, facts)
    # The stage has room for more columns, of which nothing is touched: there are few kernels.
    chunk = next(most for most in _WHOLE_ROWS if matrices.columns <= most)
    tile, row_bytes = 32 * line, matrices.columns * facts.narrowest
    while tile > line and (
        2 * tile * row_bytes > processor.l2_bytes
        or tile >= 2 * matrices.rows
        or matrices.tasks(tile, chunk) < 4 * processor.cores
    ):
        tile //= 2
    ahead = _ahead(processor, facts, matrices, sizes)
    return PointwiseParameters(lanes, line // lanes, chunk, tile, ahead, staged=True)


def _ahead(
    processor: Processor, facts: PointwiseFacts, matrices: Matrices, sizes: Mapping[str, int]
) -> int:
    """How many bytes ahead the parts of an input's rows are fetched, which are so many that no
    prefetcher follows them; 0 in cache.

    Of short rows a task reads all, so the rows of the next squares are fetched; unless other rows
    follow each in the input's memory, which are read later.
    Measured on a Zen 5, out of cache: transpositions of long rows take 0.55 to 0.95 of the time, of
    rows of 64 to 256 elements 0.65 to 0.95; in cache 1.0 to 1.35 times.
    """
    if is_in_cache(processor, facts, sizes):
        return 0
    rows = max(matrices.rows, evaluate(facts.staged or ZERO, sizes))
    row_bytes = rows * facts.narrowest
    if row_bytes >= 4 * _BYTES_AHEAD:
        return _BYTES_AHEAD
    squares = line_elements(processor, facts) * row_bytes
    power = 1 << (squares.bit_length() - 1)
    nearest = 2 * power if 2 * squares >= 3 * power else power  # there are few kernels
    return min(nearest, _MOST_BYTES_AHEAD)


def _are_apart(facts: PointwiseFacts, rows: int) -> bool:
    """True if an input's rows of so many elements, which a step reads a part of, are in pages of
    their own."""
    return rows * facts.narrowest >= _PAGE_BYTES


def line_elements(processor: Processor, facts: PointwiseFacts) -> int:
    """The elements of a cache line of the narrowest input or output, in whole vectors."""
    lanes = processor.lanes(facts.bytes)
    return processor.vectors_of_line(lanes, facts.narrowest) * lanes


def _chunk_and_tile(
    processor: Processor, matrices: Matrices, line: int, most: int, tile: int
) -> tuple[int, int]:
    """The columns and rows of a task: at most `most` columns and a tile of rows, or fewer if there
    are too few tasks otherwise.

    A few parts of the columns are about as long as each other, and a row or some more than a tile
    belong to it: a task of a line is slow.  There are few such lengths, for each is a kernel.
    """
    columns, chunk = matrices.columns, most
    if most < columns <= 4 * most:
        parts = next(parts for parts in (2, 3, 4) if columns <= parts * most)
        step = max(most // 8, line)
        chunk = next(c for c in range(step, most + step, step) if columns <= parts * c)
    if tile < matrices.rows <= 3 * tile // 2 and tile > line:  # tiles are of whole lines
        tile = 3 * tile // 2
    while matrices.tasks(tile, chunk) < 4 * processor.cores and (chunk > line or tile > line):
        if chunk > line:
            chunk = -(-chunk // (2 * line)) * line
        else:
            tile = -(-tile // (2 * line)) * line
    return chunk, tile


def is_in_cache(processor: Processor, facts: PointwiseFacts, sizes: Mapping[str, int]) -> bool:
    """True if the last cache holds all data, and as much of what others have there."""
    return 2 * evaluate(facts.touched, sizes) <= processor.l3_bytes
