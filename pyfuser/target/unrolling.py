"""How far loops are unrolled: the part of the heuristics that all targets share."""

from __future__ import annotations


def unroll_factor(work: int) -> int:
    """Fewer vectors per step if one takes long (`work`, in additions): less code to compile."""
    return 4 if work <= 8 else 2 if work <= 24 else 1


def inner_unroll(reduced: int, lanes: int, most: int) -> int:
    """Accumulators per row: eight hide an add's latency; a short row shouldn't be all tail."""
    unroll = most
    while unroll > 1 and unroll * lanes * (8 if unroll > 4 else 1) > reduced:
        unroll //= 2
    return unroll
