"""Schedules by hand that were once computed wrongly, or ended in an error of Python or LLVM.

All were found by random schedules (tests/programs/draw_schedules.py).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition, ParallelType
from pyfuser.errors import ScheduleError

pytestmark = pytest.mark.usefixtures("poison")

GRID_X, BLOCK_X, VECTORIZE = (
    ParallelType.grid_x, ParallelType.block_x, ParallelType.vectorize
)  # fmt: skip


# -- registers


def test_a_register_of_tasks_that_are_not_all_of_them() -> None:
    """A tensor without elements is in memory, so there is a task even if the others have none."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True)
        y = fd.ops.mul(x, 0.125)
        z = fd.ops.add(x, y)
        fd.add_output(z)
        fd.add_output(fd.ops.full(shape=[0], fill_value=0, dtype=DataType.Int))
        z.axis(0).parallelize(GRID_X)
        fd.sched.parallelize_like(z)
    fd.manual_validate([torch.randn(2)])
    fd.manual_validate([torch.randn(0)])


def test_registers_of_two_loops_over_different_tasks() -> None:
    with FusionDefinition() as fd:
        x, other = (fd.define_tensor([-1], contiguity=True) for _ in range(2))
        y = fd.ops.exp(x)
        fd.add_output(fd.ops.neg(y))
        fd.add_output(fd.ops.neg(other))
        for tensor in (y, *fd.fusion.outputs()):
            tensor.axis(0).parallelize(GRID_X)
    for sizes in ((3, 7), (7, 3)):
        fd.manual_validate([torch.randn(size) for size in sizes])


# -- launch extents


def test_a_broadcast_axis_over_the_grid_beside_no_elements() -> None:
    """The first task writes the only element; its axis is put on the grid like the empty one."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([1, 1])
        empty = fd.define_tensor([0, 2])
        fd.add_output(fd.ops.neg(x))
        fd.add_output(fd.ops.neg(empty))
        for tensor in fd.fusion.outputs():
            tensor.axis(0).parallelize(GRID_X)
    fd.manual_validate([torch.randn(1, 1), torch.randn(0, 2)])


# -- reductions


@pytest.mark.parametrize("name", ["sum", "max"])
def test_partial_results_read_over_more_than_there_are(name: str) -> None:
    with FusionDefinition() as fd:
        total = getattr(fd.ops, name)(fd.define_tensor([-1], contiguity=True), [0])
        fd.add_output(fd.ops.neg(total))
        total.split(0, 2, False)
        total.rfactor([0])
        total.split(0, 16)
    fd.manual_validate([torch.randn(37)])


@pytest.mark.parametrize("kind", [ParallelType.serial, BLOCK_X])
def test_a_mean_in_a_register_beside_a_count_in_memory(kind: ParallelType) -> None:
    """The iteration that has no element comes first, so it isn't cut off."""
    with FusionDefinition() as fd:
        mean, _, count = fd.ops.welford(fd.define_tensor([-1, -1], contiguity=True), [0])
        negative = fd.ops.neg(mean)
        fd.add_output(negative)
        fd.add_output(count)
        mean.split(0, 2).reverse(0)
        mean.axis(2).parallelize(kind)
        negative.axis(0).parallelize(kind)
    fd.manual_validate([torch.randn(37, 20)])


@pytest.mark.cpu
def test_rows_beyond_the_last_have_no_count_in_memory() -> None:
    with FusionDefinition() as fd:
        mean, _, count = fd.ops.welford(fd.define_tensor([-1, -1], contiguity=True), [1])
        fd.add_output(fd.ops.neg(mean))
        fd.add_output(count)
        mean.split(0, 16).reverse(0)
        mean.axis(2).parallelize(BLOCK_X)
    fd.manual_validate([torch.randn(1, 37)])


def test_rfactor_of_an_axis_with_a_broadcast_merged_into_it() -> None:
    with FusionDefinition() as fd:
        total = fd.ops.sum(fd.define_tensor([-1, 1]), [0])
        fd.add_output(total)
        total.merge(1, 0).split(0, 2)
        with pytest.raises(ScheduleError, match="rfactor: expected reduction axes of T1 without"):
            total.rfactor([0])
    fd.manual_validate([torch.randn(7, 1)])


# -- vectors


def test_a_vector_around_an_expanded_axis() -> None:
    """The output runs over all elements of an axis that its input repeats."""
    with FusionDefinition() as fd:
        y = fd.ops.neg(fd.define_tensor([-1], contiguity=[None]))
        fd.add_output(y)
        y.split(0, 2, False)
        y.axis(0).parallelize(VECTORIZE)
    with pytest.raises(ScheduleError, match="vectorize: expected the innermost axis of T1"):
        fd.manual_execute([torch.randn(1).expand(7)])


