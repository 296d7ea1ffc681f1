"""CUDA kernels from end to end, without a GPU: definitions, schedules, graphs on emulated CUDA.

Every call takes the way that it takes on a GPU: target, plans, launches; the SIMT harness plays the
GPU.  `make emulate` runs whole test files so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from torch.nn import functional

from pyfuser import DataType, FusionDefinition, ParallelType, interface
from pyfuser.devices.cuda.emulator.runtime import EmulatedRuntime, emulated
from pyfuser.errors import ScheduleError
from tests.cuda.host_compiler import requires_host_compiler
from tests.programs.check import check
from tests.programs.everyday import program, rows
from tests.support.definitions import blocks_of_64_threads
from tests.support.random_fusions import RandomFusion, examples, fusions, seed_of
from tests.support.random_fusions import check as check_fusion

pytestmark = requires_host_compiler


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedRuntime]:
    """CPU tensors are run by CUDA kernels, and nothing falls back."""
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    torch._dynamo.reset()
    with emulated() as found:
        yield found
    torch._dynamo.reset()


def normalised(fd: FusionDefinition, rank: int = 2) -> None:
    x = fd.define_tensor([-1] * rank, contiguity=True, dtype=DataType.Float)
    power = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [-1], keepdim=True)))
    fd.add_output(fd.ops.div(power, fd.ops.sum(power, [-1], keepdim=True)))


def test_one_plan_for_many_sizes(runtime: EmulatedRuntime) -> None:
    with FusionDefinition() as fd:
        normalised(fd)
    for rows_, columns in ((3, 70), (2, 65), (3, 100), (2, 67), (3, 104), (2, 98), (0, 5), (1, 1)):
        x = torch.randn(rows_, columns)
        torch.testing.assert_close(fd.execute([x])[0], x.softmax(-1))
    assert runtime.kernels
    assert len(fd.fec.engine.executor.plans) < 6


@pytest.mark.parametrize("dims", [[0], [1], [0, 1]], ids=str)
def test_reductions_and_their_phases(dims: list[int]) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.BFloat16)
        wide = fd.ops.cast(x, DataType.Float)
        fd.add_output(fd.ops.cast(fd.ops.sum(wide, dims), DataType.BFloat16))
        fd.add_output(fd.ops.var(wide, dims))
    x = torch.randn(301, 257).bfloat16()
    total, variance = fd.execute([x])
    torch.testing.assert_close(total, x.float().sum(dims).bfloat16())
    torch.testing.assert_close(variance, x.float().var(dims), rtol=1e-4, atol=1e-5)


def test_strided_inputs_and_in_place_updates() -> None:
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1, -1], contiguity=False, dtype=DataType.Float) for _ in "xy")
        total = fd.ops.add(x, fd.ops.mul(y, 0.5))
        fd.add_output(total, x)
        fd.add_output(fd.ops.permute(total, [1, 0]))
    base, y = torch.randn(40, 33), torch.randn(33, 80)[:, ::2].t()
    x, expected = base.clone(), base + y * 0.5
    (transposed,) = fd.execute([x, y])
    torch.testing.assert_close(x, expected)
    torch.testing.assert_close(transposed, expected.t())


@pytest.mark.parametrize("dtype", [DataType.Half, DataType.BFloat16, DataType.Double, DataType.Int])
def test_scalars_are_arguments(dtype: DataType) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.mul(x, fd.define_scalar(dtype)))
    x = torch.randn(70)
    for value in (3, -2):
        assert torch.equal(fd.execute([x, value])[0], x * value)


def test_a_schedule_by_hand() -> None:
    fd = blocks_of_64_threads()
    for shape in ((3, 50), (70, 9)):
        a, b = torch.randn(shape), torch.randn(shape)
        torch.testing.assert_close(fd.manual_execute([a, b])[0], (a + b) * 3)


def test_a_schedule_that_asks_for_too_many_threads_is_refused() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        y = fd.ops.mul(x, 3.0)
        fd.add_output(y)
        y.axis(0).parallelize(ParallelType.grid_x)
        y.axis(1).parallelize(ParallelType.block_x)
    torch.testing.assert_close(fd.manual_execute([torch.ones(2, 64)])[0], torch.full((2, 64), 3.0))
    with pytest.raises(ScheduleError, match="at most 1024 threads"):
        fd.manual_execute([torch.ones(2, 1025)])


def test_more_blocks_than_a_grid_can_have(runtime: EmulatedRuntime) -> None:
    """The blocks that don't fit go on along z, or others process them, shared memory included."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1, -1], contiguity=True, dtype=DataType.Float)
        power = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [1], keepdim=True)))
        fd.add_output(fd.ops.div(power, fd.ops.sum(power, [1], keepdim=True)))
        fd.add_output(fd.ops.sum(x, [0]))
        fd.add_output(fd.ops.permute(fd.ops.neg(x), [0, 2, 1]))
    x = torch.randn(50, 70, 45)
    for most in (65535, 8):
        for kernel in runtime.kernels:
            kernel.limits = replace(kernel.limits, grid=(2**31 - 1, most, most))
        normal, total, transposed = fd.execute([x])
        torch.testing.assert_close(normal, x.softmax(1))
        torch.testing.assert_close(total, x.sum(0))
        assert torch.equal(transposed, -x.mT)
    assert any("gridDim.y" in kernel.code.text for kernel in runtime.kernels)


