"""Reductions over several axes that are no range in memory, of which the innermost is short.

Steps are no longer than the innermost axis, tasks share the outermost one, and rows that an index
chooses are read along memory.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pyfuser import DataType, FusionDefinition
from pyfuser.frontend.executors import stage_texts

pytestmark = pytest.mark.usefixtures("poison")


def sliced(fd: FusionDefinition, shape: tuple[int, int]) -> None:
    """Sums of all but the first and the last column."""
    x = fd.define_tensor([-1, -1], contiguity=True)
    inside = fd.ops.slice(x, [0, 1], [shape[0], shape[1] - 1])
    fd.add_output(fd.ops.sum(fd.ops.mul(inside, 2.0), [0, 1]))


def gathered(fd: FusionDefinition, shape: tuple[int, int]) -> None:
    """The maximum of the rows that an index chooses."""
    x, index = fd.define_tensor([-1, -1], True), fd.define_tensor([-1], True, DataType.Int)
    rows = fd.ops.index_select(x, index, 0)
    fd.add_output(fd.ops.max(fd.ops.mul(rows, 2.0), [0, 1]))


def channels(fd: FusionDefinition, shape: tuple[int, int]) -> None:
    """Sums and moments of the middle axis of [rows, 3, columns]."""
    x = fd.define_tensor([-1, -1, -1], contiguity=True)
    fd.add_output(fd.ops.sum(fd.ops.relu(x), [0, 2]))
    fd.add_output(fd.ops.var(x, [0, 2], 0, False))


def _inputs(define: Callable[..., None], shape: tuple[int, int]) -> list[Tensor]:
    rows, columns = shape
    if define is channels:
        return [torch.randn(rows, 3, columns)]
    x = torch.randn(rows, columns)
    return [x, torch.randint(0, rows, (2 * rows + 1,))] if define is gathered else [x]


def _wanted(define: Callable[..., None], given: list[Tensor]) -> list[Tensor]:
    x = given[0].double()
    if define is channels:
        return [x.relu().sum((0, 2)), x.var((0, 2), correction=0)]
    return [(x[given[1]] * 2).amax()] if define is gathered else [(x[:, 1:-1] * 2).sum()]


@pytest.mark.parametrize("define", [sliced, gathered, channels])
@pytest.mark.parametrize(
    "shape", [(9000, 8), (3, 70000), (1, 5), (5, 3), (1000, 49), (4097, 17), (257, 300), (1, 3)]
)
def test_results(define: Callable[..., None], shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    given = _inputs(define, shape)
    with FusionDefinition() as fd:
        define(fd, shape)
    for got, want in zip(fd.execute(given), _wanted(define, given), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=2e-5, atol=1e-3)


@pytest.mark.cpu
@pytest.mark.parametrize("define", [sliced, gathered])
def test_tasks_share_the_rows(define: Callable[..., None]) -> None:
    shape = (40000, 10)
    with FusionDefinition() as fd:
        define(fd, shape)
    text = stage_texts(fd.fusion, _inputs(define, shape))["parameters"]
    assert "unroll=1," in text
    assert "outermost=True" in text


@pytest.mark.cpu
def test_rows_that_an_index_chooses_are_read_along_memory() -> None:
    with FusionDefinition() as fd:
        gathered(fd, (1, 1))
    text = stage_texts(fd.fusion, _inputs(gathered, (4000, 64)))["kernel"]
    index = text.split("wrapped(" if "wrapped(" in text else "checked(", 1)[1].split(")", 1)[0]
    assert "threadIdx.x" not in index  # one position for all lanes
