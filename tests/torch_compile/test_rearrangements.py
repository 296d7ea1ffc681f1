"""flip and roll: in kernels with their neighbours, alone, and of every layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pyfuser import explain
from tests.programs.check import strides
from tests.support.long_cases import long, pairwise

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "flip": lambda x: x.flip(-1),
    "flip of all": lambda x: x.flip(0, 1) * 2,
    "flip of a flip": lambda x: x.flip(1).flip(1, 0) + x,
    "slice of a flip": lambda x: x.flip(1)[:, 1:4] * 2,
    "flip of a slice": lambda x: x[:, 1:].flip(1) + 1,
    "flip in place": lambda x: x.clone().copy_(x.flip(1)),
    "flip, summed": lambda x: (x.flip(1) * x).sum(1),
    "roll": lambda x: torch.roll(x, 3, 1) + x,
    "roll of two": lambda x: torch.roll(x, (1, -2), (0, 1)),
    "roll, averaged": lambda x: torch.roll(x, -1, 1).mean(0),
    "roll of a roll": lambda x: torch.roll(torch.roll(x * 2, 1, 1), -1, 1),
    "roll by the length": lambda x: torch.roll(x, x.shape[1], 1) + 1,
    "roll of all elements": lambda x: torch.roll(x, 5) + 1,
}
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.t().contiguous().t(),
    "expanded": lambda x: x[:, :1].expand(-1, x.shape[1]),
    "strided": lambda x: x.repeat_interleave(2, 1)[:, ::2],
    "one row": lambda x: x[:1],
}


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize(
    ("function", "layout", "dynamic"),
    pairwise(
        (pytest.param(function, id=name) for name, function in FUNCTIONS.items()),
        (pytest.param(layout, id=name) for name, layout in LAYOUTS.items()),
        [False, True],
    ),
)
def test_elements_in_other_places(
    function: Callable[[Tensor], Tensor], layout: Callable[[Tensor], Tensor], dynamic: bool
) -> None:
    x = layout(torch.randn(6, 37, dtype=torch.float64))
    made, expected = torch.compile(function, backend="pyfuser", dynamic=dynamic)(x), function(x)
    torch.testing.assert_close(made, expected)
    assert strides(made) == strides(expected)


@pytest.mark.parametrize("name", ["flip in place", "flip, summed", "roll", "roll of two"])
def test_gradients(name: str) -> None:
    function = FUNCTIONS[name]
    x = torch.randn(5, 9, dtype=torch.float64, requires_grad=True)
    made = torch.compile(function, backend="pyfuser")(x)
    (gradient,) = torch.autograd.grad(made.sum() + (made * made).sum(), x)
    expected = function(x)
    (wanted,) = torch.autograd.grad(expected.sum() + (expected * expected).sum(), x)
    torch.testing.assert_close(gradient, wanted)


@pytest.mark.parametrize("shape", [(2, 2, 2, 2), (2, 5, 3, 4), (2, 3, 2, 4, 5)], ids=str)
def test_images_with_channels_innermost_stay_so(shape: tuple[int, ...]) -> None:
    layout = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    x = torch.randn(shape).contiguous(memory_format=layout)
    for function in (lambda x: torch.roll(x, (1, -1), (1, -1)), lambda x: x.flip(1)):
        made = torch.compile(function, backend="pyfuser")(x)
        assert torch.equal(made, function(x)) and made.stride() == function(x).stride()


@pytest.mark.parametrize("name", ["flip", "roll of two"])
def test_alone_they_are_kernels(name: str) -> None:
    report = explain(FUNCTIONS[name], torch.randn(64, 100))
    assert report.kernel_count == 1


def windows(x: Tensor, side: int) -> Tensor:
    """[n, height, width, c] in windows of a shifted image, as a Swin transformer has them."""
    n, height, width, c = x.shape
    parts = torch.roll(x, (-(side // 2), -1), (1, 2)).view(
        n, height // side, side, width // side, side, c
    )
    return parts.permute(0, 1, 3, 2, 4, 5).reshape(-1, side * side, c)


SPLITS: dict[str, Callable[[Tensor], Tensor]] = {
    "windows": lambda x: windows(x, 4),
    "windows of windows": lambda x: windows(windows(x, 4).view(x.shape) * 2, 2),
    "a flip in parts": lambda x: x.flip(1, 3).view(-1, 2, 8, 24, 3, 4).transpose(1, 4).clone(),
    "parts of a cat": lambda x: torch.cat([x, -x], 2).view(-1, 16, 4, 12, 12).sum(2),
    "parts of a pad": lambda x: torch.nn.functional.pad(x, (0, 2)).view(-1, 16, 24, 7, 2).mT + 1,
    "parts of one element": lambda x: (
        torch.roll(x, 1, 1).view(-1, 16, 1, 24, 1, 12).permute(0, 3, 2, 1, 4, 5).contiguous()
    ),
}


def _in_parts() -> list[Any]:
    layouts, slow = ["permuted", "contiguous"], "windows of windows"
    return [
        *pairwise([name for name in SPLITS if name != slow], [None, True, False], layouts, count=9),
        # Torch reasons about these sizes for half a minute if they are dynamic.
        *pairwise([slow], [False, long(True), None], layouts, strength=1),
    ]


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize(("name", "dynamic", "layout"), _in_parts())
def test_rearranged_axes_in_parts(name: str, dynamic: bool | None, layout: str) -> None:
    function = SPLITS[name]
    compiled = torch.compile(function, backend="pyfuser", dynamic=dynamic)
    for n in (2, 1, 3):
        given = torch.randn(n, 16, 24, 12, dtype=torch.float64)
        if layout == "permuted":
            given = given.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
        x, y = (given.clone().requires_grad_() for _ in range(2))
        made, expected = compiled(x), function(y)
        torch.testing.assert_close(made, expected)
        assert strides(made) == strides(expected)
        weights = torch.arange(made.numel()).view(made.shape).double()
        wanted = torch.autograd.grad(expected, y, weights)
        torch.testing.assert_close(torch.autograd.grad(made, x, weights), wanted)


def test_windows_are_one_kernel() -> None:
    report = explain(lambda x: windows(x, 4), torch.randn(2, 16, 24, 12))
    assert report.kernel_count == 1 and not report.graphs[0].library_calls
