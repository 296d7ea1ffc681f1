"""When modules are unloaded, on a driver that refuses to launch what is unloaded."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

from pyfuser import kernel_builds
from pyfuser.devices.cuda import modules
from pyfuser.interface import ManualKernel
from pyfuser.kernel_cache import KernelCache
from tests.cuda.examples import add_chain, grid_sum, shared_sum
from tests.cuda.fake_driver import FakeGpus, at_home, fake_gpus, on
from tests.cuda.host_compiler import requires_host_compiler

pytestmark = [requires_host_compiler, pytest.mark.usefixtures("strict")]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpus]:
    monkeypatch.setattr(modules, "WORTH_WAITING", 1)
    monkeypatch.setattr(kernel_builds, "_binaries", KernelCache(1))  # which keeps the last module
    with fake_gpus() as found:
        yield found


def total(x: torch.Tensor) -> tuple[ManualKernel, torch.Tensor]:
    """A kernel that has run, and its result."""
    kernel = ManualKernel(grid_sum(), [on(0, x)])
    return kernel, kernel.run([on(0, x)])[0]


def load_another() -> None:
    """Loads a module, which is when others are unloaded."""
    gc.collect()
    for make, count in ((shared_sum, 1), (add_chain, 2)):
        inputs = [on(0, torch.randn(3, 200)) for _ in range(count)]
        ManualKernel(make(), inputs).run(inputs)


def test_a_module_is_unloaded_after_its_kernels(gpus: FakeGpus) -> None:
    x = torch.randn(300)
    kernel, result = total(x)
    load_another()
    torch.testing.assert_close(at_home(kernel.run([on(0, x)])[0]), at_home(result))
    del kernel
    unloaded, waited = len(gpus.driver.unloaded), len(gpus.synchronised)
    load_another()
    assert len(gpus.driver.unloaded) > unloaded
    assert len(gpus.synchronised) > waited, "launches may have been under way"


def test_the_driver_is_not_called_when_a_kernel_is_dropped(gpus: FakeGpus) -> None:
    kernel, _ = total(torch.randn(300))
    calls = list(gpus.driver.calls)
    del kernel
    gc.collect()
    assert gpus.driver.calls == calls


def test_a_module_that_a_graph_has_stays(gpus: FakeGpus) -> None:
    x = torch.randn(300)
    kernel, _ = total(x)
    gpus.streams[0] = 7  # the default stream is never captured
    with gpus.captured() as graph:
        (result,) = kernel.run([on(0, x)])
    gpus.streams[0] = 0
    del kernel
    for _ in range(2):
        load_another()
    x.normal_()
    for node in graph:
        node()
    torch.testing.assert_close(at_home(result), 2 * x.sum(), rtol=1e-4, atol=1e-4)
