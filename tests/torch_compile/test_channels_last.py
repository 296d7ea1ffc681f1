"""Library calls on contiguous images are computed in channels-last memory; nobody sees it.

The oracle is eager in float64; shapes, strides, dtypes and the indices of maxima are eager's.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support.compiled import sources as sources
from tests.support.compiled import strict as strict
from tests.torch_compile.errors_of_results import compared

pytestmark = [pytest.mark.usefixtures("poison"), pytest.mark.cpu]

DTYPES = (torch.float32, torch.bfloat16)
IMAGES = (4, 16, 40, 33)
LAST = torch.channels_last


def check(function: Callable[..., Tensor], *inputs: Tensor) -> None:
    with torch.no_grad():
        found = compared(function, *inputs)
    assert found.got.stride() == found.eager.stride()
    found.require_as_precise(32 * found.rounding * max(found.scale, 1.0))


def made(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(shape).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        ((24, 16, 3, 3), {"padding": 1}),
        ((24, 16, 1, 1), {}),
        ((16, 1, 5, 5), {"groups": 16, "padding": 2}),
        ((8, 4, 3, 3), {"groups": 4, "stride": 2}),
        ((8, 16, 3, 3), {"dilation": 2, "padding": (2, 1)}),
    ],
)
def test_convolutions(kernel: tuple[int, ...], options: dict, dtype: torch.dtype) -> None:
    x, weight, bias = made(IMAGES, dtype), made(kernel, dtype) / 8, made(kernel[:1], dtype)
    check(lambda x, w, b: F.conv2d(x.sin(), w, b, **options).relu(), x, weight, bias)
    check(lambda x, w: F.conv2d(x, w, **options), x, weight)
    check(lambda x, w: F.conv2d(x, w, **options), x.contiguous(memory_format=LAST), weight)
    check(lambda x, w: F.conv2d(x, w, **options).mean((2, 3)), x.transpose(2, 3), weight)


@pytest.mark.parametrize(
    "shape", [(64, 1, 32, 32), (4096, 16, 1, 1), (0, 16, 40, 33), (2, 3, 5, 7)]
)
def test_images_whose_memory_format_is_ambiguous_or_that_are_small(
    shape: tuple[int, ...],
) -> None:
    x, weight = made(shape, torch.float32), made((4, shape[1], 1, 1), torch.float32)
    check(lambda x, w: F.conv2d(x.sin(), w).sin(), x, weight)


def allocation(shape: tuple[int, ...], memory_format: torch.memory_format) -> str:
    """The beginning of the code that allocates images."""
    return f"empty({shape}, {torch.empty(shape).to(memory_format=memory_format).stride()}"


def test_a_residual_block_stores_no_image_contiguously(sources: list[str]) -> None:
    def block(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        x = F.relu(x)
        for _ in range(2):
            inner = F.relu(F.conv2d(x, first, padding=1))
            x = x + F.relu(F.conv2d(inner, second, padding=1))
        return x.mean((2, 3))

    weights = (made((16, 16, 3, 3), torch.float32) / 12 for _ in range(2))
    check(block, made(IMAGES, torch.float32), *weights)
    (source,) = sources
    assert source.count("call_aten__convolution(") == 4
    assert allocation(IMAGES, LAST) in source
    assert allocation(IMAGES, torch.contiguous_format) not in source


def test_weights_of_one_place_or_one_channel_are_not_copied(sources: list[str]) -> None:
    def block(x: Tensor, wide: Tensor, depthwise: Tensor, narrow: Tensor) -> Tensor:
        inner = F.relu6(F.conv2d(x, wide))
        inner = F.relu6(F.conv2d(inner, depthwise, padding=1, groups=32))
        return x + F.conv2d(inner, narrow)

    shapes = ((32, 16, 1, 1), (32, 1, 3, 3), (16, 32, 1, 1))
    check(block, made(IMAGES, torch.float32), *(made(s, torch.float32) / 8 for s in shapes))
    (source,) = sources
    assert "clone(" not in source
    inner = (IMAGES[0], 32, *IMAGES[2:])
    assert source.count(allocation(inner, LAST)) == 2


@pytest.mark.parametrize(("count", "is_last"), [(16, True), (1, False)])
def test_a_weight_is_copied_if_it_is_used_often(
    sources: list[str], count: int, is_last: bool
) -> None:
    images, weight = (count, 64, 6, 6), made((64, 64, 3, 3), torch.float32) / 24
    check(
        lambda x, w: F.relu(F.conv2d(F.relu(x), w, padding=1)), made(images, torch.float32), weight
    )
    (source,) = sources
    assert (allocation(images, LAST) in source) is is_last


POOLING: dict[str, Callable[[Tensor], Tensor]] = {
    "max": lambda x: F.max_pool2d(x, 3, 2, 1),
    "average": lambda x: F.avg_pool2d(x, 5, 1, 2),
    "adaptive average": lambda x: F.adaptive_avg_pool2d(x, (5, 7)),
    "adaptive maximum": lambda x: F.adaptive_max_pool2d(x, (5, 7)),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bilinear, aligned": lambda x: F.interpolate(
        x, size=(25, 71), mode="bilinear", align_corners=True
    ),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", POOLING)
def test_pooling_and_upsampling(name: str, dtype: torch.dtype) -> None:
    x = made(IMAGES, dtype)
    check(lambda x: POOLING[name](x.sin()) * 2, x)
    check(POOLING[name], x.transpose(2, 3))


@pytest.mark.parametrize("name", POOLING)
def test_their_gradients(name: str) -> None:
    x = made(IMAGES, torch.float32)
    compiled = torch.compile(lambda x: POOLING[name](x.sin()).cos(), backend="pyfuser")
    found = []
    for function, given in ((compiled, x.clone()), (compiled, x.double())):
        if given.dtype == torch.float64:
            function = lambda x: POOLING[name](x.sin()).cos()  # noqa: E731
        given.requires_grad_()
        function(given).sum().backward()
        found.append(given.grad)
    got, want = found
    assert got is not None and want is not None and got.stride() == want.stride()
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)


def test_maxima_are_the_first_of_equal_elements_and_of_nans() -> None:
    x = made(IMAGES, torch.float32).round()
    x[0, :, ::7, ::5] = torch.nan
    function = lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True)  # noqa: E731
    got = torch.compile(function, backend="pyfuser")(x)
    for mine, theirs in zip(got, function(x), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)
        assert mine.stride() == theirs.stride()


def trained(network: Callable[..., Tensor], *inputs: Tensor) -> None:
    """Result and gradients are as precise as eager's, with eager's strides."""
    compiled = torch.compile(network, backend="pyfuser")
    found: list[list[Tensor]] = []
    for function, dtype in ((compiled, torch.float32), (network, torch.float64)):
        given = [each.to(dtype, copy=True).requires_grad_() for each in inputs]
        result = function(*given)
        (result.sin() * torch.arange(result.shape[-1])).sum().backward()
        gradients = [each.grad for each in given if each.grad is not None]
        assert len(gradients) == len(given)
        found.append([result.detach(), *gradients])
    for got, want in zip(*found, strict=True):
        assert got.stride() == want.stride()
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-4 * want.abs().max())


def normed(x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """A convolution, a batch norm and relu."""
    images = F.conv2d(x, weight, padding=1)
    return F.relu(F.batch_norm(images, None, None, scale, shift, training=True))


def blocks(x: Tensor, weights: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Two residual blocks; their input isn't an argument's memory."""
    x = F.relu(x)
    for weight in weights.unbind():
        x = F.relu(x + normed(x, weight, scale, shift))
    return x


