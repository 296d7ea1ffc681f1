"""The parameters of reductions and normalisations for an NVIDIA GPU: rows of a block or of several,
columns of a warp's width.

Measured on an H200 (docs/cuda.md); constants whose comments don't say so were computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import isqrt, prod
from typing import TYPE_CHECKING

from ...ir.scalar_queries import evaluate
from ...ir.scalars import IntExpr, as_expr, ceil_div
from ...target.cascade import Levels, chain_levels
from ...target.parameters import (
    InnerOuterFacts,
    InnerOuterParameters,
    ReductionFacts,
    ReductionParameters,
)
from ...target.thread_parameters import WARP, ThreadedReduction
from ...target.unrolling import inner_unroll
from .vector_widths import VECTOR_BYTES, VECTORS, WORD_BYTES, aligned

if TYPE_CHECKING:
    from .target import CudaTarget

# Registers of a thread that hold its part of one tensor's row, for blocks of up to so many threads:
# of two tensors, they leave enough for the rest, so that nothing is spilled.  A multiprocessor has
# 65,536 registers, so a thread of a block of 512 may have 128 (and 255 at most), of 1024 64.
_ROW_REGISTERS = ((512, 32), (1024, 16))
# Of more tensors than this, 16 elements each leave a thread of 512 too few of its 128 registers; 32
# elements leave one of 256 enough of its 255.
_MOST_TENSORS, _CROWDED_THREADS, _CROWDED_EACH = 5, 256, 32
# Threads of a block that has a second one beside it, so that each has 128 registers.  Rows of 16
# elements a thread and their sums take a few more, if they get them; with 128, nothing is spilled,
# and layer norm's backward of 4096 floats takes 207 us instead of 266 on an H200.
_SMALL_BLOCK = 256
# Registers for a thread's part of a row, of its weights and of the sums of columns, for which 128
# leave enough for the rest: four blocks of 128 threads each have as many (layer norm's backward of
# 64 and 512 bfloat16: 131 us instead of 170, 123 instead of 161; 512 floats need 80, and 371 us
# instead of 219).
_REGISTERS_OF_A_ROW = 64
# Threads of a block whose row of several axes is in shared memory, with no room for a second block.
# If it has one axis, as many as a block may have (softmax of 65,536 floats: 274 us instead of 388).
_LONG_ROW_THREADS = 512
# Elements of a row that a thread has at least, if there are as many: what the threads of a block do
# to combine theirs, and to wait for each other, is for all of them.
_EACH_OF_A_ROW = 16
# The same, if there are fewer rows than multiprocessors and few reads of a thread under way.
_EACH_IF_ALONE = 12
# Threads of a multiprocessor that are enough if each has several reads under way.
_BUSY_THREADS = 256
# Threads of a multiprocessor that are as good as all that it can have.
_FULL_THREADS = 1024
# Shared memory for each thread's part of a block reduction: a mean, a sum of squares, a count.
_SCRATCH_BYTES = 24
# Steps of a block for which its work is split over the grid.  The last block to arrive waits for
# the counter, after a fence, and for the partial results: two round trips to the second cache, 0.6
# us each, instead of the 4 us of another launch.  A block alone on its multiprocessor waits in each
# step for as long as memory takes to answer, 0.7 us, twice that if it reads where an index points.
_WORTH_SPLITTING = 8
# Elements of a block of columns for which the same is true.
_COLUMNS_WORTH_SPLITTING = 32 << 10
# Rows of a column that a thread reads before it adds them.
_ROWS = 8
# Blocks are distributed well enough if multiprocessors are busy for this share of the time.
_EQUAL_SHARES = 0.9
# Rows that a block of columns adds at least, before it writes partial results: these are written
# and read once each, so they are 3 % of the rows.
_LEAST_ROWS = 64
SECTOR_BYTES = 32  # the least that memory transfers


def reduction(
    target: CudaTarget, facts: ReductionFacts, sizes: Mapping[str, int]
) -> ReductionParameters:
    """Short rows, several for a block, or one row per block; few rows are split over the grid."""
    kept = evaluate(facts.kept, sizes)
    if facts.inner:
        long = _long_rows(target, facts, sizes)
        is_split = kept < target.multiprocessors and long.parts > 1
        return long if is_split else _short_rows(target, facts, sizes) or long
    return _columns(target, facts, sizes)


def _columns(
    target: CudaTarget, facts: ReductionFacts, sizes: Mapping[str, int]
) -> ThreadedReduction:
    """A warp's width of columns per block, of vectors if there is enough for all multiprocessors;
    few columns are split over several blocks.
    """
    kept, reduced = evaluate(facts.kept, sizes), evaluate(facts.reduced, sizes)
    threads = 2 * target.threads
    vector = _vector(facts, sizes)
    while vector > 1 and kept * reduced < target.multiprocessors * _LEAST_ROWS * WARP * vector:
        vector //= 2
    lanes = _lanes(kept, vector)
    lines, unroll = threads // lanes, _ROWS
    blocks = -(-kept // (lanes * vector))
    if len(facts.chain) == 1 and reduced <= lines * unroll:
        return ThreadedReduction(
            False, lanes, unroll, 0, 1, lines=lines, vector=vector, is_whole=True
        )
    step = lines * unroll
    parts = 1
    if reduced * lanes * vector >= _COLUMNS_WORTH_SPLITTING:
        least = max(_LEAST_ROWS, step)
        # The last block reads no more partial results than each block has read rows.
        most = min(reduced // least, isqrt(reduced))
        parts = _balanced_parts(target, blocks, most)
    cascade = chain_levels(facts.chain, sizes, step * parts)
    return ThreadedReduction(
        False, lanes, unroll, 0, parts, cascade=cascade, lines=lines, vector=vector
    )


def _balanced_parts(target: CudaTarget, blocks: int, most: int) -> int:
    """Into how many parts each block is cut: a power of two, so that there are two blocks for each
    multiprocessor, or up to six if these are then more equally distributed.

    How equally is a question of this call's size; a plan is used for others that are as large.
    """
    best, best_share, parts = 1, 0.0, 1
    while parts <= most and blocks * parts <= 6 * target.multiprocessors:
        number = int(blocks * parts)
        rounds = -(-number // target.multiprocessors)
        share = min(number / (max(rounds, 2) * target.multiprocessors), _EQUAL_SHARES)
        if share > best_share:
            best, best_share = parts, share
        parts *= 2
    return best


def _lanes(columns: int, vector: int) -> int:
    """Threads side by side along columns: a warp, or less if there are fewer columns."""
    lanes = WARP
    while lanes > 1 and columns <= lanes // 2 * vector:
        lanes //= 2
    return lanes


def _vector(facts: ReductionFacts, sizes: Mapping[str, int]) -> int:
    """Elements of the innermost range that a thread moves at once; rows begin with a vector."""
    vector = max(VECTOR_BYTES // facts.vector, 1) if facts.vector else 1
    columns = evaluate(facts.range, sizes)
    while vector > 1 and columns % vector:
        vector //= 2
    return aligned(vector, facts.steps, sizes)


def _each(facts: ReductionFacts, threads: int, vector: int) -> int:
    """How many elements of a tensor's row, in whole vectors, a thread of a block has in registers;
    half as many if an element of all that has to be kept, weights among it, takes more than two.
    """
    registers = next(most for threads_, most in _ROW_REGISTERS if threads <= threads_)
    inputs, computed = facts.rows
    bytes_of_all = (inputs + facts.weights) * (facts.vector or 4) + 4 * computed
    if _is_crowded(facts) and threads >= _CROWDED_THREADS:
        registers = 2 * _CROWDED_EACH if threads == _CROWDED_THREADS else registers // 2
    elements = 4 * registers // max(facts.bytes, 4) // (1 if bytes_of_all <= 8 else 2)
    return elements // vector * vector


def _is_crowded(facts: ReductionFacts) -> bool:
    """True if a thread has so many tensors in registers that long rows need special care."""
    return sum(facts.rows) + facts.weights > _MOST_TENSORS


def _short_rows(
    target: CudaTarget, facts: ReductionFacts, sizes: Mapping[str, int]
) -> ThreadedReduction | None:
    """Rows that fit into the registers of their threads; None if they don't.  As few threads as
    possible process a row, so that they have several reads under way and little to combine, but
    there are enough threads for all multiprocessors.

    Each block has one row of a thread's line.  Weights are read again for each row, from a cache:
    to keep them for several rows takes longer (141 us instead of 128 for a layer norm of 4096
    floats on an H200), because nothing is read while a row is computed.
    """
    if len(facts.chain) > 1:
        return None
    kept, reduced = evaluate(facts.kept, sizes), evaluate(facts.reduced, sizes)
    vector = _vector(facts, sizes)
    lanes, longest = WARP, _ROW_REGISTERS[-1][0]
    while lanes <= longest and reduced > lanes * _each(facts, lanes, vector):
        lanes *= 2
    if lanes > longest:
        return None
    busy = target.multiprocessors * _BUSY_THREADS
    while lanes < _LONG_ROW_THREADS and kept * lanes < busy and reduced > lanes * vector:
        lanes *= 2
    full = target.multiprocessors * _FULL_THREADS
    while lanes > 1 and (
        reduced <= lanes // 2 * vector
        or (reduced <= lanes * vector and kept * (lanes // 2) >= full)
    ):
        lanes //= 2
    lines = max(target.threads // lanes, 1)
    while lines > 1 and lanes * lines > WARP and kept < lines * target.multiprocessors:
        lines //= 2
    unroll = 1
    while reduced > unroll * lanes * vector:
        unroll += 1
    each = unroll * vector
    return ThreadedReduction(
        True,
        lanes,
        unroll,
        0,
        1,
        lines=lines,
        vector=vector,
        is_whole=True,
        is_full=reduced == lanes * each,
        together=_is_together(target, facts, sizes),
    )


def _is_together(target: CudaTarget, facts: ReductionFacts, sizes: Mapping[str, int]) -> bool:
    """True if an input that rows of other axes read again, as the heads of an attention do their
    mask, doesn't stay in the second cache until the next of them: half of it, because the rows'
    own elements pass through it too.
    """
    return 2 * evaluate(facts.repeated, sizes) > target.l2_bytes


def _long_rows(
    target: CudaTarget, facts: ReductionFacts, sizes: Mapping[str, int]
) -> ThreadedReduction:
    """A block for a row, or for a part of it: of its outermost axis, if it has several."""
    kept, reduced = evaluate(facts.kept, sizes), evaluate(facts.reduced, sizes)
    vector = _vector(facts, sizes)
    inner = evaluate(facts.chain[-1], sizes)
    lanes, lines = _lanes_and_lines(facts, sizes, target.threads, vector)
    unroll = inner_unroll(inner, lanes * vector, VECTORS)
    if lines > 1:
        unroll = _unrolled_lines(facts, sizes, lines, max(VECTORS // vector, 1))
    chain, step = _chain(facts, lanes * vector, lines, unroll)
    parts = _parts(target, kept, reduced, lanes * lines * vector * unroll, lines)
    outermost = len(chain) > 1 and evaluate(chain[0], sizes) >= parts
    while not outermost and parts > 1 and inner <= (parts // 2) * step:
        parts //= 2
    cascade = (
        chain_levels(chain, sizes, step, parts)
        if outermost
        else chain_levels(chain, sizes, step * parts)
    )
    return ThreadedReduction(
        *(True, lanes, unroll, 0, parts),
        cascade=cascade,
        lines=lines,
        vector=vector,
        outermost=outermost and parts > 1,
        together=_is_together(target, facts, sizes),
    )


def _lanes_and_lines(
    facts: ReductionFacts, sizes: Mapping[str, int], threads: int, vector: int
) -> tuple[int, int]:
    """A block's threads along the innermost axis of a row, and along the axis around it, if there
    is one and the innermost is shorter than a block.
    """
    if len(facts.chain) == 1:
        return threads, 1
    inner, around = (evaluate(facts.chain[place], sizes) for place in (-1, -2))
    lanes, lines = threads, 1
    while lanes > 1 and inner <= lanes // 2 * vector:
        lanes //= 2
    while lanes * lines < threads and lines < around:
        lines *= 2
    return lanes, lines


def _unrolled_lines(facts: ReductionFacts, sizes: Mapping[str, int], lines: int, most: int) -> int:
    """How many times its lines a block reads at once; a short axis shouldn't be all tail."""
    unroll = most
    while unroll > 1 and 2 * unroll * lines > evaluate(facts.chain[-2], sizes):
        unroll //= 2
    return unroll


