"""Rows that are reduced and then read through windows of as many elements: one kernel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pyfuser import FusionDefinition
from pyfuser.analysis.layouts import dense_layout
from pyfuser.compiler import prepare, rough_sizes, segmented
from tests.support.compiled import strict as strict
from tests.support.long_cases import pairwise
from tests.support.targets import PRETENDED

Function = Callable[[Tensor, Tensor], Tensor]


def _normalised(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def _computed_angles(x: Tensor, y: Tensor) -> Tensor:
    """Functions of small tensors, which are stored rather than computed for every row."""
    angles = torch.arange(x.shape[-2])[:, None] * torch.exp(-torch.arange(x.shape[-1] // 2) * 0.3)
    return _rotated(_normalised(x), angles.cos(), angles.sin()) + 0 * y


FUNCTIONS = {
    "rotated": lambda x, y: _rotated(_normalised(x), *y.chunk(2, -1)),
    "computed angles": _computed_angles,
    "both": lambda x, y: _computed_angles(x, y) * _computed_angles(y, x),
    "rolled": lambda x, y: x.softmax(-1) * y.roll(1, -1) + x.roll(-2, -1),
    "flipped": lambda x, y: (x - x.mean(-1, keepdim=True)) * x.flip(-1),
    "shifted": lambda x, y: functional.pad(x[..., 1:], (0, 1)) - x.amax(-1, keepdim=True),
    "columns": lambda x, y: x.roll(1, -2) - x.sum(-2, keepdim=True),
    "across": lambda x, y: x.sum(-1)[..., None] * x.transpose(-1, -2).roll(1, -1)[..., :1, :1] + y,
    "outer": lambda x, y: (x[..., :, None] * y.roll(1, -1)[..., None, :]).sum(-1) + x.sum(-1, True),
}


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    pairwise(
        FUNCTIONS,
        [(1, 2, 2), (1, 70, 34), (3, 1, 130), (2, 3, 8, 6)],
        [torch.bfloat16, torch.float32],
    ),
)
def test_results_are_those_of_eager(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    function: Function = FUNCTIONS[name]
    torch.manual_seed(0)
    x, y = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    exact, expected = function(x.double(), y.double()), function(x, y)
    got = torch.compile(function, backend="pyfuser")(x, y)
    assert got.stride() == expected.stride()
    bound = (expected.double() - exact).abs().max() * 4 + 1e-5
    assert (got.double() - exact).abs().max() <= bound


def test_a_norm_and_a_rotation_are_one_kernel() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, 64], contiguity=True)
        total = fd.ops.sum(fd.ops.mul(x, x), [1], keepdim=True)
        first, second = (
            fd.ops.mul(fd.ops.slice(x, [0, at], [fd.ops.size(x, 0), at + 32]), fd.ops.rsqrt(total))
            for at in (0, 32)
        )
        fd.add_output(fd.ops.cat([fd.ops.neg(second), first], 1))
    prepared = prepare(fd.fusion.definition)
    rough = rough_sizes(prepared, {"i0": 512}, PRETENDED)
    cut = segmented(fd.fusion.definition, prepared, [dense_layout(2)], rough, {"i0": 512}).segmented
    assert [segment.scheduler for segment in cut.segments] == ["inner_persistent"]
