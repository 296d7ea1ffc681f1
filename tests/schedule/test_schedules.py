"""The classic schedules, hand-written through the public interface and run on the CPU.

Each builder defines a fusion and schedules it as for a GPU. Each is run as one kernel, compiled
once, at sizes that have no convenient divisors, into poisoned memory, and compared with the
evaluator in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition, MemoryType, SchedulerType
from tests.schedule.by_hand import (
    BLOCK_X,
    BLOCK_Y,
    GRID_X,
    GRID_Y,
    MATRICES,
    PAIRS,
    SERIAL,
    UNROLL,
    UNSWITCH,
    VECTORIZE,
    float_matrix,
    kernel_of,
    parallelize,
    run,
)

pytestmark = pytest.mark.usefixtures("poison")

# -- pointwise


def add_chain() -> tuple[FusionDefinition, list[Any]]:
    """t0 + (t1 + 2): merged, split by 128 and 4, the producer inlined."""
    with FusionDefinition() as fd:
        t0, t1 = float_matrix(fd), float_matrix(fd)
        t2 = fd.ops.add(t1, 2.0)
        t3 = fd.ops.add(t0, t2)
        fd.add_output(t3)
        t3.merge(0).split(0, 128).split(0, 4)
        fd.sched.transform_like(t3)
        parallelize(t3, (GRID_X, UNROLL, BLOCK_X))
        fd.sched.inline_at(t3, 1)
        fd.sched.parallelize_like(t3)
    return fd, [t0, t1, t2, t3]


def test_add_chain() -> None:
    fd, _ = add_chain()
    run(fd, [(shape, shape) for shape in PAIRS])


@pytest.mark.cpu
def test_add_chain_prints_every_stage(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("PYFUSER_DUMP", "scheduled,kernel,llvm")
    fd, _ = add_chain()
    fd.manual_validate([torch.randn(3, 5), torch.randn(3, 5)])
    dumped = capsys.readouterr().err
    assert [f"---- {s} ----" in dumped for s in ("scheduled", "kernel", "llvm")] == [True] * 3
    assert "iblockIdx.x" in dumped and "ithreadIdx.x" in dumped and "iUR" in dumped
    assert dumped.index("blockIdx.x in") < dumped.index("threadIdx.x in")
    assert "define " in dumped


def test_handles_stay_valid_after_scheduling_and_running() -> None:
    fd, (t0, _, t2, t3) = add_chain()
    text = repr(fd)
    run(fd, [((3, 5), (3, 5))])
    assert [str(axis.extent()) for axis in t3.get_loop_domain()][1:] == ["4", "128"]
    assert [str(axis.extent()) for axis in t3.get_logical_domain()] == ["i0", "i1"]
    assert t3.definition().input(1) is t2 and t2.uses() == [t3.definition()]
    assert t0.get_loop_domain() != [] and repr(fd) == text
    with pytest.raises(AssertionError, match="KernelExecutor already exists"):
        fd.execute([torch.randn(3, 5), torch.randn(3, 5)])


def test_unswitch_and_several_block_axes() -> None:
    with FusionDefinition() as fd:
        x = float_matrix(fd)
        y = fd.ops.mul(fd.ops.tanh(x), 0.5)
        fd.add_output(y)
        y.split(1, 16).split(0, 8).split(0, 2)
        fd.sched.transform_like(y)
        parallelize(y, (GRID_Y, UNSWITCH, BLOCK_Y, GRID_X, BLOCK_X))
        fd.sched.parallelize_like(y)
        fd.sched.inline_most()
    run(fd, MATRICES)


def test_outer_split_and_reorder() -> None:
    with FusionDefinition() as fd:
        x = float_matrix(fd)
        y = fd.ops.neg(fd.ops.exp(x))
        fd.add_output(y)
        y.outer_split(1, 3).split(0, 5, inner_split=False)
        y.reorder({0: 3, 3: 0})
        fd.sched.transform_like(y)
        fd.sched.inline_most()
    assert [str(a.extent()) for a in y.get_loop_domain()][-1] == "5"
    run(fd, MATRICES)


SUMMANDS: dict[str, Callable[[FusionDefinition], Any]] = {
    "broadcast": lambda fd: fd.ops.broadcast(
        fd.define_tensor([-1], contiguity=True), [True, False]
    ),
    "permuted": lambda fd: fd.ops.permute(fd.ops.sin(float_matrix(fd)), [1, 0]),
    "reduced": lambda fd: fd.ops.sum(float_matrix(fd), [0], keepdim=True),
}


@pytest.mark.parametrize("summand", SUMMANDS)
def test_what_is_stored_in_vectors_is_computed_before_them(summand: str) -> None:
    """Only copies, reads and pointwise operations can share a vectorized axis."""
    with FusionDefinition() as fd:
        y = fd.ops.add(float_matrix(fd), SUMMANDS[summand](fd))
        fd.add_output(y)
        y.cache_before()
        y.split(1, 4)
        fd.sched.transform_like(y)
        y.axis(-1).parallelize(VECTORIZE)
        fd.sched.inline_most()
    sizes = {"broadcast": [(8,), (64,)], "permuted": [(8, 6), (64, 64)]}
    others = sizes.get(summand, [(6, 8), (64, 64)])
    run(fd, [((6, 8), others[0]), ((64, 64), others[1])])


def vectorized(threads: int = 32, width: int = 4) -> FusionDefinition:
    """x * 2 + 1 with vector loads and stores."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True, dtype=DataType.Float)
        y = fd.ops.add(fd.ops.mul(x, 2.0), 1.0)
        fd.add_output(y)
        load, last = x.cache_after(), y.cache_before()
        y.split(0, width).split(0, threads)
        fd.sched.transform_like(y)
        parallelize(y, (GRID_X, BLOCK_X))
        fd.sched.parallelize_like(y)
        for tensor in (load, y):
            tensor.axis(2).parallelize(VECTORIZE)
        fd.sched.inline_at(y, 2)
        del last
    return fd


