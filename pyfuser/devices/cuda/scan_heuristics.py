"""The parameters of scans for an NVIDIA GPU: a block scans a row, or a thread scans a column.

Not measured on a GPU yet: the results are correct and compile for every architecture.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...ir.scalar_queries import evaluate
from ...target.parameters import ScanFacts, ScanParameters

if TYPE_CHECKING:
    from .target import CudaTarget

_WARP = 32
# Threads that scan a row together: each step of a block takes two barriers, whatever its width.
_MOST_THREADS = 256


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
