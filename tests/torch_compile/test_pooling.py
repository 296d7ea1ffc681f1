"""Pooling, windows as columns, upsampling, shuffled pixels, cross products: eager's results."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pyfuser import explain
from tests.support.long_cases import first, pairwise

pytestmark = pytest.mark.usefixtures("poison")

WINDOWS: list[dict[str, Any]] = [
    {"kernel_size": 2},
    {"kernel_size": 2, "stride": 1, "padding": 1},
    {"kernel_size": 3, "stride": 1, "padding": 1, "count_include_pad": False},
    {"kernel_size": 3, "stride": 2, "padding": (0, 1), "count_include_pad": False},
    {"kernel_size": (2, 3), "stride": (1, 2), "padding": 1, "divisor_override": 5},
    {"kernel_size": 3, "stride": 2, "ceil_mode": True},
    {"kernel_size": 5},
    {"kernel_size": (3, 2)},
    {"kernel_size": 5, "stride": 1, "padding": 2, "count_include_pad": False},
    {"kernel_size": (3, 6), "stride": (2, 1), "padding": (1, 3)},
]


def assert_like_eager(function: Any, *inputs: Tensor) -> None:
    """Results with eager's strides, and gradients."""
    made, expected = torch.compile(function, backend="pyfuser")(*inputs), function(*inputs)
    torch.testing.assert_close(made, expected, equal_nan=True)
    sizes = zip(made.stride(), expected.stride(), expected.shape, strict=True)
    assert all(a == b for a, b, size in sizes if size > 1)
    if expected.requires_grad:
        gradients = (torch.autograd.grad(result.sum(), inputs) for result in (made, expected))
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(
    ("window", "dtype", "form"),
    pairwise(
        WINDOWS,
        [torch.float64, torch.bfloat16],
        [torch.contiguous_format, torch.channels_last],
        strength=1,
    ),
)
def test_average_pooling(
    window: dict[str, Any], dtype: torch.dtype, form: torch.memory_format
) -> None:
    for shape in [(2, 3, 8, 9), (1, 4, 5, 5), (3, 16, 7, 6)]:
        x = torch.randn(shape).to(dtype).contiguous(memory_format=form).requires_grad_()
        assert_like_eager(lambda x: F.avg_pool2d(x, **window), x)
    assert_like_eager(lambda x: F.avg_pool2d(x * 2, **window) + 1, torch.randn(3, 8, 8))


@pytest.mark.parametrize(
    ("dtype", "form"),
    pairwise(
        [torch.float64, torch.bfloat16],
        [torch.contiguous_format, torch.channels_last],
        strength=1,
    ),
)
def test_adaptive_average_pooling(dtype: torch.dtype, form: torch.memory_format) -> None:
    for shape, size in [((2, 3, 8, 9), (4, 3)), ((1, 8, 6, 6), (6, 2)), ((2, 3, 8, 9), (3, 9))]:
        x = torch.randn(shape).to(dtype).contiguous(memory_format=form).requires_grad_()
        assert_like_eager(lambda x, size=size: F.adaptive_avg_pool2d(x, size), x)
    # eager adds in half precision there
    volume = torch.randn(2, 3, 4, 6, 4, dtype=torch.float64, requires_grad=True)
    assert_like_eager(lambda x: F.adaptive_avg_pool3d(x, (2, 3, 4)), volume)


VOLUMES: list[dict[str, Any]] = [
    {"kernel_size": 2},
    {"kernel_size": (5, 1, 1), "stride": 1},
    {"kernel_size": (1, 3, 2), "stride": 1, "padding": (0, 1, 1)},
    {"kernel_size": (2, 2, 3), "stride": (1, 2, 1), "padding": 1, "count_include_pad": False},
    {"kernel_size": (3, 2, 1), "stride": 1, "padding": (1, 1, 0), "count_include_pad": False},
    {"kernel_size": 2, "stride": 1, "divisor_override": 5},
    {"kernel_size": 3, "stride": 1},
]


@pytest.mark.parametrize(
    ("window", "dtype"), pairwise(VOLUMES, [torch.float64, torch.float32], strength=1)
)
def test_average_pooling_of_volumes(window: dict[str, Any], dtype: torch.dtype) -> None:
    for shape in [(2, 3, 6, 8, 9), (1, 2, 5, 5, 5), (3, 7, 6, 5)]:
        x = torch.randn(shape).to(dtype).requires_grad_()
        assert_like_eager(lambda x: F.avg_pool3d(x, **window), x)


