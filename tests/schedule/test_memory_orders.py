"""The order of axes in memory through reshapes."""

from __future__ import annotations

import itertools

import pytest

from pyfuser.analysis.iteration_space import Step
from pyfuser.schedule.memory_orders import MemoryOrder, backwards

A, B, C, M, X, Y = range(6)


def order(*axes: int, contiguous: str = "all", **flags: frozenset[int]) -> MemoryOrder:
    ranges = frozenset(axes if contiguous == "all" else axes[1:])
    return MemoryOrder(axes, ranges, **flags)


def test_neighbours_are_merged_and_split_again() -> None:
    steps = [Step(0, (B, C), (M,)), Step(1, (M,), (X, Y))]
    merged, split = order(A, B, C).reshaped(steps)
    assert (merged.axes, split.axes) == ((A, M), (A, X, Y))
    assert split.merges(A, X) and split.merges(X, Y) and not split.merges(A, Y)
    assert split.runs_along(Y) and not split.runs_along(X)
    assert [each.axes for each in split.reshaped(backwards(steps))] == [(A, M), (A, B, C)]


@pytest.mark.parametrize("axes", [*itertools.permutations((A, B, C))])
def test_only_a_range_is_merged(axes: tuple[int, ...]) -> None:
    made = order(*axes).merged(B, C, M)
    assert (made is not None) == ((B, C) in itertools.pairwise(axes))
    apart = MemoryOrder(axes, frozenset(axes) - {B})  # rows of something larger
    assert apart.merged(B, C, M) is None


def test_repeated_axes() -> None:
    both = order(A, B, C, repeated=frozenset({A, B}))
    made = both.merged(A, B, M)
    assert made is not None and made.repeated == {M} and not made.merges(M, C)
    assert both.merged(B, C, M) is None
    parts = both.split(A, X, Y)
    assert parts is not None and parts.merges(X, Y) and not parts.merges(Y, C)


def test_windows_and_steps() -> None:
    """A part of rows, of every second element."""
    read = order(A, B, windowed=frozenset({B}), stepped=frozenset({B}))
    assert not read.merges(A, B) and not read.runs_along(B)
    parts = read.split(B, X, Y)
    assert parts is not None
    assert parts.merges(X, Y) and not parts.merges(A, X) and not parts.runs_along(Y)
    again = parts.merged(X, Y, M)
    assert again is not None and (again.windowed, again.stepped) == ({M}, {M})


def test_a_step_with_a_broadcast_is_left_out() -> None:
    assert list(order(A, B).reshaped([Step(0, (B,), (M,)), Step(1, (), ())])) == []
