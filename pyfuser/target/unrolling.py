"""How far loops are unrolled: the part of the heuristics that all targets share."""

from __future__ import annotations


def unroll_factor(work: int) -> int:
    """Fewer vectors per step if one takes long (`work`, in additions): less code to compile."""
    return 4 if work <= 8 else 2 if work <= 24 else 1


# A row of fewer vectors doesn't hide what its end takes.  Measured: steps without a rest make rows
# of 2 to 7 vectors up to 2.6 times as fast, and rows of 9 to 15 no faster.
_SHORT_ROW = 8


def row_unroll(columns: int, lanes: int, most: int) -> int:
    """Vectors per step of a row: at most so many, and a short row has whole steps of them.

    Its last vectors would be tested one by one whether they are inside the row.
    """
    vectors, unroll = columns // lanes, most
    while unroll > 1 and vectors < _SHORT_ROW and vectors % unroll:
        unroll //= 2
    return unroll


def inner_unroll(reduced: int, lanes: int, most: int) -> int:
    """Accumulators per row: eight hide an add's latency; a short row shouldn't be all tail."""
    unroll = most
    while unroll > 1 and unroll * lanes * (8 if unroll > 4 else 1) > reduced:
        unroll //= 2
    return unroll