def _chain(
    facts: ReductionFacts, width: int, lines: int, unroll: int
) -> tuple[tuple[IntExpr, ...], int]:
    """(the loops along a row, how much of the innermost one is processed at once); threads are so
    many elements wide.
    """
    if lines == 1:
        return facts.chain, width * unroll
    around = ceil_div(facts.chain[-2], as_expr(lines * unroll))
    return (*facts.chain[:-2], around, facts.chain[-1]), width


def _parts(target: CudaTarget, blocks: int, reduced: int, step: int, lines: int) -> int:
    """Into how many parts each block's chain is cut, so that there are two blocks for each
    multiprocessor, eight if a block reads short lines: a power of two, and no part has less than
    two steps.

    One, if the last block would wait for as long as a block works.
    """
    parts = 1
    if reduced < _WORTH_SPLITTING * step:
        return parts
    wanted = (8 if lines > 1 else 2) * target.multiprocessors
    while blocks * parts < wanted and reduced >= 4 * parts * step:
        parts *= 2
    return parts


def inner_persistent(
    target: CudaTarget, facts: ReductionFacts, sizes: Mapping[str, int]
) -> ReductionParameters:
    """Rows in registers; one row per block if they are longer."""
    whole = _short_rows(target, facts, sizes)
    if whole is not None:
        return whole
    inputs, computed = facts.rows
    lanes, lines, unroll, vector = _long_row(target, facts, sizes)
    chain, step = _chain(facts, lanes * vector, lines, unroll)
    facts = replace(facts, chain=chain)
    cascade = chain_levels(chain, sizes, step)
    each = lines * unroll if lines > 1 else 1
    room = partial(_has_room, target, facts, sizes, cascade, lanes * lines, step, each)
    copies = room(inputs + computed)
    keeps = copies or room(computed)
    return ThreadedReduction(
        *(True, lanes, unroll, 0, 1),
        cascade=cascade,
        lines=lines,
        vector=vector,
        keeps=keeps,
        copies=copies,
        together=_is_together(target, facts, sizes),
    )


