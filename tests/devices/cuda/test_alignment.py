"""Kernels for aligned vectors and those for any address: launches choose by their arguments."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.devices.cuda import nvrtc
from pyfuser.devices.cuda.alignment import Alignment, misaligned
from pyfuser.devices.cuda.codegen import generate
from pyfuser.devices.cuda.emulator.runtime import emulated
from pyfuser.dtypes import to_torch
from pyfuser.ir.fusion import Fusion
from pyfuser.ir.kernel import Buffer
from pyfuser.ir.scalars import ONE, Symbol
from pyfuser.ir.schedule import MemoryType, ScheduledFusion
from pyfuser.ops import builders
from tests.cuda.cubins import require_cubin, requires_nvrtc
from tests.cuda.emulate import cuda_kernel
from tests.cuda.examples import input_tensor, tiled_transpose, vector_schedule
from tests.cuda.fake_driver import FakeGpus, at_home, fake_gpus, on
from tests.cuda.host_compiler import requires_host_compiler

I0, I1 = Symbol.of("i0"), Symbol.of("i1")
T0, T1, T2 = (Buffer(f"T{n}", DataType.Float, MemoryType.global_, ONE) for n in range(3))


@pytest.fixture
def gpus() -> Iterator[FakeGpus]:
    with fake_gpus(1) as found:
        yield found


def rows_scaled(dtype: DataType = DataType.Float) -> FusionDefinition:
    """Each row divided by its sum, from a tensor whose rows have any stride."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=[False, True], dtype=dtype)
        wide = fd.ops.cast(x, DataType.Float)
        total = fd.ops.sum(wide, [1], keepdim=True)
        fd.add_output(fd.ops.cast(fd.ops.div(wide, total), dtype))
    return fd


@pytest.mark.parametrize(
    ("given", "holds"),
    [
        ((512, 80, 8, 2, 6), True),
        ((512, 0, 0, 0, 0), True),
        ((520, 80, 8, 2, 6), False),
        ((512, 72, 8, 2, 6), False),
        ((512, 80, 4, 2, 6), False),
        ((512, 80, 8, 3, 5), False),
        ((512, 80, 8, 1, 4), True),
    ],
)
def test_arguments_are_asked_for_each_condition(given: tuple[int, ...], holds: bool) -> None:
    conditions = [Alignment(T0, 16), Alignment(T1, 16), Alignment(T2, 8), Alignment((I0, I1), 4)]
    ask = misaligned(conditions, (T0, T1, T2, I0, I1))
    assert (ask(*given) == 0) == holds


def test_a_condition_is_printed_as_the_kernel_tests_it() -> None:
    assert str(Alignment(T0, 16)) == "is_aligned<16>(T0)"
    assert str(Alignment((I0, I1), 4)) == "i0*i1 % 4 == 0"
    assert Alignment((I0, I1), 4).is_known_from([T0, I1, I0])
    assert not Alignment((I0, I1), 4).is_known_from([T0, I1])


def test_a_kernel_without_vectors_has_no_conditions() -> None:
    source = generate(cuda_kernel(tiled_transpose()))
    assert [launch.alignments for launch in source.launches] == [()]
    assert source.for_any_address.text == source.text


@requires_nvrtc
@pytest.mark.parametrize("architecture", nvrtc.ARCHITECTURES)
def test_the_kernel_for_any_address_compiles(architecture: str) -> None:
    fusion = Fusion()
    fusion.add_output(builders.exp(fusion, input_tensor(fusion, 1)))
    source = generate(cuda_kernel(vector_schedule(ScheduledFusion(fusion), 32, 4)))
    assert "load_contiguous" not in source.text
    assert "load_contiguous" in source.for_any_address.text
    require_cubin([source.for_any_address.text], architecture)


@requires_host_compiler
def test_a_launch_of_misaligned_vectors_loads_another_module_once(gpus: FakeGpus) -> None:
    fd, calls = rows_scaled(), gpus.driver.calls
    whole = torch.rand(7 * 64 + 1)
    for start, modules in ((0, 1), (1, 2), (0, 2), (1, 2)):
        x = whole[start : start + 7 * 64].view(7, 64)
        (got,) = fd.execute([on(0, x)])
        torch.testing.assert_close(at_home(got), x / x.sum(1, True))
        assert calls.count("cuModuleLoadData") == modules
    assert [launched.arguments[0] % 16 for launched in gpus.driver.launches] == [0, 4, 0, 4]
    assert len({launched.grid for launched in gpus.driver.launches}) == 1


@requires_host_compiler
@pytest.mark.parametrize("dtype", [DataType.Float, DataType.Half, DataType.Double], ids=str)
@pytest.mark.parametrize(
    ("stride", "start"), [(64, 0), (64, 1), (64, 4), (66, 0), (67, 3), (68, 8)]
)
def test_rows_at_any_address_and_stride(dtype: DataType, stride: int, start: int) -> None:
    whole = (0.5 + torch.rand(9 * stride + start)).to(to_torch(dtype))
    x = whole.as_strided((9, 64), (stride, 1), start)
    with emulated():
        (got,) = rows_scaled(dtype).execute([x])
    wanted = x.double() / x.double().sum(1, True)
    torch.testing.assert_close(
        got.double(), wanted, rtol=2e-3 if dtype is DataType.Half else 1e-5, atol=0
    )
