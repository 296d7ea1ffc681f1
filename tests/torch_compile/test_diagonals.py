"""Writes to diagonals, and the gradients of reads, are computed by the kernels around them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.support.compiled import sources as sources
from tests.support.compiled import strict as strict
from tests.support.long_cases import first as short

pytestmark = pytest.mark.usefixtures("poison")

SHAPES = ((5, 5, 4), (1, 3, 3), (6, 2, 7), (0, 2, 3))
PLACES = ((0, 0, 1), (1, -2, -1), (-2, 0, 2), (5, 2, 1), (-7, 1, 0))
CASES = [(place, number % 2 == 0) for number, place in enumerate(PLACES)]


def _read(x: Tensor, offset: int, first: int, second: int) -> Tensor:
    return (x.diagonal(offset, first, second).exp() * 1.5).sum() + x.square().sum() * 0.5


def _written(x: Tensor, offset: int, first: int, second: int) -> Tensor:
    doubled = x * 2
    doubled.diagonal(offset, first, second).add_(0.5)
    doubled.diagonal(0, 0, 1).mul_(x.diagonal(0, 0, 1) - 2)
    return doubled.tanh()


@pytest.mark.parametrize(("place", "dynamic"), short(3, CASES))
def test_diagonals(place: tuple[int, int, int], dynamic: bool) -> None:
    read = torch.compile(_read, backend="pyfuser", dynamic=dynamic)
    written = torch.compile(_written, backend="pyfuser", dynamic=dynamic)
    for shape in SHAPES:
        given = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        for x in (given, given.transpose(0, 2).contiguous().transpose(0, 2)):
            x.requires_grad_()
            results = []
            for first, second in ((_read, _written), (read, written)):
                (gradient,) = torch.autograd.grad(first(x, *place), x)
                with torch.no_grad():
                    results.append((gradient, second(x, *place)))
            for eager, ours in zip(*results, strict=True):
                torch.testing.assert_close(ours, eager)
                assert ours.stride() == eager.stride()


@pytest.mark.cpu
def test_the_gradient_of_a_diagonal_is_part_of_a_kernel(sources: list[str]) -> None:
    x = torch.randn(4, 9, 9, requires_grad=True)
    torch.compile(_read, backend="pyfuser")(x, 0, 1, 2).backward()
    assert sources[-1].count("_launch") == 1 and "diagonal" not in sources[-1]


def test_a_source_of_another_size_is_an_error() -> None:
    def function(x: Tensor, source: Tensor) -> Tensor:
        return torch.diagonal_scatter(x * 2, source)

    compiled = torch.compile(function, backend="pyfuser")
    with pytest.raises(RuntimeError, match="expected src"):
        compiled(torch.randn(4, 4), torch.randn(1))