@pytest.mark.parametrize("width", [2, 4, 8])
def test_vectorized_loads_and_stores(width: int) -> None:
    fd = vectorized(width=width)
    run(fd, [((n,),) for n in (1, 7, 128, 1000, 1001, 0)])


# -- reductions


def two_step(kinds: Sequence[tuple[Any, int]]) -> None:
    for tensor, axis in kinds:
        tensor.axis(0).parallelize(GRID_X)
        tensor.axis(axis).parallelize(BLOCK_X)


def test_two_step_reduction_with_rfactor() -> None:
    with FusionDefinition() as fd:
        x = float_matrix(fd)
        y = fd.ops.sum(x, [1])
        fd.add_output(y)
        y.split(1, 32)
        partial = y.rfactor([1])
        two_step([(y, 1), (partial, 2)])
        fd.sched.inline_most()
    assert len(partial.get_logical_domain()) == 3
    assert [axis.is_reduction() for axis in y.get_loop_domain()] == [False, True]
    run(fd, MATRICES)


def test_rfactor_without_threads() -> None:
    with FusionDefinition() as fd:
        x = float_matrix(fd)
        y = fd.ops.sum(x, [0, 1])
        fd.add_output(y)
        y.merge(0).split(0, 7)
        y.rfactor([0])
    run(fd, MATRICES)


def test_several_rfactors_of_one_reduction() -> None:
    with FusionDefinition() as fd:
        x = float_matrix(fd)
        y = fd.ops.max(x, [1])
        fd.add_output(y)
        y.split(1, 8).split(1, 4)
        first = y.rfactor([1])
        second = y.rfactor([1])
        fd.sched.inline_most()
    assert first is not second
    run(fd, [((a, b),) for a, b in PAIRS if b and a])


def test_reduction_through_shared_memory() -> None:
    with FusionDefinition() as fd:
        x = float_matrix(fd)
        y = fd.ops.sum(x, [1])
        fd.add_output(y)
        row = x.cache_after()
        row.set_memory_type(MemoryType.shared)
        row.split(1, 64)
        y.split(1, 64)
        partial = y.rfactor([1])
        two_step([(y, 1), (partial, 2), (row, 2)])
        fd.sched.inline_at(y, 1)
    assert "shared" in kernel_of(fd)
    run(fd, MATRICES)


def test_grid_reduction_has_two_phases() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True, dtype=DataType.Float)
        total = fd.ops.sum(x, [0])
        y = fd.ops.mul(total, 2.0)
        fd.add_output(y)
        total.split(0, 128).split(0, 4)
        partial = total.rfactor([1])
        two_step([(total, 1), (partial, 2)])
    assert kernel_of(fd).count("phase") == 2
    run(fd, [((n,),) for n in (1, 127, 513, 100_003)])


def test_grid_reduction_of_rows() -> None:
    with FusionDefinition() as fd:
        x = float_matrix(fd)
        y = fd.ops.sum(x, [1])
        fd.add_output(y)
        y.split(1, 16)
        parallelize(y, (GRID_Y, GRID_X, BLOCK_X))
    assert kernel_of(fd).count("phase") == 2
    run(fd, MATRICES)


@pytest.mark.parametrize("op", ["sum", "max", "welford"])
def test_a_reduction_that_shares_a_loop_over_the_grid(op: str) -> None:
    """Its own axis is serial, but runs as its producer's does."""
    with FusionDefinition() as fd:
        power = fd.ops.exp(float_matrix(fd))
        made = getattr(fd.ops, op)(fd.ops.neg(power), [0])
        for output in made if isinstance(made, tuple) else (made,):
            fd.add_output(output)
        power.axis(0).parallelize(GRID_X)
        fd.sched.inline_most()
    assert kernel_of(fd).count("phase") == 2
    run(fd, [((n, 4),) for n in (5, 1000, 1)])


def test_threads_exchange_elements_inside_a_loop_over_others() -> None:
    """c is written with threads inside, and read with threads outside."""
    with FusionDefinition() as fd:
        c = fd.ops.set(float_matrix(fd))
        y = fd.ops.neg(c)
        fd.add_output(y)
        c.set_memory_type(MemoryType.shared)
        for tensor in (y, c):
            tensor.split(0, 4)
        c.split(2, 16)
        y.split(2, 16, inner_split=False)
        parallelize(c, (GRID_X, BLOCK_Y, SERIAL, BLOCK_X))
        parallelize(y, (GRID_X, BLOCK_Y, BLOCK_X, SERIAL))
        fd.sched.inline_at(y, 2)
    run(fd, MATRICES)


