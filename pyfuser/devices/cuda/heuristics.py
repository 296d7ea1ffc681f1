"""The schedulers' parameters for an NVIDIA GPU: a block's threads side by side in memory.

Not measured on a GPU yet: the results are correct and compile for every architecture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from ...ir.scalar_queries import evaluate
from ...target.cascade import Levels, chain_levels
from ...target.parameters import (
    InnerOuterFacts,
    InnerOuterParameters,
    PointwiseFacts,
    PointwiseParameters,
    ReductionFacts,
    ReductionParameters,
)
from ...target.thread_parameters import ThreadedPointwise
from ...target.unrolling import inner_unroll, unroll_factor

if TYPE_CHECKING:
    from .target import CudaTarget

_WARP = 32
# Rows or columns below which most threads of a tile have nothing to do; transposed inputs are then
# read element by element, and the caches keep the rest of their sectors.
_WORTH_A_TILE = 16
# A tile's row is a warp's width and one element: the elements of a column are in 32 banks if they
# have 4 bytes, and if they are smaller or larger, the requests are as few as possible too.
_PADDING = 1
# What one instruction of a thread moves at most.
_VECTOR_BYTES = 16
# Vectors of a thread that are read before it computes: 128 threads have 8 KiB under way, and a
# multiprocessor with four such blocks as much as the latency of memory times its bandwidth.
_VECTORS = 4
# Elements below which a reduction takes about as long as a second launch.
_WORTH_A_LAUNCH = 64 << 10
# Unrolled steps of rows that a block of columns adds at least, before it writes partial results.
_ROWS = 4


def pointwise(
    target: CudaTarget, facts: PointwiseFacts, sizes: Mapping[str, int]
) -> PointwiseParameters:
    """A block's threads are adjacent in memory, with a few elements each so that reads overlap."""
    rows, columns = evaluate(facts.rows, sizes), evaluate(facts.columns, sizes)
    threads = target.threads
    if facts.transposed_range is not None and columns >= _WORTH_A_TILE:
        size = evaluate(facts.transposed_range, sizes)
        if size >= _WORTH_A_TILE:
            lines = threads // _WARP
            return ThreadedPointwise(
                _WARP, _WARP // lines, _WARP, _WARP, lines=lines, padding=_PADDING
            )
    vector = max(_VECTOR_BYTES // facts.vector, 1) if facts.vector else 1
    while vector > 1 and rows != 1 and columns % vector:
        vector //= 2
    lanes = threads
    while lanes > 1 and rows != 1 and columns <= lanes // 2 * vector:
        lanes //= 2
    # Reads of a thread that are under way together hide the memory's latency, if there are enough
    # threads for all multiprocessors anyway.
    unroll = min(unroll_factor(facts.work), max(_VECTORS // max(facts.inputs, 1), 1))
    while unroll > 1 and rows * columns < target.multiprocessors * threads * vector * unroll:
        unroll //= 2
    while unroll > 1 and rows != 1 and rows < threads // lanes * unroll:
        unroll //= 2
    return ThreadedPointwise(lanes, unroll, 0, lines=threads // lanes, vector=vector)


def reduction(
    target: CudaTarget, facts: ReductionFacts, sizes: Mapping[str, int]
) -> ReductionParameters:
    """One row or several columns per block; few rows are split over several blocks."""
    kept, reduced = evaluate(facts.kept, sizes), evaluate(facts.reduced, sizes)
    threads = target.threads
    if facts.inner:
        unroll = inner_unroll(reduced, threads, 8)
        parts = _parts(target, kept, reduced, threads * unroll, kept * reduced)
        cascade = chain_levels(facts.chain, sizes, threads * unroll * parts)
        return ReductionParameters(True, threads, unroll, 0, parts, cascade=cascade)
    # A thread has one column, so its sum stays in a register.
    parts = _parts(target, -(-kept // threads), reduced, 4 * _ROWS, kept * reduced)
    cascade = chain_levels(facts.chain, sizes, 4 * parts)
    return ReductionParameters(False, threads, 4, threads, parts, cascade=cascade)


def _parts(target: CudaTarget, blocks: int, reduced: int, step: int, elements: int) -> int:
    """Into how many parts each block's chain is cut, so that there are two blocks for each
    multiprocessor: a power of two, and no part has less than two steps.

    One, if there is less to do than a second launch costs.
    """
    parts = 1
    if elements < _WORTH_A_LAUNCH:
        return parts
    while blocks * parts < 2 * target.multiprocessors and reduced >= 4 * parts * step:
        parts *= 2
    return parts


def inner_persistent(
    target: CudaTarget, facts: ReductionFacts, sizes: Mapping[str, int]
) -> ReductionParameters:
    """One row per block."""
    most = max(2, unroll_factor(facts.work))
    unroll = inner_unroll(evaluate(facts.reduced, sizes), target.threads, most)
    step = target.threads * unroll
    cascade = chain_levels(facts.chain, sizes, step)
    keeps = _has_room(target, facts, sizes, cascade, step, 1)
    return ReductionParameters(True, target.threads, unroll, 0, 1, cascade=cascade, keeps=keeps)


def outer_persistent(
    target: CudaTarget, facts: ReductionFacts, sizes: Mapping[str, int]
) -> ReductionParameters:
    """A column per thread; narrower blocks if there would be too few."""
    kept = evaluate(facts.kept, sizes)
    threads = target.threads
    while threads > _WARP and kept < target.multiprocessors * threads:
        threads //= 2
    cascade = chain_levels(facts.chain, sizes, 1)
    keeps = _has_room(target, facts, sizes, cascade, 1, threads)
    return ReductionParameters(False, threads, 1, threads, 1, cascade=cascade, keeps=keeps)


def inner_outer_persistent(
    target: CudaTarget, facts: InnerOuterFacts, sizes: Mapping[str, int]
) -> InnerOuterParameters:
    """Two blocks for each multiprocessor, which process many rows each.

    A block's sums of columns are in scratch memory, in the L2 cache: an array for each of them, cut
    into blocks of rows, would take the shared memory that the rows need.
    """
    rows = inner_persistent(target, facts.rows, sizes)
    kept, tasks = evaluate(facts.rows.kept, sizes), 1
    while tasks < 2 * target.multiprocessors and kept >= 4 * tasks:
        tasks *= 2
    return InnerOuterParameters(replace(rows, parts=tasks), ())


def _has_room(
    target: CudaTarget,
    facts: ReductionFacts,
    sizes: Mapping[str, int],
    cascade: Levels,
    step: int,
    rows: int,
) -> bool:
    """True if a block has shared memory for two computed tensors of its rows, as its loops pad
    them: the innermost axis to whole steps, and an axis that the cascade cuts to whole blocks.
    """
    extents = [evaluate(extent, sizes) for extent in facts.chain]
    extents[-1] = -(-extents[-1] // step)
    for axis, block in cascade:
        extents[axis] = -(-extents[axis] // max(block, 1)) * max(block, 1)
    elements = prod(extents) * step * rows
    return 2 * elements * max(facts.bytes, 4) <= target.limits.shared_bytes
