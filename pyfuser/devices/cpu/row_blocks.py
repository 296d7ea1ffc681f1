"""Blocks of rows: when a task reduces as many short rows as a vector has lanes.

What follows from a row's results, such as a logarithm or a reciprocal square root, is a chain of
operations on one number, and the next pass over the row waits for it.  A block's rows are reduced
one after the other, what follows is computed for all of them in one vector, and then their next
pass begins (schedule/reduction.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from ...ir.scalar_queries import evaluate
from ...ir.scalars import ONE
from ...target.parameters import ReductionFacts
from .processor import Processor

# Measured on a Zen 5, in cache and out of it, against rows one by one.  Rows of up to 512 bytes:
# log-softmax 1.2 to 1.9 times as fast, its sum with a softmax 1.4 to 2.4, log-sum-exp 1.3 to 2.1,
# bfloat16 norms and softmax 1.1 to 2.3.  float32 norms and softmax 0.9 to 1.4, of rows with an end
# in a vector 0.8 to 1.  Rows of 1 KB in cache: log-softmax 1.1, log-sum-exp 1.2, bfloat16 norms 1.3
# to 1.7; out of cache 0.8 to 1.1.  bfloat16 of 2 KB: 1.0 to 1.4 in a quarter of the cache, 0.8 to
# 1 out of it.  With one reduction and nothing but a root, float32 in the L2 cache: 0.9 to 1.
_SHORT_BYTES = 512
_BYTES_IN_CACHE = 1024
_BYTES_OF_HALF = 2048
_LEAST_VECTORS = 2
_LEAST_BLOCKS = 2


def rows_of_task(
    processor: Processor, facts: ReductionFacts, sizes: Mapping[str, int], is_in_cache: bool
) -> int:
    """The rows of a persistent kernel's task whose results are computed together, or 0.

    What isn't asked of the sizes isn't a condition for the kernel on others.
    """
    lanes = processor.lanes(facts.bytes)
    if not _has_blocks(facts, sizes, lanes):
        return 0
    columns = evaluate(facts.reduced, sizes)
    row = columns * (facts.vector or facts.bytes)
    if 0 < facts.vector < 4 or facts.following:
        if not is_in_cache:
            return lanes if row <= _SHORT_BYTES else 0
        if row <= _BYTES_IN_CACHE or facts.vector >= 4:
            return lanes if row <= _BYTES_IN_CACHE else 0
        is_small = 4 * evaluate(facts.touched, sizes) <= processor.l3_bytes
        return lanes if row <= _BYTES_OF_HALF and is_small else 0
    if row > _SHORT_BYTES or columns % lanes or columns < _LEAST_VECTORS * lanes:
        return 0
    is_worth_it = facts.count > 1 or evaluate(facts.touched, sizes) > processor.l2_bytes
    return lanes if is_worth_it else 0


def rows_of_reduction(processor: Processor, facts: ReductionFacts, sizes: Mapping[str, int]) -> int:
    """The rows of a task of other reductions, or 0: only functions of results are worth it.

    Measured on a Zen 5: log of a sum of exp, rows of 64 to 256 elements, 1.2 to 1.6 times as fast;
    sums, means and maxima 0.9 to 1.1.
    """
    lanes = processor.lanes(facts.bytes)
    if not facts.following or not _has_blocks(facts, sizes, lanes):
        return 0
    size = evaluate(facts.reduced, sizes) * (facts.vector or facts.bytes)
    return lanes if size <= _BYTES_IN_CACHE else 0


def may_have_blocks(facts: ReductionFacts) -> bool:
    """True for several rows, each of one range in memory."""
    return len(facts.chain) == 1 and facts.across is not ONE


def _has_blocks(facts: ReductionFacts, sizes: Mapping[str, int], lanes: int) -> bool:
    """True if there are several blocks of such rows."""
    return may_have_blocks(facts) and evaluate(facts.kept, sizes) >= _LEAST_BLOCKS * lanes