def test_rows_that_outgrow_shared_memory() -> None:
    """A graph of changing sizes: short columns are kept, long ones are recomputed."""
    compiled = torch.compile(lambda x: (x * 3).sin().softmax(0), backend="pyfuser", dynamic=True)
    for rows_ in (37, 2000, 40):
        x = torch.randn(rows_, 5)
        torch.testing.assert_close(compiled(x), (x * 3).sin().softmax(0))


def test_registered_fusions(runtime: EmulatedRuntime) -> None:
    with FusionDefinition() as fd:
        normalised(fd, rank=3)
    key = interface.register_fusion(fd.fusion.definition)
    x = torch.randn(2, 3, 40)
    stack: list[torch.Tensor] = [x]
    interface.run_fusion(key, stack)
    torch.testing.assert_close(stack[0], x.softmax(-1))
    assert "__global__" in interface.debug_kernel_code(key, [x])


def test_what_a_kernel_refuses() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        index = fd.define_tensor([-1], contiguity=True, dtype=DataType.Int)
        fd.add_output(fd.ops.index_select(fd.ops.mul(x, 2.0), index, 0))
    x = torch.randn(5, 9)
    torch.testing.assert_close(fd.execute([x, torch.tensor([4, 0])])[0], x[[4, 0]] * 2)
    with pytest.raises(IndexError, match="out of range"):
        fd.execute([x, torch.tensor([4, 5])])


def block(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    normal = functional.layer_norm(x, x.shape[-1:])
    return functional.gelu(normal @ weight) + functional.pad(x, (0, weight.shape[1] - x.shape[1]))


def columns(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    transposed = (x * 2).t().softmax(0)
    return transposed.sum(0, keepdim=True) + transposed.amax(1, keepdim=True) * weight[:1, :1]


@pytest.mark.parametrize("function", [block, columns])
def test_graphs_and_their_gradients(
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], runtime: EmulatedRuntime
) -> None:
    compiled = torch.compile(function, backend="pyfuser", dynamic=True)
    for rows_ in (7, 12):
        given = [torch.randn(rows_, 40), torch.randn(40, 48) / 7]
        results = []
        for run in (function, compiled):
            leaves = [x.clone().requires_grad_() for x in given]
            y = run(*leaves)
            results.append([y, *torch.autograd.grad(y.sin().sum(), leaves)])
        for eager, ours in zip(*results, strict=True):
            torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-4)
    assert runtime.kernels


def test_what_is_updated_in_place_is_no_restricted_pointer(runtime: EmulatedRuntime) -> None:
    def step(weight: torch.Tensor, gradient: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        weight.sub_(gradient * 0.1)
        return other * gradient

    weight, gradient, other = (torch.randn(40) for _ in range(3))
    expected = weight - gradient * 0.1
    torch.compile(step, backend="pyfuser")(weight, gradient, other)
    torch.testing.assert_close(weight, expected)
    found = {t.buffer.name: k for k in runtime.kernels for t in k.kernel.tensors if t.may_alias}
    ((name, kernel),) = found.items()
    signature = kernel.code.text.partition(") {")[0]
    assert f"* {name}" in signature and f"__restrict__ {name}" not in signature
    assert "__restrict__" in signature


@pytest.mark.parametrize("name", ["cumsum", "gather", "softmax", "where"])
def test_random_fusions(name: str) -> None:
    @examples(3, seed_of(name) + 1)
    @given(made=fusions(name))
    def run(made: RandomFusion) -> None:
        check_fusion(made)

    run()


# Every n-th of the everyday programs: a sample of each kind.
EVERYDAY = list(rows())[::10]


@pytest.mark.parametrize("row", EVERYDAY)
def test_everyday_programs(row: str) -> None:
    given = program(row, intermediate=True)
    outcome = check(given)
    assert outcome.passed, f"{outcome.signature}\n{outcome.detail}\n{given.script()}"