def test_outer_reduction_with_threads_on_columns() -> None:
    with FusionDefinition() as fd:
        x = float_matrix(fd)
        y = fd.ops.sum(x, [0])
        fd.add_output(y)
        y.split(1, 32).split(0, 4)  # [r_o, r_i, i_o, i_i]
        partial = y.rfactor([0])  # [r_o, i_4, i_o, i_i]
        partial.reorder({2: 0, 3: 1})
        y.reorder({1: 0, 2: 1})
        for tensor in (y, partial):
            parallelize(tensor, (GRID_X, BLOCK_X))
        fd.sched.inline_at(y, 2)
    run(fd, MATRICES)


def test_welford_with_rfactor() -> None:
    with FusionDefinition() as fd:
        mean, squares, count = fd.ops.welford(float_matrix(fd), [1])
        for output in (mean, squares, count):
            fd.add_output(output)
        mean.split(1, 16)
        mean.rfactor([1])
        mean.axis(0).parallelize(GRID_X)
        mean.axis(1).parallelize(BLOCK_X)
        fd.sched.inline_most()
    run(fd, [((a, b),) for a, b in PAIRS if b])


def test_softmax_of_rows_in_registers() -> None:
    with FusionDefinition() as fd:
        x = float_matrix(fd)
        highest = fd.ops.max(x, [1], keepdim=True)
        e = fd.ops.exp(fd.ops.sub(x, highest))
        total = fd.ops.sum(e, [1], keepdim=True)
        y = fd.ops.div(e, total)
        fd.add_output(y)
        row = x.cache_after()
        y.split(1, 32)
        fd.sched.transform_like(y)
        reductions = [t.definition().input(0) for t in (highest, total)]
        parallelize(y, (GRID_X, SERIAL, BLOCK_X))
        fd.sched.parallelize_like(y)
        for reduction in reductions:
            reduction.rfactor([1])
        fd.sched.inline_most()
    assert row.uses() != [] and kernel_of(fd).count("phase") == 1
    run(fd, [((a, b),) for a, b in PAIRS if a and b])


# -- automatic schedules for manual execution

AUTOMATIC: dict[str, Callable[[FusionDefinition, Any], Any]] = {
    "pointwise": lambda fd, x: fd.ops.tanh(x),
    "reduction": lambda fd, x: fd.ops.sum(x, [1]),
    "inner_persistent": lambda fd, x: fd.ops.sub(x, fd.ops.max(x, [1], keepdim=True)),
    "outer_persistent": lambda fd, x: fd.ops.sub(x, fd.ops.max(x, [0], keepdim=True)),
    "inner_outer_persistent": lambda fd, x: fd.ops.max(fd.ops.sin(x), [1]),
    "transpose": lambda fd, x: fd.ops.neg(fd.ops.permute(x, [1, 0])),
    "resize": lambda fd, x: fd.ops.exp(fd.ops.pad(x, [1, 2])),
    "greedy": lambda fd, x: fd.ops.cumsum(fd.ops.mul(x, 2.0), 1),
}


def automatic(name: str) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = float_matrix(fd)
        fd.add_output(AUTOMATIC[name](fd, x))
        if name == "inner_outer_persistent":
            fd.add_output(fd.ops.max(fd.ops.cos(x), [0]))
    return fd


@pytest.mark.parametrize("name", AUTOMATIC)
def test_automatic_schedules_run_by_hand(name: str) -> None:
    shape = (1037, 129)  # enough rows for the workers of any target
    kind, inputs = SchedulerType[name], [torch.randn(shape)]
    fd = automatic(name)
    assert fd.sched.can_schedule(fd.fusion, kind, inputs) == (True, "")
    compatible = fd.sched.find_compatible_schedulers(fd.fusion, inputs)
    assert kind in compatible and SchedulerType.matmul not in compatible
    params = fd.sched.schedule(fd.fusion, kind, inputs)
    assert params.scheduler_type is kind
    run(fd, [(shape,)])
    again = automatic(name)
    assert again.sched.compute_heuristics(again.fusion, kind, inputs) == params
    assert again.sched.schedule(again.fusion, kind, params) is None
    run(again, [(shape,), ((5, 64),)])


def test_a_scheduler_says_why_it_refuses() -> None:
    inputs = [torch.randn(8, 8)]
    for name, wrong in (
        ("pointwise", "reduction"),
        ("pointwise", "transpose"),
        ("pointwise", "resize"),
        ("reduction", "pointwise"),
        ("reduction", "greedy"),
        ("inner_persistent", "inner_outer_persistent"),
    ):
        fd = automatic(name)
        accepted, reason = fd.sched.can_schedule(fd.fusion, SchedulerType[wrong], inputs)
        assert not accepted and f"_{wrong}_ ***rejected*** because : " in reason
