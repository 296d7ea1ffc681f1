"""The parameters of scans and scatters for an NVIDIA GPU: a block scans a row, or a thread scans a
column; threads scatter values concurrently, or a thread scatters all values of a column in order.

Not measured on a GPU yet: the results are correct and compile for every architecture.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...ir.scalar_queries import evaluate
from ...target.parameters import ScanFacts, ScanParameters, ScatterFacts, ScatterParameters

if TYPE_CHECKING:
    from .target import CudaTarget

_WARP = 32
# Threads that scan a row together: each step of a block takes two barriers, whatever its width.
_MOST_THREADS = 256
# Bytes of the narrowest element that threads can combine values with.
_NARROWEST_ATOMIC = 2
# Values of a thread that go to one place of a row each.
_MOST_VALUES = 4


def greedy(target: CudaTarget, facts: ScanFacts, sizes: Mapping[str, int]) -> ScanParameters:
    """One row per block; or a column per thread, in narrower blocks if there would be too few."""
    if facts.inner:
        length, threads = evaluate(facts.length, sizes), _WARP
        while threads < _MOST_THREADS and threads < length:
            threads *= 2
        return ScanParameters(True, threads, 1, 0)
    columns = evaluate(facts.rows, sizes) * evaluate(facts.columns, sizes)
    threads = target.threads
    while threads > _WARP and columns < target.multiprocessors * threads:
        threads //= 2
    return ScanParameters(False, threads, 1, threads)


def scatter(target: CudaTarget, facts: ScatterFacts, sizes: Mapping[str, int]) -> ScatterParameters:
    """Any thread writes any value, unless the order is needed or there is no atomic operation."""
    is_narrow = facts.combined is not None and facts.combined < _NARROWEST_ATOMIC
    if not target.is_deterministic and not is_narrow:
        return _shared(target, facts, sizes)
    rows, columns = evaluate(facts.rows, sizes), 1
    if facts.columns is not None:
        columns = evaluate(facts.columns, sizes)
    threads = target.threads
    while threads > _WARP and rows * columns < target.multiprocessors * threads:
        threads //= 2
    return ScatterParameters(threads, 1, threads)


def _shared(target: CudaTarget, facts: ScatterFacts, sizes: Mapping[str, int]) -> ScatterParameters:
    """Blocks of rows that are long enough: a thread then finds its row without a division, and
    reads the index of several values once.
    """
    threads = target.threads
    columns = 1 if facts.columns is None else evaluate(facts.columns, sizes)
    rows = evaluate(facts.rows, sizes) * evaluate(facts.length, sizes)
    if columns < threads:
        return ScatterParameters(1, 1, threads, is_concurrent=True)
    unroll = _MOST_VALUES
    while unroll > 1 and (
        columns < threads * unroll or rows * columns < target.multiprocessors * threads * unroll
    ):
        unroll //= 2
    return ScatterParameters(1, unroll, threads, is_concurrent=True, has_rows=True)
