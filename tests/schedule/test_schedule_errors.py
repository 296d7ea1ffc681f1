"""Illegal schedules: one test per error, each with a message that names the tensor and the axis.

A case schedules a fusion through the public interface; the error comes from the scheduling call
itself or, if only the whole schedule shows it, when the kernel is compiled.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition, MemoryType, ParallelType
from pyfuser.errors import ScheduleError, UnsupportedError

GRID_X, GRID_Y = ParallelType.grid_x, ParallelType.grid_y
BLOCK_X, BLOCK_Y = ParallelType.block_x, ParallelType.block_y
UNROLL, VECTORIZE = ParallelType.unroll, ParallelType.vectorize


def matrix(fd: FusionDefinition, contiguity: Any = True) -> Any:
    return fd.define_tensor([-1, -1], contiguity=contiguity, dtype=DataType.Float)


def chain(fd: FusionDefinition) -> tuple[Any, Any]:
    """T0 -> T1 = exp -> T2 = neg; returns T1 and T2."""
    middle = fd.ops.exp(matrix(fd))
    last = fd.ops.neg(middle)
    fd.add_output(last)
    return middle, last


def row_sums(fd: FusionDefinition) -> Any:
    """T0 -> T1 = the sums of the rows."""
    total = fd.ops.sum(matrix(fd), [1])
    fd.add_output(total)
    return total


Case = tuple[Callable[[FusionDefinition], object], str]
CASES: dict[str, Case] = {}


def case(message: str) -> Callable[[Callable[[FusionDefinition], object]], object]:
    """Adds a schedule whose error begins with `message`, a regular expression."""

    def add(schedule: Callable[[FusionDefinition], object]) -> object:
        assert schedule.__name__ not in CASES
        CASES[schedule.__name__] = schedule, message
        return schedule

    return add


# -- loops


@case(r"split: expected axis iS4\{i0\} of T2 and a factor of at least 1, got 0")
def split_by_zero(fd: FusionDefinition) -> None:
    chain(fd)[1].split(0, 0)


@case(r"split: expected axis iS5\{i1\} of T2 and a factor of at least 1, got 2.5")
def split_by_a_fraction(fd: FusionDefinition) -> None:
    chain(fd)[1].split(1, 2.5)


@case(r"split: expected an axis of T2 in \[-2, 1\], got 2")
def split_of_no_axis(fd: FusionDefinition) -> None:
    chain(fd)[1].split(2, 4)


@case(r"split: expected an axis of T1 right of its compute position 1, got 0")
def split_of_a_shared_loop(fd: FusionDefinition) -> None:
    middle, last = chain(fd)
    fd.sched.inline_at(last, 1)
    middle.split(0, 4)


@case(r"merge: expected an axis of T2 in \[-2, 1\], got 2")
def merge_with_no_axis(fd: FusionDefinition) -> None:
    chain(fd)[1].merge(1)


@case(r"merge: expected two different axes of T2, got \(1, 1\)")
def merge_with_itself(fd: FusionDefinition) -> None:
    chain(fd)[1].merge(1, 1)


@case(r"merge: expected two iteration or two reduction axes of T1, got iS2\{i0\} and rS3\{i1\}")
def merge_of_iteration_and_reduction(fd: FusionDefinition) -> None:
    row_sums(fd).merge(0)


@case(r"merge: expected an axis of T1 right of its compute position 1, got 0")
def merge_of_a_shared_loop(fd: FusionDefinition) -> None:
    middle, last = chain(fd)
    fd.sched.inline_at(last, 1)
    middle.merge(0)


@case(r"reorder: expected an axis of T2 in \[-2, 1\], got 5")
def reorder_to_no_axis(fd: FusionDefinition) -> None:
    chain(fd)[1].reorder({0: 5})


@case(r"reorder: expected each axis of T2 at most once, got \{0: 1, 1: 1\}")
def reorder_two_axes_to_one_place(fd: FusionDefinition) -> None:
    chain(fd)[1].reorder({0: 1, 1: 1})


@case(r"reorder: expected an axis of T1 right of its compute position 1, got 0")
def reorder_of_a_shared_loop(fd: FusionDefinition) -> None:
    middle, last = chain(fd)
    fd.sched.inline_at(last, 1)
    middle.reorder({0: 1})


@case(r"swizzle: expected two axes of T2 of one power-of-two extent, got iS7\{8\} and iS9\{4\}")
def swizzle_of_different_extents(fd: FusionDefinition) -> None:
    chain(fd)[1].split(0, 8).split(2, 4).swizzle(1, 3)


@case(r"swizzle: expected two axes of T2 of one power-of-two extent, got iS7\{8\} and iS7\{8\}")
def swizzle_with_itself(fd: FusionDefinition) -> None:
    chain(fd)[1].split(0, 8).swizzle(1, 1)


@case(r"swizzle: expected two iteration or two reduction axes of T\d, got \w+\{4\} and \w+\{4\}")
def swizzle_of_iteration_and_reduction(fd: FusionDefinition) -> None:
    x = fd.define_tensor([4, 4], contiguity=True)
    total = fd.ops.sum(x, [1])
    fd.add_output(total)
    total.swizzle(1, 0)


@case(
    r"swizzle: expected two iteration or two reduction axes of T\d, got iS\d+\{4\} and bS\d+\{4\}"
)
def swizzle_of_iteration_and_broadcast(fd: FusionDefinition) -> None:
    y = fd.ops.neg(fd.define_tensor([1, -1], contiguity=[None, True]))
    fd.add_output(y)
    y.split(1, 4, False).split(0, 4).swizzle(2, 1)


@case(r"swizzle: expected two axes of T\d of one power-of-two extent, got bS\d+\{1 ex 3\}")
def swizzle_of_expanded_axes_of_different_sizes(fd: FusionDefinition) -> None:
    one = fd.define_tensor([-1, 1, 1], contiguity=[True, None, None])
    whole = fd.ops.expand(one, [-1, 2, 3])
    fd.add_output(whole)
    whole.swizzle(2, 1)


@case(r"axis: expected an axis of T2 in \[-2, 1\], got -3")
def no_such_axis(fd: FusionDefinition) -> None:
    chain(fd)[1].axis(-3)


# -- rewriting


@case(r"rfactor: expected reduction axes of T1, got iS2\{i0\}")
def rfactor_of_an_iteration_axis(fd: FusionDefinition) -> None:
    row_sums(fd).split(1, 4).rfactor([0])


@case(r"rfactor: expected some but not all reduction axes of T1, got \[1\]")
def rfactor_of_all_reduction_axes(fd: FusionDefinition) -> None:
    row_sums(fd).rfactor([1])


@case(r"rfactor: expected some but not all reduction axes of T1, got \[\]")
def rfactor_of_no_axis(fd: FusionDefinition) -> None:
    row_sums(fd).split(1, 4).rfactor([])


@case(r"rfactor: expected an axis of T1 in \[-2, 1\], got 7")
def rfactor_of_an_axis_that_is_not_there(fd: FusionDefinition) -> None:
    row_sums(fd).rfactor([7])


@case(r"rfactor: expected T2 to be the result of a reduction, got T2_g_float\[iS4\{i0\}, iS5")
def rfactor_of_a_pointwise_tensor(fd: FusionDefinition) -> None:
    chain(fd)[1].rfactor([0])


@case(r"cache_after: expected T2 to have consumers, got a tensor without")
def cache_after_an_output(fd: FusionDefinition) -> None:
    chain(fd)[1].cache_after()


@case(r"cache_before: expected T0 to be computed, got an input of the fusion")
def cache_before_an_input(fd: FusionDefinition) -> None:
    x = matrix(fd)
    fd.add_output(fd.ops.neg(x))
    x.cache_before()


@case(r"set_memory_type: expected T2, an input or output, in global memory, got shared")
def output_in_shared_memory(fd: FusionDefinition) -> None:
    chain(fd)[1].set_memory_type(MemoryType.shared)


# -- inlining


@case(r"inline_at: expected a position of T2 in \[-3, 2\], got 3")
def inline_at_no_position(fd: FusionDefinition) -> None:
    fd.sched.inline_at(chain(fd)[1], 3)


@case(
    r"inline_at: expected T1 to be inlined at 1, got at most 0: axis iS2\{i0\} has no match in T2"
)
def inline_into_other_loops(fd: FusionDefinition) -> None:
    _, last = chain(fd)
    last.split(0, 4)
    fd.sched.inline_at(last, 1)


@case(
    r"inline_at: expected T1 to be inlined at 2, got at most 1: axis rS3\{i1\} is a reduction axis"
)
def inline_of_a_reduction_axis(fd: FusionDefinition) -> None:
    x = matrix(fd)
    last = fd.ops.sub(x, fd.ops.sum(x, [1], keepdim=True))
    fd.add_output(last)
    fd.sched.inline_at(last, 2)


@case(r"inline: expected axis 0 of T1 to match T2, got iS2\{i0\}")
def a_consumer_that_leaves_a_shared_loop(fd: FusionDefinition) -> None:
    _, last = chain(fd)
    fd.sched.inline_at(last, 1)
    last.split(0, 4)


@case(r"compute_at: expected mode standard, best_effort or most_inlined, got fast")
def compute_at_in_no_mode(fd: FusionDefinition) -> None:
    fd.sched.compute_at(*chain(fd), 1, "fast")


@case(r"compute_at: expected a position of T2 in \[0, 2\], got 9")
def compute_at_no_position(fd: FusionDefinition) -> None:
    fd.sched.compute_at(*chain(fd), 9)


@case(r"compute_at: expected T1 to depend on T2, got no path between them")
def compute_at_the_wrong_way_round(fd: FusionDefinition) -> None:
    middle, last = chain(fd)
    fd.sched.compute_at(last, middle, 1)


@case(r"inline_at: expected T1 to be inlined at 2, got at most 1: axis rS3\{i1\} is a reduction")
def compute_at_a_reduction(fd: FusionDefinition) -> None:
    x = matrix(fd)
    total = fd.ops.sum(x, [1], keepdim=True)
    last = fd.ops.sub(x, total)
    fd.add_output(last)
    fd.sched.compute_at(total.definition().input(0), last, 2)


@case(r"bounded_transform_backward: expected a position of T2 in \[-3, 2\], got 9")
def bounded_transform_at_no_position(fd: FusionDefinition) -> None:
    middle, last = chain(fd)
    fd.sched.bounded_transform_backward(last, 9, [middle])


# -- parallel types


@case(r"parallelize: expected T2 to use block_x once, got it again on axis ithreadIdx.x5\{i1\}")
def one_parallel_type_twice(fd: FusionDefinition) -> None:
    _, last = chain(fd)
    last.axis(0).parallelize(BLOCK_X)
    last.axis(1).parallelize(BLOCK_X)


@case(r"parallelize: expected one parallel type for the loop shared at axis 0 of T1, got grid_x, g")
def two_parallel_types_for_one_loop(fd: FusionDefinition) -> None:
    middle, last = chain(fd)
    fd.sched.inline_at(last, 1)
    middle.axis(0).parallelize(GRID_X)
    last.axis(0).parallelize(GRID_Y)


@case(
    r"parallelize: expected at most 1024 threads a block, got 2048: "
    r"64 by axis ithreadIdx.x7\{64\} of T2, 32 by axis ithreadIdx.y9\{32\} of T2"
)
def too_many_threads(fd: FusionDefinition) -> None:
    _, last = chain(fd)
    last.split(1, 64).split(0, 32)
    last.axis(1).parallelize(BLOCK_Y)
    last.axis(3).parallelize(BLOCK_X)


@case(r"parallelize: expected at most 1024 threads a block, got 3000: 3000 by axis ithreadIdx.x5")
def too_many_threads_at_this_size(fd: FusionDefinition) -> None:
    chain(fd)[1].axis(1).parallelize(BLOCK_X)


@case(r"parallelize: expected at most 1024 threads a block, got 3000: .* rthreadIdx.x3\{i1\} of T1")
def too_many_threads_in_a_reduction(fd: FusionDefinition) -> None:
    row_sums(fd).axis(1).parallelize(BLOCK_X)


@case(
    r"unroll: expected axis 1 of T2 to have a constant extent, got i1; split it by a number first"
)
def unroll_without_a_number(fd: FusionDefinition) -> None:
    chain(fd)[1].axis(1).parallelize(UNROLL)


@case(r"vectorize: expected axis 1 of T2 to have a constant extent, got i1; split it by a number f")
def vectorize_without_a_number(fd: FusionDefinition) -> None:
    chain(fd)[1].axis(1).parallelize(VECTORIZE)


@case(r"vectorize: expected axis iV7\{3\} of T2 to be a power of two up to 16 long, got 3")
def vectorize_by_three(fd: FusionDefinition) -> None:
    chain(fd)[1].split(1, 3).axis(2).parallelize(VECTORIZE)


@case(r"vectorize: expected the innermost axis of T2, got axis iV7\{4\} at 1")
def vectorize_an_outer_axis(fd: FusionDefinition) -> None:
    chain(fd)[1].split(0, 4).axis(1).parallelize(VECTORIZE)


@case(r"vectorize: expected T1 to be a copy, a read or a pointwise operation, got sum")
def vectorize_a_reduction(fd: FusionDefinition) -> None:
    row_sums(fd).split(1, 4).axis(2).parallelize(VECTORIZE)


@case(
    r"vectorize: expected the innermost axis of T0 to be contiguous, got T2 axis iV7\{4\} reads it"
)
def vectorize_a_load_that_is_not_contiguous(fd: FusionDefinition) -> None:
    x = matrix(fd, [True, False])
    last = fd.ops.neg(x)
    fd.add_output(last)
    load = x.cache_after()
    for tensor in (load, last):
        tensor.split(1, 4)
    load.axis(2).parallelize(VECTORIZE)
    fd.sched.inline_at(last, 2)


# -- memory that others can't see


@case(
    r"schedule: expected T1, which is in shared memory, to be read by the block that wrote it, "
    r"got a read across axis iblockIdx.x6\{ceildiv\(i0, 4\)\}; put it in global memory"
)
def shared_memory_read_across_blocks(fd: FusionDefinition) -> None:
    middle, last = chain(fd)
    middle.set_memory_type(MemoryType.shared)
    for tensor, factor in ((middle, 4), (last, 8)):
        tensor.split(0, factor).axis(0).parallelize(GRID_X)


@case(
    r"schedule: expected T1, which is in registers, to be read by the block that wrote it, "
    r"got a read across axis iblockIdx.x3\{i1\}; put it in global memory"
)
def registers_read_across_blocks(fd: FusionDefinition) -> None:
    middle, last = chain(fd)
    middle.axis(1).parallelize(GRID_X)
    last.axis(0).parallelize(GRID_X)


@case(
    r"schedule: expected T1, which is in registers, to be read by the thread that wrote it, "
    r"got a read across axis ithreadIdx.x3\{i1\}; put it in shared memory"
)
def registers_read_across_threads(fd: FusionDefinition) -> None:
    middle, last = chain(fd)
    middle.axis(1).parallelize(BLOCK_X)
    last.axis(0).parallelize(BLOCK_X)


@case(r"schedule: expected T2 not to share loops with T1, got a read across blocks inside a shared")
def a_read_across_blocks_inside_of_a_shared_loop(fd: FusionDefinition) -> None:
    x = matrix(fd)
    total = fd.ops.sum(x, [1])
    last = fd.ops.sub(x, fd.ops.broadcast(total, [False, True]))
    fd.add_output(total)
    fd.add_output(last)
    total.axis(1).parallelize(GRID_X)
    last.axis(1).parallelize(GRID_X)
    fd.sched.inline_at(last, 1, best_effort=True)


@pytest.mark.parametrize("name", CASES)
def test_illegal_schedule(name: str) -> None:
    schedule, message = CASES[name]
    with pytest.raises(ScheduleError) as raised:
        with FusionDefinition() as fd:
            schedule(fd)
        fd.manual_execute([torch.randn(3, 3000)])
    assert re.match(message, str(raised.value)), str(raised.value)


@pytest.mark.parametrize("kind", ["mma", "mesh_x", "stream", "tma"])
def test_parallel_types_that_no_loop_has_yet(kind: str) -> None:
    with FusionDefinition() as fd:
        chain(fd)[1].axis(0).parallelize(ParallelType[kind])
    with pytest.raises(
        UnsupportedError, match=rf"parallelize: expected axis .* of T2 .*got {kind}"
    ):
        fd.manual_execute([torch.randn(3, 5)])


@pytest.mark.parametrize("memory", [MemoryType.tensor, MemoryType.symmetric])
def test_memory_that_is_not_there_yet(memory: MemoryType) -> None:
    with FusionDefinition() as fd:
        middle, _ = chain(fd)
        with pytest.raises(UnsupportedError, match="set_memory_type: expected T1 in local, shared"):
            middle.set_memory_type(memory)


def test_a_size_with_few_enough_threads_runs_after_one_with_too_many() -> None:
    with FusionDefinition() as fd:
        _, last = chain(fd)
        last.axis(1).parallelize(BLOCK_X)
        fd.sched.parallelize_like(last)
    (small,) = fd.manual_validate([torch.randn(3, 1000)])
    assert small.shape == (3, 1000)
    with pytest.raises(ScheduleError, match="expected at most 1024 threads a block, got 1025"):
        fd.manual_execute([torch.randn(3, 1025)])
    fd.manual_validate([torch.randn(2, 17)])


def test_an_error_leaves_the_schedule_as_it_was() -> None:
    with FusionDefinition() as fd:
        _, last = chain(fd)
        last.split(1, 4)
        before = str(fd.fusion.user_schedule)
        for wrong in (
            lambda: last.split(0, 0),
            lambda: last.merge(2),
            lambda: last.reorder({0: 9}),
            lambda: last.swizzle(0, 0),
        ):
            with pytest.raises(ScheduleError):
                wrong()
        assert str(fd.fusion.user_schedule) == before
    fd.manual_validate([torch.randn(3, 5)])


@pytest.mark.parametrize(
    ("name", "misuse"),
    [
        ("split", lambda fd, b, c: b.split(None, 2)),
        ("merge", lambda fd, b, c: b.merge("x")),
        ("reorder", lambda fd, b, c: b.reorder({"a": 1})),
        ("rfactor", lambda fd, b, c: c.rfactor(1)),
        ("rfactor", lambda fd, b, c: c.rfactor(["x"])),
        ("set_allocation_domain", lambda fd, b, c: b.set_allocation_domain(3, True)),
        ("set_allocation_domain", lambda fd, b, c: b.set_allocation_domain([3], True)),
        ("cache_after", lambda fd, b, c: b.cache_after("x")),
        ("inline_at", lambda fd, b, c: fd.sched.inline_at(None)),
        ("inline_most", lambda fd, b, c: fd.sched.inline_most([3])),
        ("transform_like", lambda fd, b, c: fd.sched.transform_like(3)),
        ("parallelize_like", lambda fd, b, c: fd.sched.parallelize_like(b, 0, ["x"])),
        ("compute_at", lambda fd, b, c: fd.sched.compute_at(1, b, 2)),
    ],
)
def test_what_is_no_tensor_or_axis_is_an_error_that_names_the_method(
    name: str, misuse: Any
) -> None:
    with FusionDefinition() as fd:
        b = fd.ops.neg(fd.define_tensor([-1, -1], contiguity=True))
        c = fd.ops.sum(b, [1])
        fd.add_output(c)
        with pytest.raises((ScheduleError, TypeError), match=rf"{name}.*: expected .*, got"):
            misuse(fd, b, c)


def test_an_unknown_scheduling_function_has_neighbours() -> None:
    with FusionDefinition() as fd, pytest.raises(AttributeError, match="did you mean inline_most"):
        fd.sched.inline_mst()