def test_lanes_of_no_elements() -> None:
    with FusionDefinition() as fd:
        y = fd.ops.exp(fd.define_tensor([2, 0]))
        fd.add_output(y)
        y.axis(1).parallelize(BLOCK_X)
    fd.manual_validate([torch.randn(2, 0)])


def test_a_vector_of_no_elements() -> None:
    with FusionDefinition() as fd:
        y = fd.ops.exp(fd.define_tensor([0]))
        fd.add_output(y)
        y.axis(0).parallelize(VECTORIZE)
    with pytest.raises(ScheduleError, match="to be a power of two up to 16 long, got 0"):
        fd.manual_execute([torch.randn(0)])


# -- the order of elements in memory


def sums(fd: FusionDefinition) -> tuple[Any, Any]:
    """The columns' sums and their negatives."""
    total = fd.ops.sum(fd.define_tensor([-1, -1], contiguity=True), [0])
    negative = fd.ops.neg(total)
    fd.add_output(negative)
    return total, negative


def test_the_order_of_elements_has_no_reduced_loops() -> None:
    with FusionDefinition() as fd:
        total, _ = sums(fd)
        total.split(1, 4)
        total.set_allocation_domain([total.axis(i) for i in (2, 0, 1)], True)
    fd.manual_validate([torch.randn(5, 10)])


def test_the_order_of_one_of_several_results() -> None:
    with FusionDefinition() as fd:
        mean, squares, _ = fd.ops.welford(fd.define_tensor([-1, -1], contiguity=True), [0])
        fd.add_output(fd.ops.add(mean, squares))
        mean.split(1, 4)
        fd.sched.transform_like(mean)
        squares.set_allocation_domain([squares.axis(i) for i in (2, 0, 1)], True)
    fd.manual_validate([torch.randn(5, 10)])


def test_a_copy_before_takes_over_the_order() -> None:
    with FusionDefinition() as fd:
        total, _ = sums(fd)
        total.split(1, 4)
        total.set_allocation_domain([total.axis(i) for i in (2, 0, 1)], True)
        total.cache_before()
    fd.manual_validate([torch.randn(5, 10)])


def test_loops_that_change_after_the_order_was_set() -> None:
    with FusionDefinition() as fd:
        total, negative = sums(fd)
        negative.split(0, 4)
        fd.sched.transform_like(negative)
        total.set_allocation_domain([total.axis(i) for i in (0, 1, 2)], True)
        fd.sched.transform_like(negative)
    with pytest.raises(ScheduleError, match="set_allocation_domain: expected T1 to have the loops"):
        fd.manual_execute([torch.randn(5, 10)])


# -- refused calls


def test_what_is_refused_for_one_tensor_changes_no_other() -> None:
    with FusionDefinition() as fd:
        y = fd.ops.exp(fd.define_tensor([-1, -1], contiguity=True))
        total = fd.ops.sum(y, [1])
        z = fd.ops.neg(fd.ops.neg(fd.ops.broadcast(total, [False, True])))
        fd.add_output(z)
        before = str(fd.fusion.user_schedule)
        for refused in (
            lambda: fd.sched.inline_at(z, 2),
            lambda: fd.sched.compute_at(y, z, 2),
        ):
            with pytest.raises(ScheduleError, match="inline_at: expected T2 to be inlined at 2"):
                refused()
            assert str(fd.fusion.user_schedule) == before


# -- phases


def test_an_index_that_only_one_block_writes_is_not_read_by_the_others() -> None:
    """They don't need what they read with it, but an index out of range is refused."""
    with FusionDefinition() as fd:
        table, other = (fd.define_tensor([-1], contiguity=True) for _ in range(2))
        index = fd.ops.add(fd.define_tensor([-1], contiguity=True, dtype=DataType.Int), 1)
        z = fd.ops.exp(other)
        for output in (index, fd.ops.neg(fd.ops.index_select(table, index, 0)), z):
            fd.add_output(output)
        fd.sched.inline_most()
        z.axis(0).parallelize(GRID_X)
    inputs = [torch.randn(9), torch.randn(50), torch.randint(0, 8, (20,))]
    with pytest.raises(ScheduleError, match="a read across blocks inside a shared loop"):
        fd.manual_validate(inputs)


# -- no elements


def test_axes_without_elements_are_divided() -> None:
    """The index of a merged axis has two parts; with a constant size of 0 there is none."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([0, 0], contiguity=[False, True], stride_order=[0, 1])
        fd.add_output(fd.ops.exp(fd.ops.neg(x)))
        x.split(1, 1, False)
        x.merge(2, 0)
        fd.sched.transform_like(x)
    fd.manual_validate([torch.randn(0, 0)])
