"""Where a sum's chain of additions is cut: a decision about rounding, the same for all targets.

Adding n numbers one after the other rounds n times.  In a sum of block sums, a number is rounded
once per addition in its block and once per block. schedule/cascade.py makes the loops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from ..ir.scalar_queries import evaluate
from ..ir.scalars import IntExpr

# For each level, innermost first: the loop at which it ends, counted from the outermost of the
# chain, and how many iterations of that loop make a block; 0: the block is just all loops inside.
Levels = tuple[tuple[int, int], ...]

# A chain of up to this many additions stays whole: its rounding error is below the error of the
# data. A longer chain has at least two blocks.
LONGEST_CHAIN = 63
# The least number of additions in a block.  A block costs one addition and, for columns, a pass
# over the accumulators in the L1 cache: with 16 instead of 32, sums of columns were 5 % slower.
BLOCK = 32


def levels(extents: Sequence[int]) -> Levels:
    """Where to cut the chain along loops of these extents, outermost first.

    Blocks are powers of two, so there are few kinds and many sizes share a kernel.
    """
    left = [max(extent, 1) for extent in extents]
    found: list[tuple[int, int]] = []
    while prod(left) > LONGEST_CHAIN:
        axis, inner = len(left) - 1, 1
        while inner * left[axis] < 2 * BLOCK:
            inner *= left[axis]
            axis -= 1
        block = 1
        while block * inner < BLOCK:
            block *= 2
        found.append((axis, block if block > 1 else 0))
        left = [*left[:axis], -(-left[axis] // block)]
    return tuple(found)


def chain_levels(
    chain: Sequence[IntExpr], sizes: Mapping[str, int], step: int, parts: int = 1
) -> Levels:
    """Where to cut a chain that processes `step` elements of its innermost loop at once.

    It is one of so many `parts` of the outermost loop.
    """
    extents = [evaluate(extent, sizes) for extent in chain]
    extents[-1] = -(-extents[-1] // step)
    extents[0] = -(-extents[0] // parts)
    return levels(extents)
