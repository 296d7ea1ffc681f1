"""Reductions over the grid in one launch: the last block to arrive combines the partial results.

Blocks and threads run in two orders, and the results must have the same bits in both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from pyfuser.devices.cuda import codegen
from pyfuser.devices.cuda.arrival_counters import ArrivalCounters
from pyfuser.devices.cuda.codegen import generate
from pyfuser.dtypes import DataType
from pyfuser.ir.fusion import Fusion
from pyfuser.ir.schedule import ScheduledFusion
from pyfuser.ir.vals import TensorView
from pyfuser.ops import builders
from pyfuser.ops.binding import bind
from pyfuser.ops.evaluator import evaluate
from pyfuser.schedule.inlining import inline_most
from pyfuser.schedule.registry import SCHEDULERS
from pyfuser.target.target import PORTABLE_LIMITS
from tests.cuda.emulate import cuda_kernel, run_emulated
from tests.cuda.examples import BLOCK_X, GRID_X, input_tensor
from tests.cuda.host_compiler import requires_host_compiler
from tests.support.targets import SM_90

Outputs = list[TensorView]
Build = Callable[[Fusion, TensorView], Outputs]


def scheduled(fusion: Fusion, inputs: list[torch.Tensor]) -> ScheduledFusion:
    """By the reduction scheduler."""
    scheduler = next(each for each in SCHEDULERS if each.name == "reduction")
    return scheduler.schedule(
        fusion, scheduler.heuristics(fusion, bind(fusion, inputs).sizes, SM_90)
    )


def launches(made: ScheduledFusion) -> int:
    return len(generate(cuda_kernel(made)).launches)


def everything(fusion: Fusion, x: TensorView) -> Outputs:
    return [builders.sum(fusion, x, [0, 1])]


def columns(fusion: Fusion, x: TensorView) -> Outputs:
    return [builders.sum(fusion, x, [0])]


def rows(fusion: Fusion, x: TensorView) -> Outputs:
    return [builders.sum(fusion, x, [1])]


def scaled_maximum(fusion: Fusion, x: TensorView) -> Outputs:
    """An epilogue of the reduced values."""
    largest = builders.max(fusion, builders.abs(fusion, x), [1])
    return [builders.div(fusion, largest, 127.0), largest]


def moments(fusion: Fusion, x: TensorView) -> Outputs:
    variance, mean = builders.var_mean(fusion, x, [0], 1, False)
    return [builders.rsqrt(fusion, variance), mean]


def moments_of_everything(fusion: Fusion, x: TensorView) -> Outputs:
    return list(builders.var_mean(fusion, x, [0, 1], 0, False))


def several(fusion: Fusion, x: TensorView) -> Outputs:
    outputs = [builders.sum(fusion, x, [1]), builders.min(fusion, x, [1])]
    return [*outputs, builders.sum(fusion, builders.mul(fusion, x, x), [1])]


LARGE = [(everything, (300, 1001)), (columns, (3001, 67)), (rows, (3, 70001))]
LARGE += [(scaled_maximum, (2, 66000)), (moments, (2003, 130)), (several, (5, 40961))]
LARGE += [(moments_of_everything, (257, 521)), (columns, (40009, 1)), (rows, (1, 40009))]


def built(build: Build, dtype: DataType = DataType.Float) -> Fusion:
    fusion = Fusion()
    for output in build(fusion, input_tensor(fusion, 2, dtype=dtype)):
        fusion.add_output(output)
    return fusion


def compare(build: Build, x: torch.Tensor, dtype: DataType = DataType.Float) -> ScheduledFusion:
    """The emulated results against those of the same definition in float64."""
    made = scheduled(built(build, dtype), [x])
    want = evaluate(built(build, DataType.Double), [x.double()])
    tolerance = 1e-4 if dtype is DataType.Float else 1e-2
    for got, exact in zip(run_emulated(made, [x]), want, strict=True):
        torch.testing.assert_close(
            got.double(), exact, rtol=tolerance, atol=10 * tolerance, equal_nan=True
        )
    return made


@requires_host_compiler
@pytest.mark.parametrize(("build", "shape"), LARGE, ids=[f"{b.__name__} of {s}" for b, s in LARGE])
def test_large_reductions_are_split_and_finished_by_the_last_block(build: Build, shape):
    torch.manual_seed(0)
    made = compare(build, torch.randn(shape))
    assert launches(made) == 1
    assert "is_last_block" in generate(cuda_kernel(made)).text


@requires_host_compiler
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0), (1, 1), (37, 131)], ids=str)
def test_the_kernels_of_large_reductions_are_right_for_other_sizes(shape):
    """A kernel is made for the sizes of a call; it is right for all."""
    torch.manual_seed(0)
    for build, large in LARGE[:3]:
        made = scheduled(built(build), [torch.zeros(large)])
        x = torch.randn(shape)
        (got,) = run_emulated(made, [x])
        torch.testing.assert_close(got, *evaluate(built(build), [x]), rtol=1e-4, atol=1e-4)


@requires_host_compiler
@pytest.mark.parametrize("dtype", [DataType.Half, DataType.BFloat16])
def test_half_precision(dtype):
    torch.manual_seed(0)
    kind = torch.half if dtype is DataType.Half else torch.bfloat16
    compare(columns, torch.rand(3001, 66).to(kind), dtype)
    compare(scaled_maximum, torch.randn(2, 66000).to(kind), dtype)


@requires_host_compiler
def test_nan_of_any_part_is_in_the_result():
    x = torch.randn(300, 1001)
    x[299, 1000] = torch.nan
    made = scheduled(built(everything), [x])
    assert run_emulated(made, [x])[0].isnan()


@requires_host_compiler
def test_more_rows_than_a_grid_has_blocks_along_y(monkeypatch):
    """Along z are the parts of columns, along y the other axes, in a loop that blocks share."""
    few = replace(PORTABLE_LIMITS, grid=(2**31 - 1, 3, 1024))
    monkeypatch.setattr(codegen, "PORTABLE_LIMITS", few)
    torch.manual_seed(0)
    fusion = Fusion()
    fusion.add_output(builders.sum(fusion, input_tensor(fusion, 3), [1]))
    made = scheduled(fusion, [torch.zeros(2, 40000, 3)])
    assert launches(made) == 1
    for shape in ((7, 20, 1), (2, 401, 3)):
        x = torch.randn(shape)
        (got,) = run_emulated(made, [x])
        torch.testing.assert_close(got, x.sum(1), rtol=1e-4, atol=1e-3)


def test_small_reductions_are_not_split():
    for build, shape in ((everything, (100, 100)), (rows, (50, 16000)), (columns, (500, 40))):
        made = scheduled(built(build), [torch.zeros(shape)])
        assert "is_last_block" not in generate(cuda_kernel(made)).text


def mean_subtracted() -> ScheduledFusion:
    """What all blocks read after the reduction can't be done by the last one."""
    fusion = Fusion()
    t0 = input_tensor(fusion, 1)
    t1 = builders.sum(fusion, t0, [0])
    t2 = builders.sub(fusion, t0, builders.broadcast(fusion, t1, [True]))
    fusion.add_output(t2)
    made = ScheduledFusion(fusion)
    for tensor in (t1, t2):
        made[tensor].split(0, 128)
        made[tensor].parallelize(0, GRID_X)
        made[tensor].parallelize(1, BLOCK_X)
    inline_most(made)
    return made


