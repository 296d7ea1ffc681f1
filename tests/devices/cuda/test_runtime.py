"""Launching on a GPU, against a driver that records launches and runs them in the SIMT harness."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition, can_fuse_on_gpu, fallback
from pyfuser.devices.cuda.codegen import Launch, Parameter
from pyfuser.devices.cuda.launcher import ParameterLayout, bfloat16_bits
from pyfuser.devices.registry import runtime_of
from pyfuser.devices.switches import register_runtime
from pyfuser.dtypes import to_torch
from pyfuser.errors import DeviceError, InputError, ScheduleError, UnsupportedError
from pyfuser.interface import ManualKernel
from pyfuser.ir.domains import ParallelType
from pyfuser.ir.fusion import Fusion
from pyfuser.ir.kernel import Buffer, ScalarParameter
from pyfuser.ir.scalars import ONE, ZERO, Symbol
from pyfuser.ir.schedule import MemoryType
from pyfuser.target.target import PORTABLE_LIMITS
from tests.cuda.examples import shared_sum, tiled_transpose
from tests.cuda.fake_driver import (
    FakeGpus,
    FakeRuntime,
    Launched,
    Result,
    at_home,
    fake_gpus,
    on,
)
from tests.cuda.host_compiler import requires_host_compiler

pytestmark = [requires_host_compiler, pytest.mark.usefixtures("strict")]


@pytest.fixture
def gpus() -> Iterator[FakeGpus]:
    with fake_gpus(2) as found:
        yield found


def defined(build: Callable[..., Any], rank: int = 2, count: int = 1) -> FusionDefinition:
    with FusionDefinition() as fd:
        inputs = [fd.define_tensor([-1] * rank, contiguity=True) for _ in range(count)]
        fd.add_output(build(fd.ops, *inputs))
    return fd


def scaled() -> FusionDefinition:
    return defined(lambda ops, x: ops.mul(x, 3.0))


def total() -> FusionDefinition:
    return defined(lambda ops, x: ops.sum(x))


def softmax() -> FusionDefinition:
    def build(ops: Any, x: Any) -> Any:
        power = ops.exp(ops.sub(x, ops.max(x, 1, keepdim=True)))
        return ops.div(power, ops.sum(power, 1, keepdim=True))

    return defined(build)


def two_launches() -> FusionDefinition:
    """Rows, and sums of their columns, which other blocks combine than have computed them."""
    return defined(lambda ops, x: ops.sum(ops.sub(x, ops.sum(x, 1, keepdim=True)), 0))


def run(fd: FusionDefinition, *inputs: torch.Tensor, ordinal: int = 0) -> torch.Tensor:
    (found,) = fd.execute([on(ordinal, x) for x in inputs])
    assert found.device == torch.device("cuda", ordinal)
    return found


def addresses(*tensors: torch.Tensor) -> tuple[int, ...]:
    return tuple(tensor.data_ptr() for tensor in tensors)


# -- arguments and geometry


def test_a_launch_has_addresses_then_sizes_and_a_grid_that_covers_them(gpus: FakeGpus) -> None:
    x = torch.randn(30, 50)
    y = run(scaled(), x)
    torch.testing.assert_close(at_home(y), x * 3)
    (launched,) = gpus.driver.launches
    assert launched == Launched(
        "kernel", launched.grid, launched.block, 0, 0, 0, (*addresses(x, y), 30, 50)
    )
    assert launched.block == (128, 1, 1) and launched.grid[1:] == (1, 1)


@pytest.mark.parametrize(
    ("make", "reference", "shape", "launches"),
    [
        (lambda: defined(lambda ops, x: ops.sum(x, 1)), lambda x: x.sum(1), (200, 70), 1),
        (lambda: defined(lambda ops, x: ops.sum(x, 0)), lambda x: x.sum(0), (200, 70), 1),
        (softmax, lambda x: x.softmax(1), (20, 300), 1),
        (total, lambda x: x.sum(), (300, 300), 1),
        (two_launches, lambda x: (x - x.sum(1, True)).sum(0), (600, 40), 2),
        (
            lambda: defined(lambda ops, x: ops.add(ops.permute(x, [1, 0]), 1.0)),
            lambda x: x.t() + 1,
            (140, 150),
            1,
        ),
    ],
    ids=["rows", "columns", "softmax", "everything", "rows and columns", "transposed"],
)
def test_results(
    make: Callable[[], FusionDefinition],
    reference: Callable[[torch.Tensor], torch.Tensor],
    shape: tuple[int, ...],
    launches: int,
    gpus: FakeGpus,
) -> None:
    x = torch.randn(shape)
    torch.testing.assert_close(at_home(run(make(), x)), reference(x), rtol=1e-4, atol=1e-4)
    assert len(gpus.driver.launches) == launches


def test_the_launches_of_a_grid_reduction_share_scratch_memory_in_order(gpus: FakeGpus) -> None:
    x = torch.randn(600, 40)
    y = run(two_launches(), x)
    first, second = gpus.driver.launches
    assert first.function.endswith("phase0") and second.function.endswith("phase1")
    assert first.arguments[0] == x.data_ptr() and second.arguments[0] == y.data_ptr()
    assert first.arguments[-1] == second.arguments[-1]  # the partial sums
    _, bytes_of_scratch = [size for _, _, size in gpus.allocated]
    assert bytes_of_scratch >= 4 * first.grid[0] * first.grid[1]


@pytest.mark.parametrize(
    ("dtype", "value", "passed"),
    [
        (DataType.Double, 0.1, 0.1),
        (DataType.Float, 0.5, 0.5),
        (DataType.Half, 0.1, b"\x66\x2e"),
        (DataType.BFloat16, 0.1, b"\xcd\x3d"),
        (DataType.Int, -5, -5),
        (DataType.Int32, -7, -7),
        (DataType.Bool, True, 1),
    ],
    ids=str,
)
def test_scalars_are_packed_by_their_dtypes(
    dtype: DataType, value: float, passed: object, gpus: FakeGpus
) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True, dtype=dtype)
        a, b = fd.define_scalar(dtype=DataType.Int), fd.define_scalar(dtype=dtype)
        y = fd.ops.cast(fd.ops.where(fd.ops.eq(x, b), x, b), DataType.Double)
        fd.add_output(fd.ops.mul(y, fd.ops.cast(a, DataType.Double)))
    (found,) = fd.execute([on(0, torch.zeros(9, dtype=to_torch(dtype))), -3, value])
    torch.testing.assert_close(
        at_home(found), torch.full((9,), -3.0 * value).double(), rtol=1e-2, atol=0
    )
    (launched,) = gpus.driver.launches
    assert passed in launched.arguments


def test_bfloat16_bits() -> None:
    numbers = torch.tensor([0.1, -3.0, float("inf"), float("nan"), 1e-40]).bfloat16()
    bits = numbers.view(torch.int16).long() & 0xFFFF
    assert [bfloat16_bits(x) for x in numbers.double().tolist()] == bits.tolist()


def launch_with(*parameters: Parameter) -> Launch:
    return Launch("kernel", (ONE, ONE, ONE), (ONE, ONE, ONE), ZERO, parameters)


def test_parameters_are_aligned_as_in_c() -> None:
    fusion = Fusion()
    dtypes = (DataType.Bool, DataType.Double, DataType.Half, DataType.Int32, DataType.Bool)
    scalars = [ScalarParameter(f"s{d}", d, fusion.new_scalar(d)) for d in dtypes]
    layout = ParameterLayout(launch_with(*scalars))
    assert layout.offsets == [0, 8, 16, 20, 24] and layout.bytes == 25


@pytest.mark.parametrize(("index_bits", "offsets"), [(32, [0, 4, 8]), (64, [0, 8, 16])], ids=str)
def test_sizes_are_passed_with_the_width_of_indices(index_bits: int, offsets: list[int]) -> None:
    launch = launch_with(*(Symbol.of(f"i{n}") for n in range(3)))
    assert ParameterLayout(replace(launch, index_bits=index_bits)).offsets == offsets


def test_too_many_parameters_name_the_kernel_the_limit_and_the_tensor() -> None:
    buffers = [Buffer(f"T{n}", DataType.Float, MemoryType.global_, ONE) for n in range(600)]
    launch = launch_with(*buffers)
    limit = "kernel: expected at most 4096 bytes of parameters, got 4800, of which 600 tensors; "
    with pytest.raises(UnsupportedError, match=f"{limit}T512 is the first too many"):
        ParameterLayout(launch).check(launch, PORTABLE_LIMITS)


def test_what_has_no_elements_is_not_launched(gpus: FakeGpus) -> None:
    fd = scaled()
    run(fd, torch.randn(3, 4))
    assert run(fd, torch.empty(0, 4)).shape == (0, 4)
    assert len(gpus.driver.launches) == 1


# -- streams, devices, threads


def test_each_call_uses_the_stream_that_is_current(gpus: FakeGpus) -> None:
    fd, x = total(), torch.randn(300, 300)
    for stream in (0, 77, 5):
        gpus.streams[0] = stream
        run(fd, x)
    assert [each.stream for each in gpus.driver.launches] == [0, 77, 5]
    # The result, the partial sums and the counters of each; those of graphs once before.
    assert [stream for _, stream, _ in gpus.allocated] == [0] * 4 + [77] * 3 + [5] * 3


def test_two_gpus_have_their_own_modules_of_one_cubin(gpus: FakeGpus) -> None:
    fd, x = scaled(), torch.randn(30, 50)
    gpus.streams = [11, 22]
    for ordinal in (0, 1, 0, 1):
        torch.testing.assert_close(at_home(run(fd, x, ordinal=ordinal)), x * 3)
    assert [each.ordinal for each in gpus.driver.launches] == [0, 1, 0, 1]
    assert [each.stream for each in gpus.driver.launches] == [11, 22, 11, 22]
    assert gpus.driver.calls.count("cuModuleLoadData") == 2
    assert len(gpus.compiled) == 1
    assert gpus.driver.current_device == 0


def test_the_current_device_decides_whose_context_a_launch_changes(gpus: FakeGpus) -> None:
    fd, x = scaled(), torch.randn(30, 50)
    run(fd, x, ordinal=1)
    gpus.driver.current_device = 1
    gpus.driver.calls.clear()
    run(fd, x, ordinal=1)
    assert gpus.driver.calls == ["cuLaunchKernel"]


def test_tensors_of_two_gpus_are_refused(gpus: FakeGpus) -> None:
    fd = defined(lambda ops, x, y: ops.add(x, y), count=2)
    x = torch.randn(3, 4)
    with pytest.raises(InputError, match="all tensors on cuda:0, got one on cuda:1"):
        fd.execute([on(0, x), on(1, x)])


def test_a_thread_without_a_context_can_launch(gpus: FakeGpus) -> None:
    fd, x = scaled(), torch.randn(30, 50)
    run(fd, x)
    found: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: found.append(run(fd, x)))
    thread.start()
    thread.join()
    torch.testing.assert_close(at_home(found[0]), x * 3)


def test_concurrent_calls_do_not_share_the_memory_of_parameters(gpus: FakeGpus) -> None:
    fd, x, y = scaled(), torch.randn(30, 50), torch.randn(30, 50)
    run(fd, x)
    others: list[torch.Tensor] = []
    gpus.driver.interruption = lambda: others.append(run(fd, y))
    torch.testing.assert_close(at_home(run(fd, x)), x * 3)
    torch.testing.assert_close(at_home(others[0]), y * 3)


# -- once warm


@pytest.mark.parametrize("make", [scaled, softmax, total])
def test_a_second_call_only_launches(make: Callable[[], FusionDefinition], gpus: FakeGpus) -> None:
    fd, x = make(), torch.randn(300, 300)
    run(fd, x)
    gpus.driver.calls.clear()
    gpus.synchronised.clear()
    run(fd, x)
    assert set(gpus.driver.calls) == {"cuLaunchKernel"} and not gpus.synchronised


def test_a_runtime_waits_for_its_own_gpu(gpus: FakeGpus) -> None:
    runtime_of(torch.device("cuda", 1)).synchronize()
    assert gpus.synchronised == [1]


def test_a_captured_call_runs_again_on_new_contents(gpus: FakeGpus) -> None:
    fd, x = total(), torch.randn(300, 300)
    run(fd, x)
    with gpus.captured() as graph:
        y = run(fd, x)
    assert len(graph) == 1 and y.isnan()
    for _ in range(2):
        x.normal_()
        for node in graph:
            node()
        torch.testing.assert_close(at_home(y), x.sum(), rtol=1e-4, atol=1e-2)


# -- limits

SHARED_SUM_IS_TOO_LONG = (
    r"kernel on cuda:0 \(writes T1; T2, reduction_scratch in shared memory\): expected at most .* "
    r"bytes of shared memory"
)


def test_shared_memory_above_48_kib_is_opted_in_to(gpus: FakeGpus) -> None:
    x = torch.randn(3, 20000)
    kernel = ManualKernel(shared_sum(), [on(0, x)])
    (y,) = kernel.run([on(0, x)])
    torch.testing.assert_close(at_home(y), x.sum(1), rtol=1e-4, atol=1e-3)
    assert gpus.driver.launches[0].shared_bytes > 20000 * 4
    assert gpus.driver.calls.count("cuFuncSetAttribute") == 1
    with pytest.raises(ScheduleError, match=SHARED_SUM_IS_TOO_LONG):
        kernel.run([on(0, torch.randn(3, 60000))])


def test_a_kernel_without_dynamic_shared_memory_asks_for_none(gpus: FakeGpus) -> None:
    ManualKernel(tiled_transpose(), [on(0, torch.randn(40, 50))])
    assert "cuFuncSetAttribute" not in gpus.driver.calls


def test_what_a_gpu_offers_a_block_is_the_limit() -> None:
    with fake_gpus(MAX_SHARED_MEMORY_PER_BLOCK_OPTIN=64 << 10):
        kernel = ManualKernel(shared_sum(), [on(0, torch.randn(3, 1000))])
        with pytest.raises(ScheduleError, match="and 65536 bytes of shared memory"):
            kernel.run([on(0, torch.randn(3, 20000))])


def scheduled_by_hand(*axes: ParallelType) -> FusionDefinition:
    """x * 3, with its axes on these."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        y = fd.ops.mul(x, 3.0)
        fd.add_output(y)
        for position, axis in enumerate(axes):
            y.axis(position).parallelize(axis)
    return fd


