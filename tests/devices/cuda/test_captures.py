"""What a CUDA graph's capture may meet, on a driver that ends it at a forbidden call."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from pyfuser import FusionDefinition
from pyfuser.devices.cuda import modules
from pyfuser.errors import DeviceError
from pyfuser.interface import ManualKernel
from pyfuser.ops import random_state
from tests.cuda.examples import shared_sum
from tests.cuda.fake_driver import MAGIC, FakeGpus, Mode, Result, at_home, fake_gpus, on
from tests.cuda.host_compiler import requires_host_compiler

pytestmark = [requires_host_compiler, pytest.mark.usefixtures("strict")]

EMPTY_KERNEL = b'extern "C" __global__ void kernel(float* x) {}'
GRAPH_STREAM = 7  # the default stream is never captured


@pytest.fixture
def gpus() -> Iterator[FakeGpus]:
    with fake_gpus() as found:
        yield found


def defined(build: Callable[..., Any]) -> FusionDefinition:
    with FusionDefinition() as fd:
        fd.add_output(build(fd.ops, fd.define_tensor([-1, -1], contiguity=True)))
    return fd


def normalised() -> FusionDefinition:
    """Each row divided by its sum: kernels with vectors."""
    return defined(lambda ops, x: ops.div(x, ops.sum(x, 1, keepdim=True)))


def total() -> FusionDefinition:
    """A kernel with counters."""
    return defined(lambda ops, x: ops.sum(x))


def captured(gpus: FakeGpus, fd: FusionDefinition, x: torch.Tensor) -> Callable[[], torch.Tensor]:
    """A call of the graph of `fd`: its result."""
    gpus.streams[0] = GRAPH_STREAM
    with gpus.captured() as graph:
        (result,) = fd.execute([on(0, x)])
    gpus.streams[0] = 0

    def replay() -> torch.Tensor:
        for node in graph:
            node()
        return at_home(result)

    return replay


def check_replays(replay: Callable[[], torch.Tensor], x: torch.Tensor, reference: Any) -> None:
    for _ in range(3):
        x.uniform_(0.5, 1)
        torch.testing.assert_close(replay(), reference(x), rtol=1e-4, atol=1e-4)


def misaligned() -> torch.Tensor:
    return torch.rand(7 * 64 + 1)[1:].view(7, 64)


def test_the_fake_driver_ends_a_capture_at_a_forbidden_call(gpus: FakeGpus) -> None:
    driver, image = gpus.driver, MAGIC + b"sm_90 " + EMPTY_KERNEL
    for relaxed in (False, True):
        if relaxed:
            driver.cuThreadExchangeStreamCaptureMode(Mode.CU_STREAM_CAPTURE_MODE_RELAXED)
        with gpus.captured():
            status, _ = driver.cuModuleLoadData(image)
            assert (status == Result.CUDA_SUCCESS) is relaxed
            assert driver.capture.is_invalid is not relaxed
            driver.capture.is_invalid = False
    with pytest.raises(RuntimeError, match="previous error during capture"), gpus.captured():
        status = driver.cuModuleUnload(driver.cuModuleLoadData(image)[1])
        assert status == (Result.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,)


def test_a_warm_plan_that_meets_other_addresses_loads_their_kernel(gpus: FakeGpus) -> None:
    fd, x = normalised(), misaligned()
    fd.execute([on(0, torch.rand(7, 64))])
    gpus.synchronised.clear()
    replay = captured(gpus, fd, x)
    check_replays(replay, x, lambda x: x / x.sum(1, True))
    assert gpus.driver.calls.count("cuModuleLoadData") == 2
    assert gpus.driver.capture_mode == Mode.CU_STREAM_CAPTURE_MODE_GLOBAL
    assert not gpus.synchronised


@pytest.mark.parametrize(
    ("make", "reference"),
    [(normalised, lambda x: x / x.sum(1, True)), (total, lambda x: x.sum())],
    ids=["vectors", "counters"],
)
def test_a_first_call_may_be_captured(
    make: Callable[[], FusionDefinition], reference: Any, gpus: FakeGpus
) -> None:
    x = torch.rand(300, 300)
    check_replays(captured(gpus, make(), x), x, reference)
    assert not gpus.synchronised


def noise() -> FusionDefinition:
    """Two random operations, in a kernel of rows and one of columns."""

    def build(ops: Any, x: Any) -> Any:
        scaled = ops.mul(x, ops.rand_like(x))
        return ops.add(ops.sum(scaled, 0, keepdim=True), ops.randn_like(scaled))

    return defined(build)


def test_seeds_of_a_captured_call_are_read_from_memory(
    gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What torch's operation draws at each replay is what the kernels use."""
    fd, x, seed = noise(), torch.rand(20, 64), torch.tensor(0)
    fd.execute([on(0, x), 5, 0])
    compiled = len(gpus.compiled)
    gpus.note(seed)
    monkeypatch.setattr(random_state, "is_capturing", lambda device: True)
    monkeypatch.setattr(random_state, "seed_in_memory", lambda device: on(0, seed))
    replay = captured(gpus, fd, x)
    for number in (5, -3, 1 << 62):
        seed.fill_(number)
        (expected,) = fd.execute([x, number, 0])
        torch.testing.assert_close(replay(), expected, rtol=1e-4, atol=1e-4)
    assert len(gpus.compiled) == compiled
    assert not gpus.synchronised


def test_another_thread_may_compile_during_a_capture(gpus: FakeGpus) -> None:
    fd, x = normalised(), torch.rand(20, 64)
    fd.execute([on(0, x)])
    y, found = torch.rand(300, 300), []
    thread = threading.Thread(target=lambda: found.append(total().execute([on(0, y)])[0]))
    with gpus.captured() as graph:
        thread.start()
        thread.join()
        fd.execute([on(0, x)])
    torch.testing.assert_close(at_home(found[0]), y.sum(), rtol=1e-4, atol=1e-4)
    assert len(graph) == 1


def test_modules_are_not_unloaded_during_a_capture(
    gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules, "WORTH_WAITING", 1)
    fd, x = normalised(), misaligned()
    fd.execute([on(0, torch.rand(7, 64))])
    fd.execute([on(0, x)])  # its module is that of the plan alone
    del fd
    gc.collect()
    check_replays(captured(gpus, total(), x), x, lambda x: x.sum())
    assert not gpus.driver.unloaded
    rows = torch.rand(3, 20000)
    ManualKernel(shared_sum(), [on(0, rows)])
    assert len(gpus.driver.unloaded) == 1


def test_a_driver_that_loads_nothing_during_a_capture_is_told_of(gpus: FakeGpus) -> None:
    fd = normalised()
    fd.execute([on(0, torch.rand(7, 64))])
    gpus.driver.failures["cuModuleLoadData"] = Result.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    with pytest.raises(DeviceError, match="; run the call once before it is captured"):
        captured(gpus, fd, misaligned())
    assert gpus.driver.capture_mode == Mode.CU_STREAM_CAPTURE_MODE_GLOBAL