@requires_host_compiler
def test_what_all_blocks_read_is_another_launch():
    x = torch.randn(1000)
    made = mean_subtracted()
    assert [phase.last_along for phase in cuda_kernel(made).phases] == [None, None]
    assert launches(made) == 2
    torch.testing.assert_close(run_emulated(made, [x])[0], x - x.sum(), rtol=1e-4, atol=1e-4)


# ---- counters


class Streams:
    """What counters ask a GPU."""

    def __init__(self) -> None:
        self.stream, self.is_capturing = 0, False
        self.made: list[torch.Tensor] = []
        self.counters = ArrivalCounters(self.empty, lambda: self.stream, lambda: self.is_capturing)

    def empty(self, shape, strides, dtype) -> torch.Tensor:
        self.made.append(torch.full(shape, -1, dtype=dtype))
        return self.made[-1]

    def on(self, stream: int, count: int = 4) -> int:
        self.stream = stream
        return self.counters.address(count)


def test_each_stream_has_its_own_counters():
    gpu = Streams()
    first, second = gpu.on(7), gpu.on(9)
    assert first != second
    assert (gpu.on(7), gpu.on(9)) == (first, second)
    assert gpu.on(7, 5000) != first, "there were fewer"
    assert all(not tensor.any() for tensor in gpu.made)


def test_threads_that_name_their_streams_alike_share_no_counters():
    gpu = Streams()
    assert gpu.on(2) != gpu.on(2)


def test_a_captured_launch_has_counters_that_no_other_has():
    gpu = Streams()
    for _ in range(2):
        gpu.counters.prepare()
    assert len(gpu.made) == 1 and not gpu.made[0].any()
    eager = gpu.on(7)
    gpu.is_capturing = True
    allocated = len(gpu.made)
    first, second = gpu.on(7), gpu.on(7)
    assert len({eager, first, second}) == 3 and abs(second - first) >= 4 * 4
    assert len(gpu.made) == allocated, "nothing is set to zero while a graph is captured"
    assert gpu.on(7, 1 << 16) not in (first, second)
    assert len(gpu.made) == allocated + 1, "unless there are none left"


def test_a_capture_that_meets_the_first_counters_sets_them_to_zero_itself():
    gpu = Streams()
    gpu.is_capturing = True
    gpu.counters.prepare()
    assert not gpu.made
    assert gpu.on(7) != gpu.on(7)
    assert [tensor.numel() for tensor in gpu.made] == [4, 4]
    gpu.is_capturing = False
    gpu.counters.prepare()
    assert len(gpu.made) == 3
