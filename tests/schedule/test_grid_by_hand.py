"""Axes of the grid put by hand: what every block computes, and what one writes for all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pyfuser import FusionDefinition, ParallelType
from pyfuser.errors import ScheduleError

pytestmark = pytest.mark.usefixtures("poison")

GRID = [ParallelType.grid_x, ParallelType.grid_y, ParallelType.grid_z]


def run(fd: FusionDefinition, x: torch.Tensor, *wanted: torch.Tensor) -> None:
    """Twice, because blocks may be lucky once."""
    for _ in range(2):
        for got, exact in zip(fd.manual_execute([x]), wanted, strict=True):
            torch.testing.assert_close(got.double(), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", GRID, ids=str)
def test_what_every_block_computes_is_read_by_a_later_phase(kind: ParallelType) -> None:
    """T1 has no loop over the grid; it is in memory because the quotient comes after the sum."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        y = fd.ops.exp(x)
        total = fd.ops.sum(y, 1)
        fd.add_output(fd.ops.div(y, fd.ops.broadcast(total, [False, True])))
        fd.add_output(total)
        total.axis(0).parallelize(kind)
    value = torch.randn(200, 33)
    exact = value.double()
    run(fd, value, exact.softmax(1), exact.exp().sum(1))


@pytest.mark.parametrize("kind", GRID, ids=str)
def test_a_reduction_beside_a_tensor_that_runs_over_the_grid(kind: ParallelType) -> None:
    """The loop of the sum is that of the exponential, which is that of its other reader."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        y = fd.ops.exp(x)
        z = fd.ops.neg(y)
        fd.add_output(fd.ops.sum(y, 0))
        fd.add_output(z)
        fd.sched.inline_at(z, 2, True)
        z.axis(0).parallelize(kind)
    value = torch.randn(300, 50)
    exact = value.double().exp()
    run(fd, value, exact.sum(0), -exact)


def centred(schedule: Callable[..., None]) -> FusionDefinition:
    """Rows less their means, and the sums of the squares of these; both from one welford."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        mean, squares, _ = fd.ops.welford(x, [1])
        z = fd.ops.sub(x, fd.ops.broadcast(mean, [False, True]))
        fd.add_output(z)
        fd.add_output(squares)
        schedule(fd, z, mean, squares)
    return fd


def check_centred(fd: FusionDefinition) -> None:
    for shape in ((31, 40), (1, 7), (64, 1)):
        value = torch.randn(shape)
        exact = value.double()
        exact = exact - exact.mean(1, keepdim=True)
        run(fd, value, exact, exact.square().sum(1))


@pytest.mark.parametrize("kind", GRID, ids=str)
def test_one_result_for_every_block_and_one_in_memory(kind: ParallelType) -> None:
    def schedule(fd: FusionDefinition, z, mean, squares) -> None:  # type: ignore[no-untyped-def]
        z.merge(0, 1)
        z.axis(0).parallelize(kind)
        fd.sched.inline_most()

    check_centred(centred(schedule))


def test_two_axes_of_the_grid_of_which_one_is_shared() -> None:
    def schedule(fd: FusionDefinition, z, mean, squares) -> None:  # type: ignore[no-untyped-def]
        z.axis(0).parallelize(ParallelType.grid_x)
        z.axis(1).parallelize(ParallelType.grid_y)
        fd.sched.inline_most()

    check_centred(centred(schedule))


def test_the_schedule_of_any_result_is_that_of_all() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        mean, squares, _ = fd.ops.welford(x, [1])
        fd.add_output(mean)
        fd.add_output(squares)
        squares.split(0, 8)
        squares.axis(0).parallelize(ParallelType.grid_x)
    value = torch.randn(31, 40)
    exact = value.double()
    run(fd, value, exact.mean(1), exact.var(1, correction=0) * 40)
    assert "grid(blockIdx.x: ceildiv(i0, 8))" in fd.fusion.print_kernel()


def test_results_of_one_reduction_with_different_loops() -> None:
    def schedule(fd: FusionDefinition, z, mean, squares) -> None:  # type: ignore[no-untyped-def]
        squares.split(0, 8)
        mean.split(0, 4)

    with pytest.raises(ScheduleError, match="T2 to have the loops of T1"):
        centred(schedule).manual_execute([torch.randn(31, 40)])


def test_lanes_of_a_tail_store_where_they_read() -> None:
    """A cut loop's halves have a buffer each, at an index that only tasks change."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1, -1], contiguity=True)
        y = fd.ops.neg(x)
        z = fd.ops.add(y, 1.5)
        m = fd.ops.neg(z)
        fd.add_output(m)
        fd.add_output(z)
        y.split(2, 5)
        z.axis(1).parallelize(ParallelType.block_x)
        fd.sched.inline_at(m, 3, True)
        m.axis(2).parallelize(ParallelType.grid_z)
    for rows in (32, 40):
        value = torch.randn(5, rows, 33)
        exact = 1.5 - value.double()
        run(fd, value, -exact, exact)


def test_a_tensor_changed_after_others_were_inlined_into_it() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        y = fd.ops.exp(x)
        z = fd.ops.neg(y)
        fd.add_output(z)
        fd.sched.inline_most()
        z.merge(0, 1)
        with pytest.raises(ScheduleError, match="transform_like: expected T1 to keep the loops"):
            fd.sched.transform_like(z)
        with pytest.raises(ScheduleError, match="inline: expected axis 1 of T1 to match T2"):
            fd.sched.inline_at(y, 1)
        with pytest.raises(ScheduleError, match="inline: expected axis 0 of T1 to match T2"):
            fd.manual_execute([torch.randn(3, 4)])