def test_a_launch_beyond_the_limits_is_refused(gpus: FakeGpus) -> None:
    fd = scheduled_by_hand(ParallelType.grid_x, ParallelType.block_z)
    fd.manual_execute([on(0, torch.randn(3, 4))])
    with pytest.raises(
        ScheduleError,
        match=r"kernel on cuda:0 \(writes T1\): expected at most 1024 .* got 1 x 1 x 65 threads",
    ):
        fd.manual_execute([on(0, torch.randn(2, 65))])


@pytest.mark.parametrize(
    ("axis", "grid"),
    [(ParallelType.grid_y, (1, 32769, 2)), (ParallelType.grid_z, (1, 1, 65535))],
    ids=str,
)
def test_a_grid_is_launched_no_longer_than_it_can_be(
    gpus: FakeGpus, axis: ParallelType, grid: tuple[int, int, int]
) -> None:
    """Blocks along y go on along z; those along z are a loop."""
    fd = scheduled_by_hand(axis, ParallelType.block_x)
    x = torch.randn(65537, 1)
    assert torch.equal(fd.manual_execute([on(0, x)])[0].cpu(), x * 3)
    assert [launched.grid for launched in gpus.driver.launches] == [grid]


def test_memory_that_is_gone_is_an_error(gpus: FakeGpus) -> None:
    fd, x = scaled(), torch.randn(3, 4)
    run(fd, x)
    x.untyped_storage().resize_(0)
    with pytest.raises(InputError, match="expected 48 bytes of memory"):
        run(fd, x)
    assert len(gpus.driver.launches) == 1


