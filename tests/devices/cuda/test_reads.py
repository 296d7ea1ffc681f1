"""Reads at computed positions on CUDA: the kernels of the automatic schedulers, run in the harness.

The harness finds accesses out of bounds, so that a window or an index that leaves its source fails
here.  NVRTC compiles the same texts.  A user's schedule may only read inputs.
"""

from __future__ import annotations

import pytest
import torch

from pyfuser.devices.cuda import nvrtc
from pyfuser.devices.cuda.codegen import generate
from pyfuser.devices.cuda.emulator.harness import SimtError
from pyfuser.dtypes import DataType, to_torch
from pyfuser.errors import ScheduleError
from pyfuser.ir.fusion import Fusion
from pyfuser.ir.schedule import ScheduledFusion
from pyfuser.ops import builders
from pyfuser.ops.binding import bind
from pyfuser.ops.evaluator import evaluate
from pyfuser.preseg import run as simplified
from pyfuser.schedule.facts import examine
from pyfuser.schedule.registry import find
from pyfuser.schedule.size_info import SizeInfo
from tests.cuda.cubins import require_cubin, requires_nvrtc
from tests.cuda.emulate import cuda_kernel, run_emulated
from tests.cuda.examples import input_tensor
from tests.cuda.host_compiler import requires_host_compiler
from tests.support.targets import SM_90


def rotary(fusion: Fusion):
    x, sin, cos = (input_tensor(fusion, rank) for rank in (3, 2, 2))
    sizes = builders.shape(fusion, x)
    half = builders.div(fusion, sizes[2], 2)
    first = builders.slice(fusion, x, [0, 0, 0], [*sizes[:2], half])
    rest = builders.slice(fusion, x, [0, 0, half], sizes)
    rotated = builders.cat(fusion, [builders.neg(fusion, rest), first], 2)
    scaled = builders.mul(fusion, rotated, sin)
    fusion.add_output(builders.add(fusion, scaled, builders.mul(fusion, x, cos)))
    return lambda m, n: [torch.randn(2, m, n), torch.randn(m, n), torch.randn(m, n)]


def padded_sum(fusion: Fusion):
    x = input_tensor(fusion, 2)
    fusion.add_output(builders.sum(fusion, builders.pad(fusion, x, [2, 3], 0.5), [1]))
    return lambda m, n: [torch.randn(m, n)]


def padded_image(fusion: Fusion):
    x = input_tensor(fusion, 2, DataType.BFloat16)
    fusion.add_output(builders.pad(fusion, x, [1, 2, 2, 1], -1.0))
    return lambda m, n: [torch.randn(m, n).bfloat16()]


def stacked_rows(fusion: Fusion):
    parts = [input_tensor(fusion, 2) for _ in range(3)]
    fusion.add_output(builders.abs(fusion, builders.cat(fusion, parts, 0)))
    return lambda m, n: [torch.randn(k, n) for k in (m, 1, 2 * m)]


def embedding_norm(fusion: Fusion):
    weight, index = input_tensor(fusion, 2), input_tensor(fusion, 2, DataType.Int)
    x = builders.embedding_fwd(fusion, index, weight)
    shifted = builders.exp(fusion, builders.sub(fusion, x, builders.max(fusion, x, [2], True)))
    total = builders.sum(fusion, shifted, [2], True)
    fusion.add_output(builders.div(fusion, shifted, total))
    return lambda m, n: [torch.randn(m, n), torch.randint(0, m, (3, m))]


def gathered(fusion: Fusion):
    x, index = input_tensor(fusion, 2), input_tensor(fusion, 2, DataType.Int32)
    fusion.add_output(builders.gather(fusion, builders.neg(fusion, x), index, 1))
    return lambda m, n: [torch.randn(m, n), torch.randint(0, n, (m, 19)).int()]


DEFINITIONS = {
    rotary: "resize",
    padded_sum: "reduction",
    padded_image: "resize",
    stacked_rows: "resize",
    embedding_norm: "inner_persistent",
    gathered: "pointwise",
}


