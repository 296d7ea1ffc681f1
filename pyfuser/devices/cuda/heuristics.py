"""The schedulers' parameters for an NVIDIA GPU: a block's threads side by side in memory.

Not measured on a GPU yet: the results are correct and compile for every architecture.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...ir.scalar_queries import evaluate
from ...target.cascade import chain_levels
from ...target.parameters import (
    PointwiseFacts,
    PointwiseParameters,
    ReductionFacts,
    ReductionParameters,
)
from ...target.unrolling import inner_unroll, unroll_factor

if TYPE_CHECKING:
    from .target import CudaTarget

# Threads that process a row together; a block processes several shorter rows.
_SHORT_ROW = 8


def pointwise(
    target: CudaTarget, facts: PointwiseFacts, sizes: Mapping[str, int]
) -> PointwiseParameters:
    """A block's threads are adjacent in memory, with a few elements each so that reads overlap."""
    rows, columns = evaluate(facts.rows, sizes), evaluate(facts.columns, sizes)
    threads = target.threads
    chunk = target.l1_bytes // facts.bytes
    unroll = unroll_factor(facts.work)
    if facts.transposed is not None and columns >= threads:
        size = evaluate(facts.transposed, sizes)
        if size >= threads:
            tile = 4 * threads if columns < 1024 and size >= 4 * threads else threads
            return PointwiseParameters(threads, 1, 64 * threads, tile)
    blocks = 4 * target.multiprocessors
    whole_rows = rows >= blocks
    if rows == 1 or (not whole_rows and columns > chunk):
        return PointwiseParameters(threads, unroll, chunk)
    grouped = False
    if facts.groups is not None and columns < _SHORT_ROW * threads:
        grouped = blocks <= evaluate(facts.groups, sizes) < rows
    return PointwiseParameters(threads, unroll, 0, rows=grouped)


def reduction(
    target: CudaTarget, facts: ReductionFacts, sizes: Mapping[str, int]
) -> ReductionParameters:
    """One row or several columns per block; few rows are split over several blocks."""
    kept, reduced = evaluate(facts.kept, sizes), evaluate(facts.reduced, sizes)
    threads, workers = target.threads, target.multiprocessors
    enough_work = kept * reduced >= 64 << 10
    if facts.inner:
        parts = 2 * workers if kept < 2 * workers and enough_work else 1
        unroll = inner_unroll(reduced, threads, 8)
        cascade = chain_levels(facts.chain, sizes, threads * unroll * parts)
        return ReductionParameters(True, threads, unroll, 0, parts, cascade=cascade)
    most = min(target.l1_bytes // 2 // (facts.bytes * facts.count), kept, 2048)
    block = threads
    while block * 2 <= most:
        block *= 2
    parts = 2 * workers if kept < 2 * workers * block and enough_work else 1
    cascade = chain_levels(facts.chain, sizes, 4 * parts)
    return ReductionParameters(False, threads, 4, block, parts, cascade=cascade)


def inner_persistent(
    target: CudaTarget, facts: ReductionFacts, sizes: Mapping[str, int]
) -> ReductionParameters:
    """One row per block."""
    most = max(2, unroll_factor(facts.work))
    unroll = inner_unroll(evaluate(facts.reduced, sizes), target.threads, most)
    cascade = chain_levels(facts.chain, sizes, target.threads * unroll)
    return ReductionParameters(True, target.threads, unroll, 0, 1, cascade=cascade)


def outer_persistent(
    target: CudaTarget, facts: ReductionFacts, sizes: Mapping[str, int]
) -> ReductionParameters:
    """Several columns per block."""
    cascade = chain_levels(facts.chain, sizes, 1)
    return ReductionParameters(False, target.threads, 4, 4 * target.threads, 1, cascade=cascade)
