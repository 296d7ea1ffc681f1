"""Where the chain of a sum's additions is cut: a decision about rounding, the same for all targets.

Adding n numbers one after the other rounds n times; the sum of blocks' sums rounds as often as a
block is long, and once a block.  schedule/cascade.py makes the loops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from ..ir.scalar_queries import evaluate
from ..ir.scalars import IntExpr

# Each level, innermost first: the loop that it ends at, counted from the outermost of the chain,
# and how many iterations of that loop belong to a block; 0: none, the block is all loops inside.
Levels = tuple[tuple[int, int], ...]

# A chain of up to this many additions stays whole: it rounds off less than the data's own error.
# At least two blocks are in a longer one.
LONGEST_CHAIN = 63
# Additions of a block, at least.  A block costs one addition, and a pass over the accumulators that
# for columns lie in the L1 cache: of 16, 5 % more of these were measured.
BLOCK = 32


def levels(extents: Sequence[int]) -> Levels:
    """Where to cut the chain along loops of these extents, outermost first.

    Blocks are powers of two and few in kind, so that sizes share kernels.
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


def chain_levels(chain: Sequence[IntExpr], sizes: Mapping[str, int], step: int) -> Levels:
    """Where to cut a chain that takes `step` elements of its innermost loop at once."""
    *others, innermost = (evaluate(extent, sizes) for extent in chain)
    return levels([*others, -(-innermost // step)])
