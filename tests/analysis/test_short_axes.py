"""Axes whose size is a small constant of the definition, less than their split factors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pyfuser import DataType, FusionDefinition
from tests.support.compiled import BACKEND
from tests.support.compiled import strict as strict


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("dims", [(1,), (0, 1)])
def test_sums_beside_results_that_are_stored(size: int, dims: tuple[int, ...]) -> None:
    """The sum's loops are cut in two by rfactor, those of the other result are not."""
    x = torch.randn(8)
    with FusionDefinition() as fd:
        wide = fd.ops.broadcast(fd.from_pytorch(x), [False, True])
        places = fd.ops.iota(size, fd.define_scalar(0), fd.define_scalar(1), DataType.Int)
        columns = fd.ops.cast(fd.ops.broadcast(places, [True, False]), DataType.Float)
        product = fd.ops.mul(wide, columns)
        fd.add_output(fd.ops.neg(product))
        fd.add_output(fd.ops.sum(fd.ops.exp(product), dims))
    want = x[:, None] * torch.arange(size)
    negated, total = fd.execute([x])
    torch.testing.assert_close(negated, -want)
    torch.testing.assert_close(total, want.exp().sum(dims))


def stacked(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    made = torch.stack([x, y], -1)
    return made.tril(), made.mean()


def concatenated(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    made = torch.cat([x[:, None], y[:, None], x[:, None] * 2], 1)
    return made.exp(), made.exp().sum()


@pytest.mark.parametrize("program", [stacked, concatenated])
@pytest.mark.parametrize("size", [8, 100, 3])
def test_stacks_that_are_summed_as_well(
    program: Callable[..., tuple[Tensor, ...]], size: int
) -> None:
    x, y = torch.randn(size), torch.randn(size)
    for got, expected in zip(
        torch.compile(program, backend=BACKEND)(x, y), program(x, y), strict=True
    ):
        torch.testing.assert_close(got, expected)


def scattered(x: Tensor) -> Tensor:
    return x.sum(1) + x[:, 0].scatter(0, torch.arange(1), 3)


def compared(x: Tensor) -> Tensor:
    return (x * torch.arange(1)).sum(1) + torch.arange(5, 6) * x[:, 0]


@pytest.mark.parametrize("program", [scattered, compared])
@pytest.mark.parametrize("shape", [(2, 3), (9, 40)])
def test_ranges_of_one_element_beside_reductions(
    program: Callable[[Tensor], Tensor], shape: tuple[int, int]
) -> None:
    """The one element is the first, in whichever loop it is computed."""
    x = torch.randn(shape)
    torch.testing.assert_close(torch.compile(program, backend=BACKEND)(x), program(x))