def parameters() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    weights = made((2, 16, 16, 3, 3), torch.float32) / 12
    return made(IMAGES, torch.float32), weights, torch.rand(16) + 0.5, torch.rand(16)


def test_training_stores_images_channels_last(sources: list[str]) -> None:
    trained(lambda *given: blocks(*given).mean((2, 3)), *parameters())
    forward, backward = sources
    assert forward.count("call_aten__convolution(") == 2
    assert backward.count("call_aten__convolution_backward(") == 2
    # x is an argument, and so is its gradient.
    assert allocation(IMAGES, torch.contiguous_format) not in forward
    assert backward.count(allocation(IMAGES, torch.contiguous_format)) == 1
    assert allocation(IMAGES, LAST) in forward and allocation(IMAGES, LAST) in backward


READERS: dict[str, Callable[[Tensor], Tensor]] = {
    "itself": lambda x: x,
    "view": lambda x: x.flatten(1),
    "transposed": lambda x: x.transpose(1, 3),
    "reduced": lambda x: x.sum(1),
    "reshaped": lambda x: x.reshape(-1, 8, x.shape[-1]).softmax(1),
    "parts": lambda x: torch.cat([x[:, 3:], 2 * x[:, :3]], 1),
    "as columns": lambda x: x.permute(0, 2, 3, 1) @ x.mean((0, 2, 3)),
    "pooled": lambda x: F.max_pool2d(x, 2),
}


@pytest.mark.parametrize("name", READERS)
def test_what_reads_the_images_of_training_is_right(name: str) -> None:
    trained(lambda x, *rest: READERS[name](blocks(x, *rest) * x.exp().clamp(max=2)), *parameters())


def test_operands_of_either_format_in_training() -> None:
    def network(x: Tensor, mask: Tensor, weights: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        inner = normed(x, weights[0], scale, shift)
        joined = torch.cat([torch.where(mask > 0, inner, -inner), mask * x], 1)
        return F.conv2d(joined, torch.cat(weights.unbind(), 1), padding=1)

    x, *rest = parameters()
    mask = made(IMAGES, torch.float32)
    for first in (x, x.contiguous(memory_format=LAST)):
        for second in (mask, mask.contiguous(memory_format=LAST), mask[:1].expand(IMAGES)):
            trained(network, first, second.detach(), *rest)
