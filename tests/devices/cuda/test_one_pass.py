"""Moments whose second pass would read memory again are computed in one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.devices.cuda.emulator.counters import Profile
from pyfuser.devices.cuda.emulator.runtime import emulated
from pyfuser.devices.cuda.target import CudaTarget
from pyfuser.dtypes import to_torch
from tests.cuda.host_compiler import requires_host_compiler

pytestmark = [requires_host_compiler, pytest.mark.usefixtures("strict")]

# So small a cache that few rows aren't read twice by a block.
SMALL = CudaTarget("sm_90", multiprocessors=132, l1_bytes=1 << 8, l2_bytes=1 << 12)


def normalisation(dims: list[int], dtype: DataType = DataType.Float) -> FusionDefinition:
    """x - mean, over the standard deviation; mean and variance."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=dtype)
        wide = fd.ops.cast(x, DataType.Float)
        variance, mean = fd.ops.var_mean(wide, dims, 0, True)
        scale = fd.ops.rsqrt(fd.ops.add(variance, 1e-5))
        fd.add_output(fd.ops.cast(fd.ops.mul(fd.ops.sub(wide, mean), scale), dtype))
        fd.add_output(mean)
        fd.add_output(variance)
    return fd


CASES = [
    ([1], (4, 5000)),
    ([1], (3, 8192)),
    ([0], (5000, 16)),
    ([0], (4099, 7)),
    ([0, 1], (70, 90)),
]


@pytest.mark.parametrize("offset", [0.0, 3.0, 1000.0])
@pytest.mark.parametrize(("dims", "shape"), CASES, ids=str)
def test_moments(dims: list[int], shape: tuple[int, int], offset: float) -> None:
    """The error of a variance grows with the mean, not with its square; that of a mean is small."""
    x = torch.randn(shape) + offset
    with emulated(SMALL):
        _, mean, variance = normalisation(dims).execute([x])
    wanted, exact = torch.var_mean(x.double(), dims, correction=0, keepdim=True)
    rounding = torch.finfo(torch.float32).eps
    assert ((variance - wanted) / wanted).abs().max() <= (8 + offset / 4) * rounding
    assert (mean - exact).abs().max() <= 8 * rounding * (1 + offset)


@pytest.mark.parametrize("dtype", [DataType.Float, DataType.BFloat16, DataType.Half], ids=str)
@pytest.mark.parametrize(("dims", "shape"), CASES, ids=str)
def test_a_tensor_is_read_twice(dims: list[int], shape: tuple[int, int], dtype: DataType) -> None:
    """By its moments, and by what they normalise."""
    x, profile = torch.randn(shape).to(to_torch(dtype)), Profile()
    with emulated(SMALL, profile):
        y, _, _ = normalisation(dims, dtype).execute([x])
    wide = x.double()
    variance, mean = torch.var_mean(wide, dims, correction=0, keepdim=True)
    tolerance: dict[str, Any] = {"rtol": 1e-2, "atol": 1e-2}
    torch.testing.assert_close(y.double(), (wide - mean) * (variance + 1e-5).rsqrt(), **tolerance)
    if x.nbytes > 1 << 15:
        read = sum(launch.counts.bytes_read for launch in profile.launches)
        assert 1.9 * x.nbytes < read < 2.5 * x.nbytes


def test_what_is_kept_is_read_once() -> None:
    """Rows that fit in registers still have their moments in two passes over these."""
    x, profile = torch.randn(256, 512), Profile()
    with emulated(CudaTarget("sm_90"), profile):
        normalisation([1]).execute([x])
    (launch,) = profile.launches
    assert launch.counts.bytes_read < 1.1 * x.nbytes


@pytest.mark.parametrize("dims", [[0], [1]], ids=str)
def test_values_that_are_not_finite(dims: list[int]) -> None:
    x = torch.randn(4, 5000) if dims == [1] else torch.randn(5000, 4)
    for number, value in enumerate((float("inf"), -float("inf"), float("nan"))):
        x[(number, 77) if dims == [1] else (77, number)] = value
    with emulated(SMALL):
        _, mean, variance = normalisation(dims).execute([x])
    assert variance.flatten()[:3].isnan().all() and variance.flatten()[3].isfinite()
    assert not mean.flatten()[:3].isfinite().any() and mean.flatten()[3].isfinite()