def scheduled_for(fusion: Fusion, inputs: list[torch.Tensor], expected: str) -> ScheduledFusion:
    """The simplified fusion as its automatic scheduler schedules it for a GPU."""
    moved = simplified(fusion)
    sizes = bind(moved, inputs).sizes
    scheduler, _ = find(examine(moved), SizeInfo.of(sizes, SM_90))
    assert scheduler is not None
    assert scheduler.name == expected
    parameters = scheduler.heuristics(moved, sizes, SM_90)
    return scheduler.schedule(moved, parameters)


@requires_host_compiler
@pytest.mark.parametrize("shape", [(5, 37), (3, 1200)], ids=str)
@pytest.mark.parametrize("define", DEFINITIONS, ids=lambda define: define.__name__)
def test_reads_compute_what_torch_does(define, shape):
    torch.manual_seed(0)
    fusion = Fusion()
    inputs = define(fusion)(*shape)
    got = run_emulated(scheduled_for(fusion, inputs, DEFINITIONS[define]), inputs, (0,))
    for a, b in zip(got, evaluate(fusion, inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, check_stride=False)


@requires_host_compiler
@pytest.mark.parametrize("bad", [-1, 7, 2**31 - 1, -(2**31)])
def test_an_index_out_of_range_fails_an_assertion(bad):
    fusion = Fusion()
    inputs = [torch.randn(5, 7), torch.tensor([[0, 1, bad, 6]] * 5).int()]
    gathered(fusion)
    with pytest.raises(SimtError, match="assertion failed: index out of range"):
        run_emulated(scheduled_for(fusion, inputs, "pointwise"), inputs, (0,))


@requires_host_compiler
def test_a_negative_index_counts_from_the_end_where_torch_has_it_so():
    fusion = Fusion()
    x, index = input_tensor(fusion, 2), input_tensor(fusion, 1, DataType.Int)
    fusion.add_output(builders.neg(fusion, builders.index(fusion, x, index, 1)))
    inputs = [torch.randn(5, 7), torch.tensor([-7, 0, -1, 6])]
    (got,) = run_emulated(scheduled_for(fusion, inputs, "pointwise"), inputs, (0,))
    assert torch.equal(got, -inputs[0][:, inputs[1]])
    inputs[1][2] = -8
    with pytest.raises(SimtError, match="assertion failed: index out of range"):
        run_emulated(scheduled_for(fusion, inputs, "pointwise"), inputs, (0,))


@requires_host_compiler
@pytest.mark.parametrize("op", ["div", "mod", "fmod", "remainder"])
@pytest.mark.parametrize("dtype", [DataType.Int, DataType.Int32, DataType.UInt8], ids=str)
def test_an_integer_divided_by_zero_fails_an_assertion(op, dtype):
    fusion = Fusion()
    x, y = (input_tensor(fusion, 1, dtype) for _ in range(2))
    fusion.add_output(builders.pointwise(fusion, op, x, y))
    numbers = torch.arange(1, 101).to(to_torch(dtype))
    inputs = [numbers.flip(0), numbers]
    (got,) = run_emulated(scheduled_for(fusion, inputs, "pointwise"), inputs, (0,))
    assert torch.equal(got, evaluate(fusion, inputs)[0])
    inputs[1][77] = 0
    with pytest.raises(SimtError, match=f"assertion failed: {op}"):
        run_emulated(scheduled_for(fusion, inputs, "pointwise"), inputs, (0,))


@requires_nvrtc
@pytest.mark.parametrize("architecture", nvrtc.ARCHITECTURES)
def test_nvrtc_compiles_reads(architecture):
    texts = []
    for define, scheduler in DEFINITIONS.items():
        fusion = Fusion()
        scheduled = scheduled_for(fusion, define(fusion)(30, 140), scheduler)
        texts.append(generate(cuda_kernel(scheduled, define.__name__)).text)
    require_cubin(texts, architecture)


def test_a_users_schedule_reads_inputs_only():
    fusion = Fusion()
    x = input_tensor(fusion, 1)
    fusion.add_output(builders.pad(fusion, builders.exp(fusion, x), [1, 1]))
    with pytest.raises(ScheduleError, match="the source of pad, T1, to be an input"):
        cuda_kernel(ScheduledFusion(fusion))
