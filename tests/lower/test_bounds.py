"""Every element is written, and nothing outside of a tensor or a buffer is read.

The memory is fenced: a read beyond its end ends the process.
"""

from __future__ import annotations

import pytest
import torch

from pyfuser import FusionDefinition, ParallelType
from tests.support.fences import fenced

pytestmark = pytest.mark.usefixtures("poison")


@pytest.mark.parametrize("rows", [1, 5, 8, 257])
def test_loops_that_are_cut_differently_from_a_buffers_own(rows: int) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        result = fd.ops.mul(fd.ops.neg(x), 3.0)
        fd.add_output(result)
        result.split(0, 8)
        result.reorder({2: 1})
        result.axis(2).parallelize(ParallelType.block_y)
    given = fenced(torch.randn(rows, 257))
    torch.testing.assert_close(fd.manual_execute([given])[0], given * -3)


def test_lanes_beyond_the_end_of_accumulators() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        variance, mean = fd.ops.var_mean(x, [1])
        fd.add_output(variance)
        fd.add_output(mean)
        for each in (variance, mean):
            each.split(0, 32)
            each.axis(0).parallelize(ParallelType.block_x)
            each.axis(1).parallelize(ParallelType.block_y)
    for rows in (2, 33, 300):
        given = fenced(torch.randn(rows, 7))
        expected = torch.var_mean(given, 1)
        torch.testing.assert_close(tuple(fd.manual_execute([given])), expected)


def test_a_buffer_that_is_read_backwards() -> None:
    with FusionDefinition() as fd:
        ops = fd.ops
        x = fd.define_tensor([-1, -1], contiguity=True)
        repeated = ops.expand(ops.broadcast(x, [False, True, False]), [-1, 3, -1])
        rows = ops.reshape(repeated, [-1, ops.size(x, 1)])
        last = ops.sub(ops.size(repeated, 1), 1)
        backwards = ops.sub(last, ops.iota(ops.size(repeated, 1)))
        fd.add_output(ops.index_select(repeated, backwards, 1))
        fd.add_output(ops.sub(rows, ops.sum(rows, [0], True)))
    for shape in [(5, 7), (33, 257)]:
        fd.validate([fenced(torch.randn(shape))])


@pytest.mark.parametrize(("first", "second"), [(4, 0), (0, 3), (4, 2), (0, 0)])
def test_outputs_beside_an_empty_one_are_written(first: int, second: int) -> None:
    with FusionDefinition() as fd:
        for kind in (ParallelType.grid_x, ParallelType.grid_y):
            result = fd.ops.neg(fd.define_tensor([-1], contiguity=True))
            fd.add_output(result)
            result.axis(0).parallelize(kind)
    given = [torch.ones(first), torch.ones(second)]
    torch.testing.assert_close(fd.manual_execute(given), [-each for each in given])


@pytest.mark.parametrize("shape", [(4, 0), (0, 4), (3, 5)])
def test_sums_along_either_axis_of_an_empty_matrix(shape: tuple[int, int]) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        for dim, kind in ((1, ParallelType.grid_x), (0, ParallelType.grid_y)):
            result = fd.ops.sum(x, [dim])
            fd.add_output(result)
            result.axis(0).parallelize(kind)
    given = torch.ones(shape)
    torch.testing.assert_close(fd.manual_execute([given]), [given.sum(1), given.sum(0)])