def _long_row(
    target: CudaTarget, facts: ReductionFacts, sizes: Mapping[str, int]
) -> tuple[int, int, int, int]:
    """(lanes, lines, unroll, vector) of a block for a row that its registers don't hold.

    If the innermost of several axes is short, few elements of a thread are under way. Vectors help
    narrow ones, whose copies aren't asynchronous, and more threads, if they have room.
    """
    reduced, inner = evaluate(facts.reduced, sizes), evaluate(facts.chain[-1], sizes)
    threads, most, vector = _LONG_ROW_THREADS, 2 * VECTORS, 1
    if len(facts.chain) == 1:
        threads = target.limits.threads
        return threads, 1, inner_unroll(reduced, threads, most), vector
    inputs, computed = facts.rows
    row_bytes = reduced * (inputs * (facts.vector or 4) + computed * max(facts.bytes, 4))
    if 2 * row_bytes <= target.limits.shared_bytes:
        threads //= 2
    while threads > WARP and reduced <= threads // 2 * _EACH_OF_A_ROW:
        threads //= 2
    if inner < most * threads:
        vector = _vector(facts, sizes) if facts.vector < WORD_BYTES else 1
        is_alone = evaluate(facts.kept, sizes) < target.multiprocessors
        if is_alone and (vector > 1 or inner < threads):
            while threads < target.limits.threads and reduced >= 2 * threads * _EACH_IF_ALONE:
                threads *= 2
    lanes, lines = _lanes_and_lines(facts, sizes, threads, vector)
    if lines > 1:
        return lanes, lines, _unrolled_lines(facts, sizes, lines, VECTORS), vector
    unroll = inner_unroll(reduced, lanes * vector, max(most // vector, 1))
    while unroll > 1 and lanes * vector * unroll > inner:
        unroll //= 2
    return lanes, lines, unroll, vector


def outer_persistent(
    target: CudaTarget, facts: ReductionFacts, sizes: Mapping[str, int]
) -> ReductionParameters:
    """Columns in registers, of which a block has at least a sector of each row; more threads share
    a column, and a block has fewer, if it is long or if there would be too few blocks.
    """
    kept, reduced = evaluate(facts.kept, sizes), evaluate(facts.reduced, sizes)
    lanes = _lanes(kept, 1)
    least = min(lanes, SECTOR_BYTES // (facts.vector or 4))
    lines = max(target.threads // lanes, 1)
    while lanes * lines < _LONG_ROW_THREADS and reduced > lines * _each(facts, lanes * lines, 1):
        lines *= 2
    most = _each(facts, lanes * lines, 1)
    while lanes > least and (reduced > lines * most or kept < target.multiprocessors * lanes):
        lanes //= 2
        lines *= 2
    if len(facts.chain) == 1 and reduced <= lines * most:
        unroll = 1
        while reduced > lines * unroll:
            unroll += 1
        return ThreadedReduction(False, lanes, unroll, 0, 1, lines=lines, is_whole=True)
    inputs, computed = facts.rows
    step = lines * _ROWS
    cascade = chain_levels(facts.chain, sizes, step)
    room = partial(_has_room, target, facts, sizes, cascade, lanes * lines, step, lanes)
    copies = room(inputs + computed)
    keeps = copies or room(computed)
    return ThreadedReduction(
        False, lanes, _ROWS, 0, 1, cascade=cascade, lines=lines, keeps=keeps, copies=copies
    )


def inner_outer_persistent(
    target: CudaTarget, facts: InnerOuterFacts, sizes: Mapping[str, int]
) -> InnerOuterParameters:
    """Two blocks for each multiprocessor, which process many rows each.

    A block's sums of columns are in scratch memory, in the L2 cache: an array for each of them, cut
    into blocks of rows, would take the shared memory that the rows need.
    """
    # A thread's sums of columns are in its registers, as weights are.
    inputs, computed = facts.rows.rows
    kept_facts = replace(facts.rows, rows=(inputs, computed + facts.columns))
    whole = _short_rows(target, kept_facts, sizes)
    if whole is not None:
        # Conditions on the vectors of a row take the registers that weights would have.
        is_long = whole.unroll * whole.vector > _CROWDED_EACH // 2
        rereads = _is_crowded(kept_facts) and is_long and not whole.is_full
        whole = replace(whole, rereads=rereads, resident=_resident_blocks(facts, whole))
        most = evaluate(facts.rows.kept, sizes) // (4 * whole.lines)
        tasks = _balanced_parts(target, 1, most)
        # Threads that process one row after the other wait for each: more blocks hide that.
        most = min(most, whole.resident * target.multiprocessors)
        while 2 * tasks <= most:
            tasks *= 2
        return InnerOuterParameters(replace(whole, parts=tasks), ())
    unroll = inner_unroll(evaluate(facts.rows.reduced, sizes), target.threads, VECTORS)
    step = target.threads * unroll
    cascade = chain_levels(facts.rows.chain, sizes, step)
    # Inputs are copied, and kept if several passes read them.
    tensors = sum(facts.rows.rows)
    keeps = _has_room(target, facts.rows, sizes, cascade, target.threads, step, 1, tensors)
    rows = ReductionParameters(True, target.threads, unroll, 0, 1, cascade=cascade, keeps=keeps)
    kept, tasks = evaluate(facts.rows.kept, sizes), 1
    while tasks < 2 * target.multiprocessors and kept >= 4 * tasks:
        tasks *= 2
    return InnerOuterParameters(replace(rows, parts=tasks), ())


def _resident_blocks(facts: InnerOuterFacts, whole: ThreadedReduction) -> int:
    """How many blocks a multiprocessor should have registers for."""
    threads, each = whole.lanes * whole.lines, whole.unroll * whole.vector
    if threads > _SMALL_BLOCK or each > _CROWDED_EACH // 2:
        return 1
    inputs, computed = facts.rows.rows
    stored, kept = inputs + facts.rows.weights, computed + facts.columns
    registers = each * (stored * (facts.rows.vector or 4) + kept * 4) // 4
    blocks = 2 * _SMALL_BLOCK // threads
    return blocks if registers <= _REGISTERS_OF_A_ROW else min(blocks, 2)


def _has_room(
    target: CudaTarget,
    facts: ReductionFacts,
    sizes: Mapping[str, int],
    cascade: Levels,
    threads: int,
    step: int,
    rows: int,
    tensors: int,
) -> bool:
    """True if a block has shared memory for some tensors of its rows, and for the reductions of so
    many threads.  Loops pad rows: the innermost axis to whole steps, and an axis that the cascade
    cuts to whole blocks.
    """
    extents = [evaluate(extent, sizes) for extent in facts.chain]
    extents[-1] = -(-extents[-1] // step)
    for axis, block in cascade:
        extents[axis] = -(-extents[axis] // max(block, 1)) * max(block, 1)
    elements = prod(extents) * step * rows
    needed = tensors * elements * max(facts.bytes, 4) + threads * _SCRATCH_BYTES
    return needed <= target.limits.shared_bytes
