"""The schedulers' parameters for a processor: vectors, tasks for every core, blocks for its caches.

Where a comment says measured, it was on a Zen 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...ir.scalar_queries import evaluate
from ...ir.scalars import IntExpr
from ...target.cascade import chain_levels, levels
from ...target.parameters import (
    InnerOuterFacts,
    InnerOuterParameters,
    PointwiseFacts,
    PointwiseParameters,
    ReductionFacts,
    ReductionParameters,
    ScanFacts,
    ScanParameters,
    ScatterFacts,
    ScatterParameters,
)
from ...target.unrolling import inner_unroll, row_unroll, unroll_factor
from .processor import Processor
from .row_blocks import rows_of_reduction, rows_of_task
from .row_lanes import (
    FEW_COLUMNS,
    LEAST_MASKED_BYTES,
    persistent_in_row_lanes,
    pointwise_in_row_lanes,
    reduction_across,
    reduction_in_row_lanes,
)
from .tile_heuristics import LEAST_LANES, tiles

# From this many vectors in a row, the row's own work hides the four or so divisions before it.
_VECTORS_OF_SHORT_ROW = 8

# How far ahead sequential reads fetch if data comes from memory.  Measured: 4096 bytes gave 1.0 to
# 1.2 times the speed of no prefetching in add and sum over more than the caches hold; 512 and 2048
# gave less.  From the caches it costs up to 20 %, so it is left out there.
PREFETCH_BYTES = 4096

# Accumulators of a pass that reads a row as one range: its own work is little, whatever the others
# do.  Measured on a Zen 3: two and eight made group norms of 7x7 images 5 to 20 % slower.
_SUM_VECTORS = 4


# So many vectors are computed together if a kernel has functions such as exp and the processor few
# registers.  Measured on a Zen 3, float32, in cache, against one by one: softmax and log-softmax
# 1.2 times as fast (two vectors: 1.13), softplus 1.8 (1.5), log 1.2 (1.1), GELU 1.15 (1.19), tanh
# the same; bfloat16 1.1 to 1.8, float64 1.0 to 2.0.  Kernels without functions: 0.9 to 1.
_VECTORS_TOGETHER = 4
# More work takes half as many: the code of 80 operations with 10 functions took 1.4 times as long
# to compile with four as with one or two, and ran 1.9 and 1.7 times as fast.
_FEW_REGISTERS = 16
_MUCH_WORK = 48
# With 32 registers this is so for long chains of operations, which no unrolling overlaps, and for
# functions of float and double.  Measured on a Granite Rapids, in cache, four vectors together
# against one by one: six expm1 in a row 2.1 times as fast, twelve steps of a Mandelbrot set 1.1 to
# 1.4, Black-Scholes 1.4, mish and the gradient of GELU 1.0 to 1.3, also before sums and norms;
# GELU, sin, pow 1.0 to 1.15, of double 1.1 to 1.25.  Softmax and sums of exp 0.75 to 0.9, functions
# of bfloat16 0.7 to 0.9 (they are computed in pairs).
_VERY_MUCH_WORK = 96
# The work of a normalisation is that of several passes.  Measured on a Zen 4, bfloat16, in cache, a
# layer norm and one function: two vectors of a pair take 0.75 to 0.85 of the time of four together,
# and as long with more work between.
_WORK_OF_PASSES = 32
_MOST_COMPUTED = (7, 6)  # of the elements of a short row: a ratio of integers, as sizes are

# The least elements of the parts of a row that are reduced before their results are.
LEAST_PART = 2 * FEW_COLUMNS

# Steps of a row in which those at the ends of windows are few.
_STEPS_OF_WINDOWS = 8

# Rows that one step of a reduction of columns adds, and vectors of columns of a normalisation.
_ROWS_OF_STEP = 4
_COLUMN_VECTORS = 4
_FEW_ROWS, _COLUMNS_OF_FEW_ROWS = 8, 1024

# So few rows of a few vectors are added in a register, one vector of columns after the other,
# instead of to results in the L1 cache.  Measured on a Zen 4, in the caches, float32: 2 to 5 rows
# of 17 or 28 columns in 0.3 to 0.85 of the time, of 14 in 0.5 to 0.8; bfloat16 0.6 to 0.95.  On a
# Zen 5, 7 rows of 17 to 64 columns in 0.5 to 0.75 of the time, bfloat16 0.55 to 0.8.
_ROWS_IN_REGISTERS = 16
_COLUMNS_IN_REGISTERS = 4  # vectors

# A task of a row has at least so much work, in additions, if there are few tasks.
_TASK_WORK = 8 << 10

# A block of columns is halved for another worker if each half has so much.  Measured on a Granite
# Rapids, columns of functions: with twenty times as much, in 0.6 of the time, a third, in 1.2.
_BLOCK_WORK = 64 << 10

# Below this many elements one thread is done before another has woken up.
_ELEMENTS_FOR_TASKS = 64 << 10
# Or with so much work on rows of them, in additions.  Measured on a Granite Rapids, sums of
# functions: with a third less, one thread and two take as long, with eight times as much, two 0.6.
_WORK_FOR_TASKS = 512 << 10


def pointwise(
    processor: Processor, facts: PointwiseFacts, sizes: Mapping[str, int]
) -> PointwiseParameters:
    """Full vectors; a task takes as much as the L1 cache holds."""
    rows, columns = evaluate(facts.rows, sizes), evaluate(facts.columns, sizes)
    lanes = processor.lanes(facts.bytes)
    chunk = processor.l1_bytes // facts.bytes
    tiled = tiles(processor, facts, sizes)
    if tiled is not None:
        return tiled
    across = pointwise_in_row_lanes(processor, facts, sizes)
    if across is not None:
        return across
    prefetch = _prefetch(processor, facts.touched, sizes)
    whole_rows = rows >= 4 * processor.cores
    unroll = unroll_factor(facts.work)
    if rows == 1 or (not whole_rows and columns > chunk):
        while chunk * 2 * processor.cores > rows * columns and chunk * facts.work > 2 * _TASK_WORK:
            chunk //= 2
        lanes, unroll = _step(processor, facts, columns, lanes, unroll)
        return PointwiseParameters(lanes, unroll, chunk, prefetch=prefetch)
    grouped = False
    if facts.groups is not None and columns < _VECTORS_OF_SHORT_ROW * lanes:
        groups = evaluate(facts.groups, sizes)
        grouped = 4 * processor.cores <= groups < rows
    unroll = row_unroll(columns, lanes, unroll)
    if facts.columns.is_constant:  # the kernel isn't for longer rows, too
        unroll = min(unroll, -(-columns // lanes))
        lanes = min(lanes, columns) if _is_vector(columns) else lanes
    lanes, unroll = _step(processor, facts, columns, lanes, unroll, prefetch > 0)
    lanes, unroll = _step_at_windows(processor, facts, sizes, lanes, unroll)
    return PointwiseParameters(lanes, unroll, 0, prefetch=prefetch, rows=grouped)


def _is_vector(columns: int) -> bool:
    """True if a row is a vector without lanes that have no element."""
    return columns >= LEAST_LANES and columns.bit_count() == 1


def _step_at_windows(
    processor: Processor, facts: PointwiseFacts, sizes: Mapping[str, int], lanes: int, unroll: int
) -> tuple[int, int]:
    """The lanes and the vectors of a step of a row: fewer if a short row has windows that end
    within its steps, where every part is computed, and one chosen for each element.

    Measured on a Zen 4: 32 sines and 32 cosines joined, 6.6 instead of 8.6 ms.
    """
    columns = evaluate(facts.columns, sizes)
    ends = [end for end in (evaluate(step, sizes) for step in facts.steps) if 0 < end < columns]

    def splits_a_window() -> bool:
        step = lanes * unroll
        return columns < _STEPS_OF_WINDOWS * step and any(end % step for end in ends)

    while unroll > 1 and splits_a_window():
        unroll //= 2
    while lanes > processor.lanes(facts.bytes) and splits_a_window():
        lanes //= 2
    return lanes, unroll


def _step(
    processor: Processor,
    facts: PointwiseFacts | ReductionFacts,
    columns: int,
    lanes: int,
    unroll: int,
    is_streamed: bool = False,
) -> tuple[int, int]:
    """The lanes and the vectors of one step along rows of so many columns.

    A function such as exp has more constants than 16 registers keep, and a chain of operations each
    of which waits for the one before: then several vectors are computed together, as one of more
    lanes.  A short row takes them one by one if its end would be much of them; so rows of all
    lengths need two kernels.  Rows that are stored past the caches, vector by vector, end with a
    step: what is left of one would go through them (`memory_access._masked_store`).
    """
    if processor.vector_registers > _FEW_REGISTERS:
        together = _together_in_many_registers(facts)
    elif facts.functions:
        together = _VECTORS_TOGETHER if facts.work <= _MUCH_WORK else _VECTORS_TOGETHER // 2
    else:
        together = 1
    if together == 1:
        return lanes, unroll
    together = min(together, processor.lanes(1) // lanes)
    vectors = -(-columns // lanes)
    computed = -(-vectors // together) * together
    most, of = _MOST_COMPUTED
    if vectors <= _VECTORS_OF_SHORT_ROW and computed * of > vectors * most:
        together = 1
    while is_streamed and columns % lanes == 0 and columns % (together * lanes):
        together //= 2
    if together == 1 and processor.vector_registers > _FEW_REGISTERS:
        return lanes, unroll
    return together * lanes, 1


def _together_in_many_registers(facts: PointwiseFacts | ReductionFacts) -> int:
    """How many vectors are computed together where registers keep all constants."""
    is_long = unroll_factor(facts.work) == 1
    if isinstance(facts, ReductionFacts) and facts.functions == 1 and _is_half(facts):
        is_long = facts.work > _WORK_OF_PASSES
    if not is_long and not (isinstance(facts, PointwiseFacts) and _has_wide_functions(facts)):
        return 1
    return _VECTORS_TOGETHER if facts.work <= _VERY_MUCH_WORK else _VECTORS_TOGETHER // 2


def _is_half(facts: ReductionFacts) -> bool:
    """True if only half-precision tensors are moved in vectors."""
    return 0 < facts.vector < LEAST_MASKED_BYTES


def _has_wide_functions(facts: PointwiseFacts) -> bool:
    """True if there are functions, and no half-precision tensors, which are computed in pairs."""
    return facts.functions > 0 and facts.narrowest >= LEAST_MASKED_BYTES


def reduction(
    processor: Processor, facts: ReductionFacts, sizes: Mapping[str, int]
) -> ReductionParameters:
    """Several tasks for every core; the results of an outer reduction take half of L1."""
    kept, reduced = evaluate(facts.kept, sizes), evaluate(facts.reduced, sizes)
    lanes = processor.lanes(facts.bytes)
    parts = 2 * processor.cores  # more parts make more partial results, with no gain measured
    prefetch = _prefetch(processor, facts.touched, sizes)
    enough_work = kept * reduced >= _ELEMENTS_FOR_TASKS
    across = reduction_in_row_lanes(processor, facts, sizes)
    if across is not None:
        return across
    if facts.inner:
        few = kept < 2 * processor.cores
        inner = evaluate(facts.chain[-1], sizes)
        unroll = inner_unroll(inner, lanes, 8)
        if len(facts.chain) > 1:
            unroll = row_unroll(inner, lanes, unroll)
        lanes, unroll = _step(processor, facts, inner, lanes, unroll)
        enough_work = enough_work or kept * reduced * facts.work >= _WORK_FOR_TASKS
        parts = parts if few and enough_work else 1
        outermost = parts > 1 and len(facts.chain) > 1 and evaluate(facts.chain[0], sizes) >= parts
        step = lanes * unroll
        cascade = (
            chain_levels(facts.chain, sizes, step, parts)
            if outermost
            else chain_levels(facts.chain, sizes, step * parts)
        )
        block = rows_of_reduction(processor, facts, sizes) if parts == 1 else 0
        return ReductionParameters(
            *(True, lanes, unroll, block, parts, prefetch, cascade), outermost=outermost
        )
    columns = evaluate(facts.range, sizes)
    if reduced <= _ROWS_IN_REGISTERS and columns <= _COLUMNS_IN_REGISTERS * lanes:
        return replace(reduction_across(lanes), prefetch=prefetch)
    # A power of two of columns whose results take at most half of the L1 cache: all columns, if
    # possible.  Measured on a Zen 5: 1.0 to 1.2 times the speed of at most 2048 columns.  Reads
    # fetch ahead only if what follows in memory isn't another block's.  Measured on a Zen 4, rows
    # of 1 KB: 1.1 to 1.9 times the speed out of cache.  The results of a few rows are read again
    # almost at once, so that blocks are smaller where one doesn't have all columns: sums of 2 to 8
    # rows of 16384 in 0.75 to 0.95 of the time on a Zen 4, in cache and out of it.
    most = min(processor.l1_bytes // 2 // (facts.bytes * facts.count), 4096)
    if columns > most and reduced <= _FEW_ROWS:
        most = min(most, _COLUMNS_OF_FEW_ROWS)
    wide, _ = _step(processor, facts, columns, lanes, 1)
    lanes, unroll = wide, _rows_of_step(facts.chain[-1], sizes, _ROWS_OF_STEP * lanes // wide)
    block = lanes
    while block * 2 <= most and block < columns:
        block *= 2
    few = blocks(kept, columns, block) < 2 * processor.cores
    parts = parts if few and enough_work else 1
    while parts == 1 and _leaves_idle(processor, facts, (kept, reduced, columns), block, lanes):
        block //= 2
    cascade = chain_levels(facts.chain, sizes, unroll * parts)
    prefetch = prefetch if block >= columns else 0
    return ReductionParameters(False, lanes, unroll, block, parts, prefetch, cascade)


def _leaves_idle(
    processor: Processor, facts: ReductionFacts, sizes: tuple[int, int, int], block: int, lanes: int
) -> bool:
    """True for fewer blocks of columns than workers, each of which has work for two.

    `sizes` are how many elements are kept and reduced, and the columns.
    """
    kept, reduced, columns = sizes
    if block <= lanes or blocks(kept, columns, block) >= processor.cores:
        return False
    return block // 2 * reduced * facts.work >= _BLOCK_WORK


def _rows_of_step(rows: IntExpr, sizes: Mapping[str, int], most: int) -> int:
    """Rows of a column that a step adds: all of them if they are fewer, so that none is tested.

    Measured on a Zen 5: two rows of 256 that an index chooses, times a weight each, in 124 instead
    of 188 us, bfloat16 114 instead of 188.
    """
    if rows.is_constant:
        return min(max(rows.value, 1), most)
    while most > 1 and most > evaluate(rows, sizes):
        most //= 2
    return most


def blocks(kept: int, columns: int, block: int) -> int:
    """How many blocks of columns an outer reduction has; none goes beyond a range in memory."""
    return kept // max(columns, 1) * -(-columns // block)


def inner_persistent(
    processor: Processor, facts: ReductionFacts, sizes: Mapping[str, int]
) -> ReductionParameters:
    """Full vectors along the rows, or a lane for each row if they are short."""
    across = persistent_in_row_lanes(processor, facts, sizes)
    if across is not None:
        return across
    along = persistent_along(processor, facts, sizes)
    is_in_cache = _prefetch(processor, facts.touched, sizes) == 0
    return replace(along, block=rows_of_task(processor, facts, sizes, is_in_cache))


def persistent_along(
    processor: Processor, facts: ReductionFacts, sizes: Mapping[str, int]
) -> ReductionParameters:
    """Full vectors; at least two accumulators for long rows, to hide the adds' latency."""
    lanes = processor.lanes(facts.bytes)
    is_streamed = _prefetch(processor, facts.touched, sizes) > 0

    def along(length: IntExpr, chain: tuple[IntExpr, ...], most: int) -> ReductionParameters:
        elements = evaluate(length, sizes)
        unroll = row_unroll(elements, lanes, inner_unroll(elements, lanes, most))
        wide, unroll = _step(processor, facts, elements, lanes, unroll, is_streamed)
        cascade = chain_levels(chain, sizes, wide * unroll)
        return ReductionParameters(True, wide, unroll, 0, 1, cascade=cascade)

    own = along(facts.range, facts.chain, max(2, unroll_factor(facts.work)))
    if len(facts.chain) == 1:
        return own
    return replace(own, whole=along(facts.reduced, (facts.reduced,), _SUM_VECTORS))


