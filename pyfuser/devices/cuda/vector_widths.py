"""What one thread moves at once, for the heuristics of all schedulers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...ir.scalar_queries import evaluate
from ...ir.scalars import IntExpr

WORD_BYTES = 4
# What one instruction of a thread moves at most.
VECTOR_BYTES = 16
# Vectors of a thread that are read before it computes: 128 threads have 8 KiB under way, and a
# multiprocessor with four such blocks as much as the latency of memory times its bandwidth.
VECTORS = 4


def aligned(vector: int, steps: Sequence[IntExpr], sizes: Mapping[str, int]) -> int:
    """Elements of a vector with which reads at computed positions begin at multiples of it: else
    its elements are read one by one, and each instruction of a warp touches all of its sectors.
    """
    for step in steps:
        number = evaluate(step, sizes)
        while vector > 1 and number % vector:
            vector //= 2
    return vector
