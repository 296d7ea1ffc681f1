"""Which axis loops should have innermost, if tensors in memory don't agree about it."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def common_innermost(chosen: Sequence[int], orders: Collection[Sequence[int]]) -> Sequence[int]:
    """`chosen` (one axis, or none), or the axis that is better innermost.

    `orders` are the axes of tensors, outermost in memory first.  If one runs across the chosen
    axis, an axis is better that is last in all that have it; of several, the one that most have.
    """
    last = [order[-1] for order in orders if order]
    across = {number for order in orders for number in order[:-1]}
    if across.isdisjoint(chosen):
        return chosen
    common = [number for number in last if number not in across]
    return [max(common, key=common.count)] if common else chosen