# -- errors


@pytest.mark.parametrize(
    ("function", "status"),
    [
        ("cuModuleLoadData", "CUDA_ERROR_INVALID_IMAGE"),
        ("cuModuleGetFunction", "CUDA_ERROR_NOT_FOUND"),
    ],
)
def test_a_kernel_that_cannot_be_loaded_names_device_and_status(
    function: str, status: str, gpus: FakeGpus
) -> None:
    gpus.driver.failures[function] = getattr(Result, status)
    message = rf"loading kernel on cuda:1: expected CUDA_SUCCESS, got {status} \(the text of"
    with pytest.raises(DeviceError, match=message):
        run(scaled(), torch.randn(3, 4), ordinal=1)


def test_memory_that_torch_keeps_is_freed_for_a_module(gpus: FakeGpus) -> None:
    gpus.driver.failures["cuModuleLoadData"] = Result.CUDA_ERROR_OUT_OF_MEMORY
    x = torch.randn(3, 4)
    torch.testing.assert_close(at_home(run(scaled(), x)), x * 3)
    assert gpus.driver.calls.count("cuModuleLoadData") == 2


def test_torch_computes_what_cannot_be_loaded(
    gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYFUSER_STRICT")
    gpus.driver.failures["cuModuleLoadData"] = Result.CUDA_ERROR_NO_BINARY_FOR_GPU
    fd, x = defined(lambda ops, x: ops.sinh(ops.add(x, x))), torch.randn(3, 4)
    with pytest.warns(RuntimeWarning, match="loading kernel on cuda:0.*NO_BINARY_FOR_GPU"):
        (found,) = fd.execute([on(0, x)])
    torch.testing.assert_close(at_home(found), (x + x).sinh())


def test_without_a_compiler_torch_computes_with_one_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_runtime(device: torch.device) -> FakeRuntime:
        raise UnsupportedError("nvrtc: expected the packages of NVRTC, got none")

    monkeypatch.delenv("PYFUSER_STRICT")
    fallback._warned.clear()
    register_runtime("cuda", no_runtime)
    try:
        assert not can_fuse_on_gpu()
        fd, x = defined(lambda ops, x: ops.sinh(ops.add(x, x))), torch.randn(3, 4)
        with pytest.warns(RuntimeWarning, match="runs through torch instead.*packages of NVRTC"):
            torch.testing.assert_close(at_home(fd.execute([on(0, x)])[0]), (x + x).sinh())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            fd.execute([on(0, x)])
            defined(lambda ops, x: ops.sin(ops.add(x, x))).execute([on(0, x)])
    finally:
        register_runtime("cuda", None)


def test_a_failed_launch_names_kernel_and_device(gpus: FakeGpus) -> None:
    fd, x = scaled(), torch.randn(3, 4)
    run(fd, x)
    gpus.driver.failures["cuLaunchKernel"] = Result.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
    with pytest.raises(DeviceError, match="launching kernel on cuda:0: .*_OUT_OF_RESOURCES"):
        run(fd, x)
    gpus.driver.failures.clear()
    torch.testing.assert_close(at_home(run(fd, x)), x * 3)


def test_a_refused_value_fails_an_assertion_which_the_next_launch_reports(gpus: FakeGpus) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        index = fd.define_tensor([-1], contiguity=True, dtype=DataType.Int)
        fd.add_output(fd.ops.index_select(fd.ops.mul(x, 2.0), index, 0))
    x = torch.randn(5, 9)
    good, bad = torch.tensor([4, 0]), torch.tensor([4, 5])
    torch.testing.assert_close(at_home(fd.execute([on(0, x), on(0, good)])[0]), x[good] * 2)
    fd.execute([on(0, x), on(0, bad)])
    with pytest.raises(DeviceError, match="CUDA_ERROR_ASSERT.*; a kernel launched earlier may be"):
        fd.execute([on(0, x), on(0, good)])
