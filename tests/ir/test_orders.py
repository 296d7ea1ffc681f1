"""Sets, orders and strides that all stages share."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from pyfuser.ir.disjoint_sets import DisjointSets
from pyfuser.ir.ordering import topological_order
from pyfuser.ir.strides import (
    contiguity_flags,
    dense_strides,
    is_contiguous,
    is_dense,
    memory_order,
)


def test_sets_know_what_stands_for_them() -> None:
    sets: DisjointSets[int] = DisjointSets()
    generator = random.Random(0)
    groups = [{n} for n in range(60)]
    for _ in range(45):
        a, b = generator.randrange(60), generator.randrange(60)
        kept = sets.find(a)
        sets.join(a, b)
        assert sets.find(a) == sets.find(b) == kept
        one, other = (next(g for g in groups if n in g) for n in (a, b))
        if one is not other:
            groups.remove(other)
            one |= other
    roots = [{sets.find(n) for n in group} for group in groups]
    assert all(len(root) == 1 and root <= group for root, group in zip(roots, groups, strict=True))
    assert set(sets.joined) == set(range(60)) - set.union(*roots)


def test_order_by_number_and_by_place() -> None:
    waits_for = [{3}, set(), {1}, set(), [0, 2, 2]]
    assert topological_order(waits_for) == [1, 2, 3, 0, 4]
    assert topological_order(waits_for, [0, 5, 1, 2, 9]) == [3, 0, 1, 2, 4]


def test_what_waits_in_a_circle_is_left_out() -> None:
    assert topological_order([{1}, {0}, set(), {0}, {2}]) == [2, 4]


SHAPES = [(), (3,), (2, 3), (1, 3), (3, 1), (2, 1, 3), (0, 3), (2, 0, 3), (1, 1), (4, 2, 1, 3)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_strides_are_torchs(shape: tuple[int, ...]) -> None:
    for order in itertools.permutations(range(len(shape))):
        back = [order.index(d) for d in range(len(shape))]
        x = torch.empty([shape[d] for d in order]).permute(back)
        assert tuple(dense_strides(shape, order)) == x.stride()
        assert is_dense(shape, x.stride(), order)
        assert is_contiguous(shape, x.stride()) == x.is_contiguous()
        moving = [d for d in order if shape[d] != 1]
        if 0 not in shape:
            found = memory_order(shape, x.stride())
            assert [d for d in found if shape[d] != 1] == moving
            flags = contiguity_flags(shape, x.stride(), found)
            assert flags == [None if shape[d] == 1 else True for d in found]


def test_gaps_and_axes_that_stand_still() -> None:
    x = torch.empty(4, 6)[:, ::2]
    assert not is_contiguous(x.shape, x.stride())
    assert contiguity_flags(x.shape, x.stride(), [0, 1]) == [True, False]
    y = torch.empty(3).expand(5, 3)
    assert memory_order(y.shape, y.stride()) == [0, 1]
    assert contiguity_flags(y.shape, y.stride(), [0, 1]) == [None, True]
    assert not is_dense(y.shape, y.stride(), [0, 1])
    z = torch.empty(2, 3).t()[None]
    assert memory_order(z.shape, z.stride()) == [0, 2, 1]
