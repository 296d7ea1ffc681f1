"""Memory layouts of tensors, from sizes and strides: the order of the axes, and gaps.

An axis of one element or of stride 0 doesn't move, so its position in the memory order is
meaningless.  Sizes and strides may be numbers that record comparisons
(analysis/size_conditions.py), so a comparison is only made if its outcome matters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def memory_order(sizes: Sequence[int], strides: Sequence[int]) -> list[int]:
    """The dimensions, outermost in memory first.

    Dimensions that don't move come first, unless all dimensions are in order anyway.
    """
    moving = [d for d in range(len(sizes)) if sizes[d] != 1 and strides[d] != 0]
    by_stride = sorted(moving, key=lambda d: strides[d], reverse=True)
    if by_stride == moving:
        return list(range(len(sizes)))
    return [d for d in range(len(sizes)) if d not in moving] + by_stride


def inverse(order: Sequence[int]) -> list[int]:
    """The order in which a permutation by `order` is undone."""
    return [order.index(dim) for dim in range(len(order))]


def contiguity_flags(
    sizes: Sequence[int], strides: Sequence[int], order: Sequence[int]
) -> list[bool | None]:
    """For each dimension in `order` (outermost first), whether it is contiguous with those inside.

    None for dimensions that don't move.
    """
    found: list[bool | None] = []
    dense = 1
    for d in reversed(order):
        if sizes[d] == 1 or strides[d] == 0:
            found.append(None)
        else:
            found.append(strides[d] == dense)
            dense = strides[d] * sizes[d]
    return found[::-1]


def is_contiguous(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """True if the elements are in row-major order, without gaps; there may be none."""
    return 0 in sizes or is_dense(sizes, strides, range(len(sizes)))


def is_dense(sizes: Sequence[int], strides: Sequence[int], order: Sequence[int]) -> bool:
    """True if the strides are those of new memory, for this order of the axes."""
    wanted = dense_strides(sizes, order)
    return all(
        size == 1 or stride == dense
        for size, stride, dense in zip(sizes, strides, wanted, strict=True)
    )


def may_overlap(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """True if two elements may have the same memory; axes of stride 0 don't count."""
    spanned = 1
    moving = [d for d in range(len(sizes)) if sizes[d] != 1 and strides[d] != 0]
    for d in sorted(moving, key=lambda d: strides[d]):
        if strides[d] < spanned:
            return True
        spanned += (sizes[d] - 1) * strides[d]
    return False


def dense_strides(sizes: Sequence[int], order: Sequence[int]) -> list[int]:
    """The strides of new memory, by dimension, for this order of the axes, outermost first."""
    return strides_in_order(sizes, order, 1, lambda stride, size: stride * max(size, 1))


def strides_in_order(
    sizes: Sequence[T], order: Sequence[int], one: T, times: Callable[[T, T], T]
) -> list[T]:
    """`dense_strides` for sizes that are texts or numbers; `times` counts a size of 0 as 1.

    As in torch.  `times` is only called for products that some stride needs.
    """
    strides = [one] * len(sizes)
    for outer, inner in zip(order[-2::-1], order[::-1], strict=False):
        strides[outer] = times(strides[inner], sizes[inner])
    return strides
