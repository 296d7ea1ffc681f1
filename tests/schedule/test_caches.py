"""Hand-written schedules with caches, tiles in shared memory, scratch, and compute positions.

Like those of test_schedules.py, each is one kernel for all sizes, in poisoned memory.
"""

from __future__ import annotations

from typing import Any

import pytest

from pyfuser import FusionDefinition, MemoryType, ScheduleError
from tests.schedule.by_hand import (
    BLOCK_X,
    BLOCK_Y,
    GRID_X,
    GRID_Y,
    MATRICES,
    PAIRS,
    SERIAL,
    float_matrix,
    kernel_of,
    parallelize,
    run,
)

pytestmark = pytest.mark.usefixtures("poison")


def transpose(swizzled: bool) -> FusionDefinition:
    """A transpose through a tile of 32 x 32 in shared memory."""
    with FusionDefinition() as fd:
        x = float_matrix(fd)
        y = fd.ops.permute(x, [1, 0])
        fd.add_output(y)
        tile = x.cache_after()
        tile.set_memory_type(MemoryType.shared)
        for tensor in (tile, y):
            tensor.split(0, 32).split(2, 32).reorder({0: 0, 2: 1, 1: 2})
        tile.reorder({0: 1, 1: 0})
        if swizzled:
            tile.swizzle(2, 3)
        for tensor in (tile, y):
            parallelize(tensor, (GRID_X, GRID_Y, BLOCK_Y, BLOCK_X))
        fd.sched.inline_at(y, 2)
    return fd


@pytest.mark.parametrize("swizzled", [False, True])
def test_transpose_through_a_shared_tile(swizzled: bool) -> None:
    fd = transpose(swizzled)
    assert "shared" in kernel_of(fd)
    run(fd, MATRICES)


def test_swizzled_loops_cover_every_element() -> None:
    with FusionDefinition() as fd:
        y = fd.ops.mul(float_matrix(fd), 3.0)
        fd.add_output(y)
        y.split(0, 8).split(2, 8).reorder({1: 2, 2: 1}).swizzle(2, 3)
    run(fd, MATRICES)


def chain(fd: FusionDefinition) -> tuple[Any, Any, Any, Any]:
    x = float_matrix(fd)
    a = fd.ops.exp(x)
    b = fd.ops.add(a, 1.0)
    y = fd.ops.log(b)
    fd.add_output(y)
    return x, a, b, y


@pytest.mark.parametrize(
    ("mode", "position", "inlined"),
    [("standard", 1, [1, 1]), ("best_effort", 2, [2, 2]), ("most_inlined", 1, [3, 3])],
)
def test_compute_at(mode: str, position: int, inlined: list[int]) -> None:
    with FusionDefinition() as fd:
        _, a, b, y = chain(fd)
        y.split(1, 16)
        fd.sched.transform_like(y)
        fd.sched.compute_at(a, y, position, mode)
        parallelize(y, (GRID_X,))
        fd.sched.parallelize_like(y)
    schedule = fd.fusion.user_schedule
    assert [schedule[t].compute_at for t in (a, b)] == inlined
    run(fd, MATRICES)


def test_compute_at_stops_at_a_reduction() -> None:
    with FusionDefinition() as fd:
        x = float_matrix(fd)
        a = fd.ops.exp(x)
        total = fd.ops.sum(a, [1], keepdim=True)
        y = fd.ops.div(a, total)
        fd.add_output(y)
        fd.sched.compute_at(a, y, 2, "best_effort")
    assert fd.fusion.user_schedule[a].compute_at == 1
    run(fd, [((a, b),) for a, b in PAIRS if a and b])


def test_bounded_transform_backward_and_parallelize_like() -> None:
    with FusionDefinition() as fd:
        _, a, b, y = chain(fd)
        y.merge(0).split(0, 64)
        parallelize(y, (GRID_X, BLOCK_X))
        fd.sched.bounded_transform_backward(y, 2, [a], propagate_parallel_type=True)
        fd.sched.inline_most()
    assert "threadIdx.x" in str(a) and "blockIdx.x" in str(b)
    run(fd, MATRICES)


def test_bounded_transform_backward_keeps_shared_loops() -> None:
    with FusionDefinition() as fd:
        _, a, _, y = chain(fd)
        y.split(1, 8)
        fd.sched.transform_like(y)
        fd.sched.inline_most()
        before = str(fd.fusion.user_schedule)
        with pytest.raises(ScheduleError, match=r"expected T. to keep the loops .* \(3\), got 2"):
            fd.sched.bounded_transform_backward(y, 0, [a])
        assert str(fd.fusion.user_schedule) == before
    run(fd, MATRICES)


def test_parallelize_like_selects_tensors_and_types() -> None:
    with FusionDefinition() as fd:
        _, a, b, y = chain(fd)
        y.split(1, 8)
        fd.sched.transform_like(y)
        parallelize(y, (GRID_X, SERIAL, BLOCK_X))
        fd.sched.parallelize_like(y, -1, [b], {GRID_X})
    assert "blockIdx.x" in str(b) and "threadIdx.x" not in str(b)
    assert "Idx" not in str(a)


def test_caches_around_a_computation() -> None:
    with FusionDefinition() as fd:
        x = float_matrix(fd)
        y = fd.ops.relu(fd.ops.sub(x, 0.25))
        fd.add_output(y)
        load, store = x.cache_after(), y.cache_before()
        y.split(1, 8)
        fd.sched.transform_like(y)
        parallelize(y, (GRID_X, SERIAL, BLOCK_X))
        fd.sched.parallelize_like(y)
        fd.sched.inline_most()
    assert load.definition().input(0) is x and y.definition().input(0) is store
    run(fd, MATRICES)


def test_a_tensor_in_global_scratch_is_read_by_other_blocks() -> None:
    with FusionDefinition() as fd:
        x = float_matrix(fd)
        total = fd.ops.sum(x, [1])
        y = fd.ops.sub(x, fd.ops.broadcast(total, [False, True]))
        fd.add_output(y)
        total.set_memory_type(MemoryType.global_)
        total.axis(0).parallelize(GRID_X)
        y.merge(0).split(0, 64)
        parallelize(y, (GRID_X, BLOCK_X))
        fd.sched.inline_most([t for t in fd.fusion.vals() if t not in (x, y, total)])
    assert kernel_of(fd).count("phase") == 2
    run(fd, [((3, 5),), ((37, 129),)])
