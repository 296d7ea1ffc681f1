"""Compiled functions with changing sizes: sizes that depend on others, and broadcasts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.support.compiled import BACKEND
from tests.support.compiled import fresh as fresh


def chunks(x: Tensor) -> Tensor:
    """The last chunk of seven elements is shorter, and broadcasts."""
    _, middle, last = x.chunk(3)
    return middle * 2 - last


def expanded(x: Tensor) -> Tensor:
    return x.exp()[:-1:3].expand(2, 2, -1).erf()


def expanded_where_it_is_one(x: Tensor) -> Tensor:
    return x.exp()[:-1:3].expand(4).erf()


def beside_another(x: Tensor) -> Tensor:
    return x[1::4].exp() + x


def summed(x: Tensor) -> Tensor:
    return (x[1::4].sin().expand_as(x) * x).sum()


def repeated_as_often_as_long(x: Tensor) -> Tensor:
    return x.repeat(2, x.shape[0]).softmax(1) - x.exp().repeat(x.shape[0])


@pytest.mark.parametrize(
    ("function", "sizes"),
    [
        (repeated_as_often_as_long, (4, 5, 3)),
        (chunks, (7, 3, 9, 7)),
        (expanded, (2, 4, 5, 11, 2)),
        (expanded_where_it_is_one, (3, 4, 12, 2)),
        (beside_another, (4, 5, 3)),
        (summed, (4, 5, 3)),
    ],
)
def test_a_size_that_follows_from_others_and_is_one(
    function: Callable[[Tensor], Tensor], sizes: tuple[int, ...]
) -> None:
    compiled = torch.compile(function, backend=BACKEND, dynamic=True, fullgraph=True)
    for size in sizes:
        x = torch.randn(size)
        got, expected = compiled(x), function(x)
        torch.testing.assert_close(got, expected)
        assert got.stride() == expected.stride()
