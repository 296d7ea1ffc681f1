"""Hand-written and random schedules of scans: legal ones give torch's values, others are refused.

A scan's loops run through its axis in order, and only the innermost of them in vector lanes.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition, ParallelType, SchedulerType
from pyfuser.errors import ScheduleError

pytestmark = pytest.mark.usefixtures("poison")

GRID_X, GRID_Y, BLOCK_X, BLOCK_Y, UNROLL, SERIAL = (
    ParallelType[name] for name in ("grid_x", "grid_y", "block_x", "block_y", "unroll", "serial")
)


def scanned(fd: FusionDefinition, dim: int) -> tuple[Any, Any]:
    """T0 -> T1 = T0 * 2 -> T2 = cumsum along `dim` -> T3 = T2 + T1; returns T2 and T3."""
    x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
    doubled = fd.ops.mul(x, 2.0)
    total = fd.ops.cumsum(doubled, dim)
    last = fd.ops.add(total, doubled)
    fd.add_output(last)
    return total, last


def follow(fd: FusionDefinition, last: Any) -> None:
    """Every other tensor is computed in the loops of the last one."""
    fd.sched.transform_like(last)
    fd.sched.parallelize_like(last)
    fd.sched.inline_most()


SHAPES = [(5, 37), (37, 5), (1, 70), (70, 1)]
EMPTY = [(0, 4), (4, 0)]


def check(fd: FusionDefinition, dim: int, shapes: list[tuple[int, int]]) -> None:
    for shape in shapes:
        x = torch.randint(-8, 8, shape).float()
        (got,) = fd.manual_execute([x])
        assert torch.equal(got, (x * 2).cumsum(dim) + x * 2), shape


def rows_in_lanes(last: Any) -> None:
    """[row][scanned / 16][scanned % 16: lanes]"""
    last.split(1, 16)
    last.axis(0).parallelize(GRID_X)
    last.axis(2).parallelize(BLOCK_X)


def rows_in_threads(last: Any) -> None:
    """[row / 8: tasks][row % 8: lanes][scanned]"""
    last.split(0, 8)
    last.axis(0).parallelize(GRID_X)
    last.axis(1).parallelize(BLOCK_X)


def scan_outside(last: Any) -> None:
    """[scanned / 4][scanned % 4: unrolled][row]: a running result for each row"""
    last.split(1, 4)
    last.reorder({0: 2})
    last.axis(1).parallelize(UNROLL)


def scan_between(last: Any) -> None:
    """[row / 4][scanned][row % 4]"""
    last.split(0, 4)
    last.reorder({1: 2})
    last.axis(0).parallelize(GRID_X)


@pytest.mark.parametrize("loops", [rows_in_lanes, rows_in_threads, scan_outside, scan_between])
@pytest.mark.parametrize("is_inlined", [True, False])
def test_hand_written_schedules(loops: Any, is_inlined: bool) -> None:
    with FusionDefinition() as fd:
        _, last = scanned(fd, 1)
        loops(last)
        if is_inlined:
            follow(fd, last)
        else:
            fd.sched.transform_like(last)
    if is_inlined or loops is scan_outside:
        check(fd, 1, SHAPES + EMPTY)


@pytest.mark.parametrize("seed", range(80))
def test_random_schedules(seed: int) -> None:
    choose = random.Random(seed)
    dim = choose.randrange(2)
    with FusionDefinition() as fd:
        _, last = scanned(fd, dim)
        rank = 2
        for _ in range(choose.randrange(4)):
            last.split(choose.randrange(rank), choose.choice([2, 3, 8]), choose.random() < 0.8)
            rank += 1
        order = choose.sample(range(rank), rank)
        if choose.random() < 0.6:
            last.reorder(dict(enumerate(order)))
        for kind in choose.sample([GRID_X, GRID_Y, BLOCK_X, BLOCK_Y], choose.randrange(3)):
            last.axis(choose.randrange(rank)).parallelize(kind)
        follow(fd, last)
    try:
        check(fd, dim, SHAPES)
    except ScheduleError as error:
        known = ("in the order of its elements", "which is scanned, to be a loop")
        assert any(text in str(error) for text in known), error


def _errors(change: Any) -> str:
    with pytest.raises(ScheduleError) as raised:
        with FusionDefinition() as fd:
            _, last = scanned(fd, 1)
            change(last)
            follow(fd, last)
        fd.manual_execute([torch.randn(3, 30)])
    return str(raised.value)


def test_the_parts_of_a_scanned_axis_stay_in_order() -> None:
    def change(last: Any) -> None:
        last.split(1, 4)
        last.reorder({1: 2})

    assert "expected the loops over the scanned axis of T2 in the order" in _errors(change)


def test_a_scanned_axis_is_not_merged() -> None:
    assert "expected the scanned axis of T2 to be split only" in _errors(lambda t: t.merge(0))


@pytest.mark.parametrize("kind", [GRID_X, BLOCK_X])
def test_the_outer_part_of_a_scan_runs_in_one_thread(kind: ParallelType) -> None:
    def change(last: Any) -> None:
        last.split(1, 4)
        last.axis(1).parallelize(kind)

    message = _errors(change)
    assert "of T2, which is scanned, to be a loop" in message
    assert kind.name in message


def test_the_greedy_scheduler_by_its_name() -> None:
    x = torch.randn(6, 40)
    with FusionDefinition() as fd:
        scanned(fd, 1)
        wanted = [SchedulerType.greedy]
        assert fd.sched.find_compatible_schedulers(fd.fusion, [x]) == wanted
        assert not fd.sched.can_schedule(fd.fusion, SchedulerType.pointwise, [x])[0]
        fd.sched.schedule(fd.fusion, SchedulerType.greedy, [x])
    fd.manual_validate([x])


def test_the_loops_of_a_scan_in_text() -> None:
    with FusionDefinition() as fd:
        _, last = scanned(fd, 1)
        follow(fd, last)
        text = str(fd.fusion.print_kernel())
    lines = [line.strip() for line in text.splitlines()]
    start = lines.index("T2_running[0] = identity of sum")
    assert lines[start - 1] == "allocate T2_running: local Double[1]"
    assert lines[start + 1].startswith("for j1 in [0, i1)")
    assert "T2[0] = (T2_running[0] sum= T1[0])" in lines[start:]


@pytest.mark.parametrize("loops", [rows_in_lanes, rows_in_threads, scan_outside, scan_between])
def test_hand_written_schedules_of_reversed_scans(loops: Any) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        total = fd.ops.cumsum(fd.ops.mul(x, 2.0), 1, reverse=True)
        fd.add_output(fd.ops.add(total, 1.0))
        total.reverse(1)
        loops(total)
        follow(fd, total)
    for shape in SHAPES:
        y = torch.randint(-8, 8, shape).float()
        (got,) = fd.manual_execute([y])
        assert torch.equal(got, (y * 2).flip(1).cumsum(1).flip(1) + 1), shape


def test_a_reversed_scan_needs_a_reversed_loop() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        total = fd.ops.cumsum(x, 1, reverse=True)
        fd.add_output(total)
        follow(fd, total)
    with pytest.raises(ScheduleError, match="from its last to its first element"):
        fd.manual_execute([torch.ones(3, 4)])
