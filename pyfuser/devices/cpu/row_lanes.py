"""Rows of few columns: when each has a lane, and the parameters of their kernels.

The lanes of a vector along a row of a few columns would have no elements, and combining them takes
longer than the row.  With a lane for each row no row ends within a vector, and none is combined.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...ir.scalar_queries import evaluate
from ...ir.scalars import IntExpr
from ...target.parameters import (
    PointwiseFacts,
    PointwiseParameters,
    ReductionFacts,
    ReductionParameters,
)
from .processor import Processor
from .short_rows import MOST_PLACES, MOST_WRITTEN_OUT
from .tile_heuristics import LEAST_LANES, is_in_cache, is_known_and_short, lanes_for

# Rows of fewer columns have a lane each if they are at least `_VECTORS_OF_ROWS` vectors.
# Measured on a Zen 3, in cache, rows of 2 to 24: pointwise, 2 to 7 columns 1.6 to 4 times as
# fast, 12 the same (bfloat16 with AVX2: 1.7); sums of 2 to 7 columns 1.2 to 4 times, of 12
# columns 0.9 times; softmax and layer norm, which combine lanes twice: 2 columns 6 times, 15
# columns 1.3 to 1.7, 16 columns 0.85 to 1.  Columns that are joined of parts, which a lane would
# compute all of to choose one: measured on a Zen 5, up to 16, 8 to 16 numbers stacked 3 to 9
# times as fast, two parts of 3 to 8 columns each 1 to 1.4 times.  There, too: sums of 8 to 15
# columns 1.0 to 1.3 times, maxima 1.1 to 1.4, of bfloat16 1.1 to 2.6, softmax of 16 columns 1.4
# and 2 times as fast.  Functions of 8 columns, which fill half of a vector: measured on a Zen 5,
# sines 2.2 times as fast, sigmoids 1.2, exponentials the same; of 10 columns 1.9, 1 and 0.8
# times.
FEW_COLUMNS = 8
_VECTORS_OF_ROWS = 2
# Longer rows of joined parts, too, if a vector has so many of these.  Measured on a Zen 5, float32,
# in cache, 18 to 60 columns of parts of one column: 5 to 14 times as fast, of three 2 to 9 times,
# of four 1.6 to 7 times (4 parts in a vector); out of cache 1.1 to 6 times.  Of 8 to 12 columns (2
# parts in a vector): 0.55 to 1.3 times, with functions 1.3 to 2.7 times in cache, 0.6 to 0.8 out of
# it.
_MANY_PARTS, _MANY_DEAR_PARTS = 3, 2
# So many, at most, and more than two, if two inputs or more have rows that are apart, which are
# transposed in registers.  Measured on a Zen 5: products of two slices, rows of 5 columns in 250 us
# with a lane each and 226 without, of 7 columns in 222 and 195, of 3 columns in 400 and 640.
_MOST_APART = 4
# Rows of two or three have a lane each even if they are fewer.  Measured on a Zen 4, 4 to 30 rows:
# products 0.4 to 0.8 of the time, sums and maxima 0.2 to 0.8, also those of slices, whose elements
# are loaded one by one; but 9 to 20 rows of 4 to 7, of a slice, took 1.2 to 2 times as long.
_FEWEST_COLUMNS = 3
_ROWS_OF_TASK = 512
LEAST_MASKED_BYTES = 4  # of an element for which AVX2 has masks


def pointwise_in_row_lanes(
    processor: Processor, facts: PointwiseFacts, sizes: Mapping[str, int]
) -> PointwiseParameters | None:
    """The parameters of a pointwise kernel with a lane for each row; None if it has others."""
    columns, lanes = evaluate(facts.columns, sizes), processor.lanes(facts.bytes)
    is_short = columns < FEW_COLUMNS
    if processor.vector_bits >= 512:
        is_short &= facts.apart < 2 or 2 < columns <= _MOST_APART
    elif facts.narrowest < LEAST_MASKED_BYTES:
        is_short |= columns < 2 * FEW_COLUMNS and columns % lanes > 0
    is_short |= columns == FEW_COLUMNS < lanes and facts.functions > 0
    is_short |= bool(facts.joined) and is_known_and_short(facts.columns)
    is_short |= _has_many_parts(processor, facts, sizes, columns, lanes)
    if is_short and _has_lanes_across(columns, facts.across, lanes, sizes):
        return pointwise_across(lanes, columns if columns > MOST_PLACES else 1)
    is_few = columns <= _FEWEST_COLUMNS or facts.transposed is not None
    if is_few and is_known_and_short(facts.columns):
        across = lanes_for(evaluate(facts.across, sizes), lanes)
        if across is not None:
            return pointwise_across(across)
    return None


def _has_many_parts(
    processor: Processor,
    facts: PointwiseFacts,
    sizes: Mapping[str, int],
    columns: int,
    lanes: int,
) -> bool:
    """True if many parts are joined in each vector of a row, which would compute all of them."""
    if not (facts.joined and facts.columns.is_constant and columns <= MOST_WRITTEN_OUT):
        return False
    if processor.vector_bits < 512 and facts.narrowest < LEAST_MASKED_BYTES:
        return False
    ends = {evaluate(end, sizes) for end in facts.joined} - {0, columns}
    computed = -(-columns // lanes) + sum(end % lanes > 0 for end in ends)
    is_dear = facts.functions > 0 and is_in_cache(processor, facts, sizes)
    return computed * lanes >= (_MANY_DEAR_PARTS if is_dear else _MANY_PARTS) * columns


def pointwise_across(lanes: int, unroll: int = 1) -> PointwiseParameters:
    """A lane for each row; columns are written out if they are to be unrolled."""
    return PointwiseParameters(lanes, unroll, _ROWS_OF_TASK, across=True)


def reduction_in_row_lanes(
    processor: Processor, facts: ReductionFacts, sizes: Mapping[str, int]
) -> ReductionParameters | None:
    """The parameters of a reduction with a lane for each row; None if it has others."""
    reduced, lanes = evaluate(facts.reduced, sizes), processor.lanes(facts.bytes)
    most = _most_columns_across(processor, facts, FEW_COLUMNS - 1)
    is_short = facts.inner and reduced <= most and reduced % lanes > 0
    if is_short and _has_lanes_across(reduced, facts.across, lanes, sizes):
        return reduction_across(lanes)
    last = facts.chain[-1]
    if is_short and is_known_and_short(last) and last.value <= _FEWEST_COLUMNS:
        few_lanes = _lanes_of_few_rows(processor, evaluate(facts.across, sizes), lanes)
        if few_lanes is not None and few_lanes > reduced:
            return reduction_across(few_lanes)
    return None


def reduction_across(lanes: int) -> ReductionParameters:
    """A lane for each row of an inner reduction, whose result stays in a register.

    Measured on a Zen 4 against 32 vectors of rows that take turns: grey values of 8x256x256 pixels
    of three float32, whose rows are read whole, in 330 instead of 770 us.
    """
    return ReductionParameters(False, lanes, 1, lanes, 1)


def _lanes_of_few_rows(processor: Processor, rows: int, lanes: int) -> int | None:
    """The lanes for the rows of an inner reduction that are fewer than two vectors; None for less
    than four.

    With AVX-512, also for one vector whose last lanes have no row.  Measured on a Zen 4: maxima of
    2x2 pixels of 8x64 images of 28x28 in 200 instead of 1050 us, of 7x7 in 30 instead of 85.
    """
    if processor.vector_bits < 512 or rows < LEAST_LANES:
        return lanes_for(rows, lanes)
    while lanes // 2 >= rows:
        lanes //= 2
    return lanes


def _most_columns_across(processor: Processor, facts: ReductionFacts, otherwise: int) -> int:
    """The longest rows that have a lane each, if there are enough: a square of lanes with AVX-512,
    which loads it by masks and transposes it.
    """
    lanes = processor.lanes(facts.bytes)
    is_square = lanes >= MOST_PLACES and is_known_and_short(facts.chain[-1])
    return MOST_PLACES if processor.vector_bits >= 512 and is_square else otherwise


def _has_lanes_across(columns: int, rows: IntExpr, lanes: int, sizes: Mapping[str, int]) -> bool:
    """True if there are enough rows for a lane each.

    A vector's elements are then loaded one by one, but no row ends within a vector, and no lanes
    are combined.
    """
    return columns > 1 and evaluate(rows, sizes) >= _VECTORS_OF_ROWS * lanes


def persistent_in_row_lanes(
    processor: Processor, facts: ReductionFacts, sizes: Mapping[str, int]
) -> ReductionParameters | None:
    """The parameters of a normalisation with a lane for each row; None if it has others."""
    lanes = processor.lanes(facts.bytes)
    reduced = evaluate(facts.reduced, sizes)
    most = _most_columns_across(processor, facts, 2 * FEW_COLUMNS - 1)
    if reduced <= most and _has_lanes_across(reduced, facts.across, lanes, sizes):
        return persistent_across(lanes)
    return None


def persistent_across(lanes: int) -> ReductionParameters:
    """A lane for each row of a normalisation along the innermost axis."""
    return ReductionParameters(False, lanes, 1, lanes, 1)
