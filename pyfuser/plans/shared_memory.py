"""One allocation for the small tensors between the kernels of a program.

An allocation takes as long as a kernel for some thousand elements, and a program of many small
kernels has one for each result.  A tensor of known size that only kernels read and write gets a
place in common memory instead, for as long as it is needed:

    m = empty((4096,), (1,), uint8); p = m.data_ptr()
    launch0(x.data_ptr(), p); launch1(p, p + 2048); launch2(p + 2048, y.data_ptr())

Large tensors get memory of their own, which goes back to the pool after their last use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..ir.vals import TensorView

MOST_BYTES = 64 << 10  # of a tensor in common memory

_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The bytes of a tensor, and the parts that write it and read it last."""

    bytes: int
    written: int
    read: int


def places(lifetimes: Mapping[TensorView, Lifetime]) -> tuple[dict[TensorView, int], int]:
    """(the offset of each tensor, the bytes of all): tensors needed at one time don't overlap.

    Each gets the first gap that is large enough.
    """
    found: dict[TensorView, int] = {}
    total = 0
    for tensor, own in sorted(lifetimes.items(), key=lambda item: item[1].written):
        taken = [
            (offset, offset + _aligned(lifetimes[other].bytes))
            for other, offset in found.items()
            if lifetimes[other].read >= own.written
        ]
        found[tensor] = begin = _first_gap(sorted(taken), _aligned(own.bytes))
        total = max(total, begin + _aligned(own.bytes))
    return found, total


def _first_gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    begin = 0
    for start, stop in taken:
        if start - begin >= size:
            break
        begin = max(begin, stop)
    return begin


def _aligned(size: int) -> int:
    return -(-max(size, 1) // _ALIGNMENT) * _ALIGNMENT
