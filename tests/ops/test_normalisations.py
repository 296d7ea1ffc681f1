"""Normalisations as compiled kernels: softmax and norms over any dimensions, dtypes and layouts.

References are torch's own functions in float64; memory is poisoned.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pyfuser import FusionDefinition
from pyfuser.dtypes import from_torch
from tests.ops.reduction_definitions import FLOATS, LAYOUTS, Dims, Reference, in_float, random
from tests.support.long_cases import pairwise

pytestmark = pytest.mark.usefixtures("poison")


# -- (fd, x, dims) -> outputs, and torch's references in float64


def softmax(fd: FusionDefinition, x: Any, dims: list[int]) -> list[Any]:
    y = in_float(fd, x)
    e = fd.ops.exp(fd.ops.sub(y, fd.ops.max(y, dims, True)))
    return [fd.ops.cast(fd.ops.div(e, fd.ops.sum(e, dims, True)), x.dtype)]


def log_softmax(fd: FusionDefinition, x: Any, dims: list[int]) -> list[Any]:
    y = in_float(fd, x)
    shifted = fd.ops.sub(y, fd.ops.max(y, dims, True))
    total = fd.ops.log(fd.ops.sum(fd.ops.exp(shifted), dims, True))
    return [fd.ops.cast(fd.ops.sub(shifted, total), x.dtype), total]


def layer_norm(fd: FusionDefinition, x: Any, dims: list[int]) -> list[Any]:
    y = in_float(fd, x)
    variance, mean = fd.ops.var_mean(y, dims, 0, True)
    scale = fd.ops.rsqrt(fd.ops.add(variance, 1e-5))
    return [fd.ops.cast(fd.ops.mul(fd.ops.sub(y, mean), scale), x.dtype), mean, scale]


def rms_norm(fd: FusionDefinition, x: Any, dims: list[int]) -> list[Any]:
    y = in_float(fd, x)
    total = fd.ops.sum(fd.ops.mul(y, y), dims, True)
    count = fd.define_scalar(1.0)
    for dim in dims:
        count = fd.ops.mul(count, x.size(dim))
    variance = fd.ops.div(total, count)
    return [fd.ops.cast(fd.ops.mul(y, fd.ops.rsqrt(fd.ops.add(variance, 1e-6))), x.dtype)]


def residual_and_norm(fd: FusionDefinition, x: Any, dims: list[int]) -> list[Any]:
    """Two outputs of full size."""
    doubled = fd.ops.add(x, x)
    return [doubled, layer_norm(fd, doubled, dims)[0]]


def normalised(x: torch.Tensor, dims: Dims) -> list[torch.Tensor]:
    variance, mean = torch.var_mean(x, dims, correction=0, keepdim=True)
    scale = (variance + 1e-5).rsqrt()
    return [(x - mean) * scale, mean, scale]


def log_softmax_reference(x: torch.Tensor, dims: Dims) -> list[torch.Tensor]:
    shifted = x - x.amax(dims, True)
    total = shifted.exp().sum(dims, True).log()
    return [shifted - total, total]


NORMALISATIONS: dict[str, tuple[Callable[..., Any], Reference]] = {
    "softmax": (softmax, lambda x, d: [log_softmax_reference(x, d)[0].exp()]),
    "log_softmax": (log_softmax, log_softmax_reference),
    "layer_norm": (layer_norm, normalised),
    "rms_norm": (rms_norm, lambda x, d: [x * (x.square().mean(d, True) + 1e-6).rsqrt()]),
    "residual": (residual_and_norm, lambda x, d: [x + x, normalised(x + x, d)[0]]),
}


def check_normalisation(fd: FusionDefinition, name: str, x: torch.Tensor, dims: Dims) -> None:
    """Every output is as near to float64's as rounding lets it be.

    Sums may lose 32 roundings of their largest term; dividing by a small deviation amplifies that.
    """
    precise = x.double()
    amplified, least = float(precise.abs().max()), 1e-3
    if name in ("layer_norm", "residual"):
        amplified *= 2 * float(normalised(precise, dims)[2].max())
        least = 1.0
    computed_in = torch.float64 if x.dtype is torch.float64 else torch.float32
    for got, want in zip(fd.execute([x]), NORMALISATIONS[name][1](precise, dims), strict=True):
        assert got.shape == want.shape
        largest = float(want.abs().max())
        allowed = 32 * torch.finfo(computed_in).eps * max(amplified, 1) * max(largest, least)
        allowed += torch.finfo(got.dtype).eps * largest
        difference = float((got.double() - want).abs().max())
        assert difference <= allowed, (name, x.dtype, x.shape, difference, allowed)


@pytest.mark.parametrize(
    ("name", "dims", "dtype"),
    pairwise(
        NORMALISATIONS,
        [(2,), (1,), (0,), (0, 2), (1, 2), (0, 1, 2)],
        [torch.bfloat16, torch.float32, torch.float64, torch.float16],
    ),
)
def test_normalisations(name: str, dims: Dims, dtype: torch.dtype) -> None:
    define = NORMALISATIONS[name][0]
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1, -1, -1], dtype=from_torch(dtype))
        for output in define(fd, t, list(dims)):
            fd.add_output(output)
    for shape in ((3, 5, 7), (2, 33, 129)):
        x = random(shape, dtype, 7, center=1)
        layouts = LAYOUTS if dtype is torch.float32 else ("contiguous", "transposed")
        for layout in layouts:
            check_normalisation(fd, name, LAYOUTS[layout](x), dims)


@pytest.mark.parametrize(
    "shape", [(3, 70_001), (5, 4096), (70_001, 3), (2000, 64), (1, 9)], ids=str
)
@pytest.mark.parametrize("dim", [0, 1])
def test_normalisations_of_long_and_short_axes(shape: tuple[int, int], dim: int) -> None:
    for name in ("softmax", "layer_norm"):
        define = NORMALISATIONS[name][0]
        for dtype in (torch.float32, torch.bfloat16):
            with FusionDefinition() as fd:
                t = fd.define_tensor([-1, -1], contiguity=True, dtype=from_torch(dtype))
                for output in define(fd, t, [dim]):
                    fd.add_output(output)
            check_normalisation(fd, name, random(shape, dtype, 1, center=1), (dim,))


@pytest.mark.parametrize("channels_last", [False, True])
def test_batch_norm_with_weights_and_statistics(channels_last: bool) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(4, 6, 5, 7), torch.rand(6) + 0.5, torch.randn(6)
    running_mean, running_variance = torch.randn(6), torch.rand(6)
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    per_channel = [True, False, True, True]
    with FusionDefinition() as fd:
        t, w, b, rm, rv = (
            fd.from_pytorch(v) for v in (x, weight, bias, running_mean, running_variance)
        )
        variance, mean = fd.ops.var_mean(t, [0, 2, 3], 0)
        scale = fd.ops.rsqrt(fd.ops.add(variance, 1e-5))
        shift, factor, w4, b4 = (fd.ops.broadcast(v, per_channel) for v in (mean, scale, w, b))
        y = fd.ops.mul(fd.ops.sub(t, shift), factor)
        fd.add_output(fd.ops.add(fd.ops.mul(y, w4), b4))
        fd.add_output(mean)
        fd.add_output(scale)
        count = 4 * 5 * 7
        unbiased = fd.ops.mul(variance, count / (count - 1))
        for running, new in ((rm, mean), (rv, unbiased)):
            mixed = fd.ops.add(fd.ops.mul(running, 0.9), fd.ops.mul(new, 0.1))
            fd.add_output(mixed, running)
    want_mean, want_variance = running_mean.double(), running_variance.double()
    want = torch.nn.functional.batch_norm(
        x.double(), want_mean, want_variance, weight.double(), bias.double(), True, 0.1, 1e-5
    )
    y, mean, scale = fd.execute([x, weight, bias, running_mean, running_variance])
    close: Callable[..., None] = torch.testing.assert_close
    close(y.double(), want, rtol=1e-5, atol=1e-5)
    close(mean.double(), x.double().mean((0, 2, 3)), rtol=1e-5, atol=1e-6)
    exact = x.double().var((0, 2, 3), correction=0)
    close(scale.double(), (exact + 1e-5).rsqrt(), rtol=1e-5, atol=1e-6)
    close(running_mean.double(), want_mean, rtol=1e-5, atol=1e-6)
    close(running_variance.double(), want_variance, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_layer_norm_with_weights(dtype: torch.dtype) -> None:
    """The weights are of the input's dtype; the reference is torch's layer_norm."""
    torch.manual_seed(1)
    x, weight, bias = (torch.randn(s, dtype=torch.float64).to(dtype) for s in ((9, 70), 70, 70))
    with FusionDefinition() as fd:
        t, w, b = (in_float(fd, fd.from_pytorch(v)) for v in (x, weight, bias))
        (y, _, _) = layer_norm(fd, t, [1])
        fd.add_output(fd.ops.cast(fd.ops.add(fd.ops.mul(y, w), b), from_torch(dtype)))
    want = torch.nn.functional.layer_norm(x.double(), [70], weight.double(), bias.double(), 1e-5)
    fd.validate([x, weight, bias], [want])


def test_softmax_of_masked_rows() -> None:
    """Rows with infinities: a row of -inf only is NaN, as in torch."""
    x = torch.randn(5, 40, generator=torch.Generator().manual_seed(2))
    x[1, 3:] = -math.inf
    x[2] = -math.inf
    x[3, 7] = math.nan
    with FusionDefinition() as fd:
        fd.add_output(softmax(fd, fd.from_pytorch(x), [1])[0])
    (y,) = fd.execute([x])
    torch.testing.assert_close(y, torch.softmax(x, 1), equal_nan=True)