def outer_persistent(
    processor: Processor, facts: ReductionFacts, sizes: Mapping[str, int]
) -> ReductionParameters:
    """Four vectors of columns, if there are as many: enough lines in flight, few enough for
    registers.

    Measured on a Zen 5: softmax of 64 x 200 x 32 along 200 in 180 instead of 334 us, one thread.
    """
    lanes, columns = processor.lanes(facts.bytes), evaluate(facts.range, sizes)
    is_streamed = _prefetch(processor, facts.touched, sizes) > 0
    wide, _ = _step(processor, facts, columns, lanes, 1, is_streamed)
    cascade = chain_levels(facts.chain, sizes, 1)
    block = _COLUMN_VECTORS * lanes
    while block // 2 >= max(columns, wide):  # vectors past the last column
        block //= 2
    return ReductionParameters(False, wide, block // wide, block, 1, cascade=cascade)


def inner_outer_persistent(
    processor: Processor, facts: InnerOuterFacts, sizes: Mapping[str, int]
) -> InnerOuterParameters:
    """A few tasks for every core, each with enough rows to pay for its sums of columns."""
    rows = persistent_along(processor, facts.rows, sizes)
    kept, reduced = evaluate(facts.rows.kept, sizes), evaluate(facts.rows.reduced, sizes)
    tasks = 1
    while tasks < 4 * processor.cores and kept >= 16 * tasks:
        tasks *= 2
    tasks = tasks if kept * reduced >= _ELEMENTS_FOR_TASKS else 1
    return InnerOuterParameters(replace(rows, parts=tasks), levels([-(-kept // tasks)]))


def greedy(processor: Processor, facts: ScanFacts, sizes: Mapping[str, int]) -> ScanParameters:
    """Rows by whole vectors; as many columns as have their running results in half of L1.

    Measured: for rows of 4, vectors of 4 are several times as fast as parts of wider ones.
    """
    length, columns = evaluate(facts.length, sizes), evaluate(facts.columns, sizes)
    lanes = processor.lanes(facts.bytes)
    while lanes > 2 and lanes // 2 >= (length if facts.inner else columns):
        lanes //= 2
    prefetch = _prefetch(processor, facts.touched, sizes)
    if facts.inner:
        unroll = inner_unroll(length, lanes, unroll_factor(facts.work))
        return ScanParameters(True, lanes, unroll, 0, prefetch)
    rows = evaluate(facts.rows, sizes)
    most = min(processor.l1_bytes // 2 // facts.running, columns, 2048)
    block, unroll = lanes, inner_unroll(columns, lanes, unroll_factor(facts.work))
    while block * 2 <= most and rows * columns > 2 * block * processor.cores:
        block *= 2
    return ScanParameters(False, lanes, unroll, block, prefetch)


def scatter(
    processor: Processor, facts: ScatterFacts, sizes: Mapping[str, int]
) -> ScatterParameters:
    """Vectors of columns; each task takes all values of its columns, in order."""
    prefetch = _prefetch(processor, facts.touched, sizes)
    if facts.columns is None:
        return ScatterParameters(1, 4, 1, prefetch=prefetch)
    rows, columns = evaluate(facts.rows, sizes), evaluate(facts.columns, sizes)
    lanes = processor.lanes(facts.bytes)
    while lanes > 2 and lanes // 2 >= columns:
        lanes //= 2
    unroll = inner_unroll(columns, lanes, unroll_factor(facts.work))
    # Each task reads all indices, so there are no more tasks than cores unless rows make them.
    # Blocks are powers of two or three times one: two cores share 768 columns evenly.
    block = lanes
    while block < columns and rows * columns > block * processor.cores:
        between = 3 * block // 2
        is_enough = columns <= between or rows * columns <= between * processor.cores
        block = between if is_enough and between % lanes == 0 else 2 * block
    return ScatterParameters(lanes, min(unroll, block // lanes), block, prefetch=prefetch)


def _prefetch(processor: Processor, touched: IntExpr, sizes: Mapping[str, int]) -> int:
    """How far ahead to fetch: not at all if the last cache holds all data."""
    return PREFETCH_BYTES if evaluate(touched, sizes) > processor.l3_bytes else 0