@pytest.mark.parametrize("size", [1, 3, 4, 5])
def test_local_response_normalisation(size: int) -> None:
    """Average pooling across the channels."""
    x = torch.randn(2, 9, 5, 6, requires_grad=True)
    assert_like_eager(lambda x: F.local_response_norm(x, size), x)


def test_average_pooling_of_rows() -> None:
    for options in ({"stride": 1, "padding": 1}, {"stride": 2}, {"stride": 1, "ceil_mode": True}):
        x = torch.randn(3, 4, 17, requires_grad=True)
        assert_like_eager(lambda x, o=options: F.avg_pool1d(x, 3, **o), x)


LAYOUTS = {
    "a channels-last image of a batch": torch.randn(2, 6, 8, 3).permute(0, 3, 1, 2)[0],
    "transposed": torch.randn(2, 12, 8, 6).transpose(2, 3),
    "channels outermost": torch.randn(12, 2, 6, 8).transpose(0, 1),
    "channels last": torch.randn(2, 6, 8, 12).permute(0, 3, 1, 2),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_results_have_eagers_layout(name: str) -> None:
    assert_like_eager(lambda x: F.avg_pool2d(x, 2), LAYOUTS[name])
    assert_like_eager(lambda x: F.avg_pool2d(x.sin(), 3, 2, 1) * 2, LAYOUTS[name])
    assert_like_eager(lambda x: F.rrelu(x), LAYOUTS[name])
    assert_like_eager(lambda x: F.channel_shuffle(x, 3) + 1, LAYOUTS[name])
    assert_like_eager(lambda x: F.channel_shuffle(x, 1), LAYOUTS[name])


@pytest.mark.parametrize("channels", [3, 16])
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last], ids=str)
def test_max_pooling(form: torch.memory_format, channels: int) -> None:
    """Of few and of many channels, in inference and with gradients."""
    x = torch.randn(2, channels, 32, 17).contiguous(memory_format=form)
    x[0, 0, 3], x[1, 1, 5, 5] = -torch.inf, torch.nan
    for window in ({"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1}):
        function = lambda x, w=window: F.max_pool2d(x * 2, **w) + 1  # noqa: E731
        assert_like_eager(function, x)
        torch.testing.assert_close(
            *(
                torch.autograd.grad(made(leaf).nansum(), leaf)
                for made in (torch.compile(function, backend="pyfuser"), function)
                for leaf in [x.clone().requires_grad_()]
            )
        )
    assert_like_eager(lambda x: F.max_pool1d(x, 3, 2, 1), torch.randn(4, 32, 99))


@pytest.mark.parametrize("channels", [3, 16])
def test_pooling_fuses_with_its_neighbours(channels: int) -> None:
    for pool in (F.avg_pool2d, F.max_pool2d):
        x = torch.randn(2, channels, 32, 16)
        report = explain(lambda x, pool=pool: pool(x + 1, 2).relu(), x)
        assert report.kernel_count == 1 and not report.graphs[0].outside


COLUMNS: list[dict[str, Any]] = [
    {"kernel_size": 3},
    {"kernel_size": (2, 3), "padding": (1, 2), "stride": (2, 1)},
    {"kernel_size": (3, 1), "dilation": 2, "padding": 1},
    {"kernel_size": 4, "stride": 4},
    {"kernel_size": 1},
]


@pytest.mark.parametrize("window", first(2, COLUMNS), ids=str)
def test_windows_as_columns(window: dict[str, Any]) -> None:
    weight = torch.randn(5, 3 * math.prod(_pair(window["kernel_size"])), dtype=torch.float64)
    for x in (
        torch.randn(2, 3, 8, 9),
        torch.randn(2, 9, 8, 3).transpose(1, 3),
        torch.ones(3, 8, 7),
    ):
        x = x.double().requires_grad_()
        assert_like_eager(lambda x: F.unfold(x, **window), x)
        assert_like_eager(lambda x: F.unfold(x.sin(), **window).amax(-2) * 2, x)
        assert_like_eager(lambda x: weight @ F.unfold(x + 1, **window), x)


def _pair(value: Any) -> tuple[int, int]:
    return value if isinstance(value, tuple) else (value, value)


@pytest.mark.parametrize(
    ("mode", "dtype", "form"),
    pairwise(
        ["nearest", "nearest-exact"],
        [torch.float64, torch.bfloat16],
        [torch.contiguous_format, torch.channels_last],
    ),
)
def test_upsampling(mode: str, dtype: torch.dtype, form: torch.memory_format) -> None:
    """By powers of two in kernels, by other factors as in eager."""
    for shape in [(2, 3, 8, 9), (1, 1, 5, 5), (3, 16, 1, 6)]:
        torch._dynamo.reset()
        x = torch.randn(shape).to(dtype).contiguous(memory_format=form).requires_grad_()
        for scale in (2, 3, (1, 4), 1.5, 8, 0.5):
            if min(shape[2:]) > 1 or scale != 0.5:
                assert_like_eager(
                    lambda x, scale=scale: F.interpolate(x, scale_factor=scale, mode=mode), x
                )
        assert_like_eager(lambda x: F.interpolate(x + 1, (16, 36), mode=mode) * 2, x)


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_downsampling(mode: str, form: torch.memory_format) -> None:
    """By powers of two along all axes in kernels, else as in eager."""
    x = torch.randn(2, 3, 8, 16).contiguous(memory_format=form).requires_grad_()
    for size in [(4, 8), (2, 16), (8, 2), (4, 32), (3, 8), (8, 16)]:
        assert_like_eager(lambda x, size=size: F.interpolate(x, size, mode=mode), x)
    for scale in [0.5, (0.25, 1), (0.3, 0.5)]:
        assert_like_eager(lambda x, s=scale: F.interpolate(x + 1, scale_factor=s, mode=mode), x)
    for name in ("transposed", "channels outermost"):
        assert_like_eager(lambda x: F.interpolate(x, scale_factor=0.5, mode=mode), LAYOUTS[name])


@pytest.mark.parametrize("name", ["transposed", "channels last", "channels outermost"])
def test_upsampled_images_have_eagers_layout(name: str) -> None:
    x = LAYOUTS[name].requires_grad_()
    assert_like_eager(lambda x: F.interpolate(x, scale_factor=2), x)
    assert_like_eager(lambda x: F.interpolate(x[:, :, 1:, ::2], scale_factor=2).sin(), x)
    assert_like_eager(lambda x: F.interpolate(x.sin()[:1], scale_factor=2) + 1, x)


def test_upsampled_rows_and_videos() -> None:
    assert_like_eager(lambda x: F.interpolate(x, scale_factor=4), torch.randn(2, 3, 5))
    video = torch.randn(2, 3, 2, 5, 4, requires_grad=True)
    assert_like_eager(lambda x: F.interpolate(x, scale_factor=2), video)
    moved = video.detach().to(memory_format=torch.channels_last_3d).requires_grad_()
    assert_like_eager(lambda x: F.interpolate(x, scale_factor=(1, 2, 2)) + 1, moved)
    image = torch.randint(0, 255, (1, 3, 5, 4), dtype=torch.uint8)
    assert_like_eager(lambda x: F.interpolate(x, scale_factor=2), image)


def test_upsampling_fuses_with_its_neighbours() -> None:
    small, large = torch.randn(2, 4, 8, 8), torch.randn(2, 4, 16, 16)
    report = explain(lambda x, y: y + F.interpolate(x.relu(), scale_factor=2), small, large)
    assert report.kernel_count == 1


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("channels", [4, 12])
@pytest.mark.parametrize("shuffle", [F.pixel_shuffle, F.pixel_unshuffle])
def test_shuffled_pixels(shuffle: Any, channels: int, form: torch.memory_format) -> None:
    """One channel is in both orders of memory."""
    x = torch.randn(2, channels, 8, 6).contiguous(memory_format=form).requires_grad_()
    assert_like_eager(lambda x: shuffle(x, 2), x)
    assert_like_eager(lambda x: shuffle(x + 1, 2) * 2, x)


def test_an_image_of_one_channel_in_channels_last() -> None:
    def shuffled(x: Tensor) -> Tensor:
        parts = x.view(2, 1, 2, 2, 8, 8).permute(0, 1, 4, 2, 5, 3).contiguous()
        return parts.view(2, 1, 16, 16).clone(memory_format=torch.channels_last)

    assert_like_eager(shuffled, torch.randn(2, 4, 8, 8))
    assert_like_eager(lambda x: shuffled(x).relu() + 1, torch.randn(2, 4, 8, 8))


@pytest.mark.parametrize("shape", [(5, 3), (40, 3), (0, 3), (2, 3, 20)], ids=str)
def test_cross_products(shape: tuple[int, ...]) -> None:
    dim = shape.index(3)
    x, y = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert_like_eager(lambda x, y: torch.linalg.cross(x, y, dim=dim), x, y)
    assert_like_eager(lambda x, y: torch.linalg.cross(x, y[:1], dim=dim) * 2, x, y)


def test_a_cross_product_of_channels_is_contiguous() -> None:
    x = torch.randn(2, 3, 3, 4, 6).to(memory_format=torch.channels_last_3d)
    assert_like_eager(lambda x: torch.linalg.cross(x, x + 1, dim=2), x)
