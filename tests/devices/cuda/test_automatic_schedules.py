"""CUDA kernels of the automatic schedulers and of random schedules, run in the SIMT harness.

Wrong indices, predicates, barriers and guards all show as a wrong result or as a SimtError.
"""

from __future__ import annotations

import pytest
import torch

from pyfuser.devices.cuda import nvrtc
from pyfuser.devices.cuda.codegen import generate
from pyfuser.errors import ScheduleError
from pyfuser.ir.fusion import Fusion
from pyfuser.ir.schedule import ScheduledFusion
from pyfuser.ops import builders
from pyfuser.ops.binding import bind
from pyfuser.ops.evaluator import evaluate
from pyfuser.schedule.facts import examine
from pyfuser.schedule.registry import find
from pyfuser.schedule.size_info import SizeInfo
from tests.cuda.cubins import require_cubin, requires_nvrtc
from tests.cuda.emulate import cuda_kernel, run_emulated
from tests.cuda.examples import BLOCK_X, GRID_X, add_chain, input_tensor
from tests.cuda.host_compiler import requires_host_compiler
from tests.cuda.random_schedules import (
    bias_and_two_outputs,
    example,
    half_precision_sums,
    layer_norm,
    row_sums,
    softmax,
    total,
    transposed_add,
)
from tests.support.targets import SM_90


def alike(got: list[torch.Tensor], want: list[torch.Tensor]) -> None:
    for a, b in zip(got, want, strict=True):
        tolerance = {"rtol": 1e-4, "atol": 1e-5} if a.dtype is torch.float32 else {}
        torch.testing.assert_close(a, b, equal_nan=True, check_stride=False, **tolerance)


def column_sums(fusion: Fusion):
    fusion.add_output(builders.sum(fusion, input_tensor(fusion, 2), [0]))
    return lambda m, n: [torch.randn(m, n)]


def batch_norm(fusion: Fusion):
    a = input_tensor(fusion, 2)
    variance, mean = builders.var_mean(fusion, a, [0], 1, True)
    scale = builders.rsqrt(fusion, variance)
    fusion.add_output(builders.mul(fusion, builders.sub(fusion, a, mean), scale))
    return lambda m, n: [torch.randn(m, n)]


def row_scans(fusion: Fusion):
    a = input_tensor(fusion, 2)
    sums = builders.cumsum(fusion, builders.mul(fusion, a, 2.0), 1)
    fusion.add_output(builders.add(fusion, sums, a))
    fusion.add_output(builders.cummax(fusion, sums, 1))
    return lambda m, n: [torch.randn(m, n)]


def column_scans(fusion: Fusion):
    a = input_tensor(fusion, 2)
    fusion.add_output(builders.exp(fusion, builders.cummin(fusion, a, 0)))
    fusion.add_output(builders.cumsum(fusion, a, 0))
    return lambda m, n: [torch.randn(m, n)]


AUTOMATIC = {
    bias_and_two_outputs: "pointwise",
    transposed_add: "transpose",
    row_sums: "reduction",
    total: "reduction",
    half_precision_sums: "reduction",
    column_sums: "reduction",
    softmax: "inner_persistent",
    layer_norm: "inner_persistent",
    batch_norm: "outer_persistent",
    row_scans: "greedy",
    column_scans: "greedy",
}


def scheduled_for(fusion: Fusion, inputs: list[torch.Tensor], expected: str) -> ScheduledFusion:
    """The fusion as its automatic scheduler schedules it for a GPU."""
    sizes = bind(fusion, inputs).sizes
    scheduler, _ = find(examine(fusion), SizeInfo.of(sizes, SM_90))
    assert scheduler is not None
    assert scheduler.name == expected
    parameters = scheduler.heuristics(fusion, sizes, SM_90)
    return scheduler.schedule(fusion, parameters)


@requires_host_compiler
@pytest.mark.parametrize("shape", [(5, 37), (2, 1500), (300, 140)], ids=str)
@pytest.mark.parametrize("define", AUTOMATIC, ids=lambda define: define.__name__)
def test_automatic_schedulers_make_right_kernels(define, shape):
    torch.manual_seed(0)
    fusion = Fusion()
    inputs = define(fusion)(*shape)
    scheduled = scheduled_for(fusion, inputs, AUTOMATIC[define])
    alike(run_emulated(scheduled, inputs, (0,)), evaluate(fusion, inputs))


@requires_nvrtc
@pytest.mark.parametrize("architecture", nvrtc.ARCHITECTURES)
def test_nvrtc_compiles_the_kernels_of_the_automatic_schedulers(architecture):
    texts = []
    for define, scheduler in AUTOMATIC.items():
        fusion = Fusion()
        scheduled = scheduled_for(fusion, define(fusion)(300, 140), scheduler)
        texts.append(generate(cuda_kernel(scheduled, define.__name__)).text)
    require_cubin(texts, architecture)


@requires_host_compiler
@pytest.mark.parametrize("seed", range(60))
def test_random_schedules_compute_what_torch_does(seed):
    torch.manual_seed(seed)
    made = example(seed)
    try:
        scheduled, original, inputs = made.scheduled()
        got = run_emulated(scheduled, inputs)
    except ScheduleError as error:
        assert made.explains(error), made
        return
    alike(got, evaluate(original, inputs))


def test_nearly_all_random_schedules_are_legal():
    """Also, none is refused except for one of its doubts."""
    legal = 0
    for seed in range(500):
        made = example(seed)
        try:
            cuda_kernel(made.scheduled()[0])
            legal += 1
        except ScheduleError as error:
            assert made.explains(error), (seed, made)
    assert legal >= 485


def test_the_target_prints_kernels():
    texts = SM_90.texts(SM_90.generate(cuda_kernel(add_chain())))
    assert "__global__" in texts["cuda"]
    assert texts["ptx"]


@requires_host_compiler
def test_a_welford_with_results_in_memory_and_in_registers():
    fusion = Fusion()
    inputs = [torch.randn(6, 100)]
    a = input_tensor(fusion, 2)
    mean, squares, _ = builders.welford(fusion, a, [1])
    scaled = builders.mul(fusion, squares, 2.0)
    fusion.add_output(mean)
    fusion.add_output(scaled)
    want = evaluate(fusion, inputs)
    scheduled = ScheduledFusion(fusion)
    scheduled[mean].parallelize(0, GRID_X)
    scheduled[mean].parallelize(1, BLOCK_X)
    scheduled[scaled].parallelize(0, GRID_X)
    alike(run_emulated(scheduled, inputs), want)
