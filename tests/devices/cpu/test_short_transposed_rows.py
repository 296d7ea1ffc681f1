"""Transpositions of a few rows or columns: several rows are loaded or stored together."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pyfuser import FusionDefinition
from pyfuser.schedule import transpose
from pyfuser.target.parameters import PointwiseParameters
from tests.support.long_cases import long, pairwise
from tests.support.targets import PRETENDED, Pretend

from .test_machines import MACHINES

pytestmark = pytest.mark.usefixtures("poison")

# One of each size: float16 moves as bfloat16 does, int64 as float64.
DTYPES = [
    *(torch.bfloat16, torch.float32, torch.float64, torch.uint8),
    *(long(torch.float16), long(torch.int64)),
]
LENGTHS = [3, 17, 2, 5, 8, 16]


def patches(x: Tensor, side: int) -> Tensor:
    batch, channels, height, width = x.shape
    cut = x.view(batch, channels, height // side, side, width // side, side)
    return cut.permute(0, 2, 4, 3, 5, 1).reshape(batch, -1, side * side * channels)


def image(x: Tensor, side: int, channels: int) -> Tensor:
    batch, count, _ = x.shape
    cut = x.view(batch, 1, count, side, side, channels)
    return cut.permute(0, 5, 1, 3, 2, 4).reshape(batch, channels, side, count * side)


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows become columns": lambda x: (x + 1).permute(0, 2, 1).contiguous(),
    "columns become rows": lambda x: (x.mT.contiguous() + 1).mT.contiguous() * 2,
    "beside another": lambda x: x.mT + x.flip(1).mT.contiguous(),
    "a part of each": lambda x: (x[..., 1:] + 1).mT.contiguous(),
    "two ways": lambda x: torch.cat(((x + 1).mT, x[:, :1].mT), -1),
}


def check(function: Callable[[Tensor], Tensor], x: Tensor) -> None:
    torch._dynamo.reset()
    found = torch.compile(function, backend="pyfuser", dynamic=False)(x)
    want = function(x)
    assert found.stride() == want.stride()
    assert torch.equal(found, want)


def numbers(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randint(0, 50, shape).to(dtype)


@pytest.mark.parametrize(
    ("name", "dtype", "length"), pairwise(FUNCTIONS, DTYPES, LENGTHS, count=16)
)
def test_results(name: str, dtype: torch.dtype, length: int) -> None:
    for count in (1, 8, 67):
        check(FUNCTIONS[name], numbers(3, count, length, dtype=dtype))


@pytest.mark.parametrize(
    ("dtype", "side", "channels"),
    pairwise(DTYPES, [7, 2, 8, 14, 16], [3, 1, 6], strength=3, count=16),
)
def test_patches(dtype: torch.dtype, side: int, channels: int) -> None:
    x = numbers(2, channels, 2 * side, 3 * side, dtype=dtype)
    check(lambda x: patches(x * 2, side), x)
    y = numbers(2, 3, side * side * channels, dtype=dtype)
    check(lambda x: image(x * 2, side, channels), y)


@pytest.mark.parametrize("kind", MACHINES)
def test_other_processors(kind: str, pretend: Pretend) -> None:
    pretend(MACHINES[kind])
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        for length in (3, 8):
            x = numbers(3, 40, length, dtype=dtype)
            for function in FUNCTIONS.values():
                check(function, x)
        check(lambda x: patches(x * 2, 8), numbers(2, 3, 16, 24, dtype=dtype))


@pytest.mark.parametrize("length", [3, 8])
def test_rows_with_something_between(length: int) -> None:
    whole = numbers(4, 40, length + 2, dtype=torch.float32)
    check(lambda x: (x + 1).mT.contiguous(), whole[..., :length])
    check(lambda x: (x + 1).mT.contiguous(), whole[..., 1 : length + 1])
    check(lambda x: (x + 1).mT.contiguous(), whole[:, ::2, :length])
    expanded = whole[:, :1].expand(4, 40, length + 2)
    check(lambda x: (x + 1).mT.contiguous(), expanded)


def defined(shape: list[int], order: list[int]) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape, contiguity=True)
        fd.add_output(fd.ops.permute(fd.ops.add(x, 1.0), order))
    return fd


@pytest.mark.parametrize(
    ("shape", "is_together"),
    [
        ([64, 100, 3], True),
        ([64, 3, 100], True),
        ([64, 3, 8], True),
        ([64, 8, 3], True),
        ([64, 3, 2], False),
        ([64, 100, 40], False),
        ([64, 40, 100], False),
    ],
)
def test_which_rows_are_read_or_stored_together(shape: list[int], is_together: bool) -> None:
    fd = defined(shape, [0, 2, 1])
    chosen = transpose.heuristics(fd.fusion.definition, {}, PRETENDED)
    assert isinstance(chosen, PointwiseParameters)
    assert chosen.across == is_together
    x = torch.randn(shape)
    assert torch.equal(fd.execute([x])[0], (x + 1).mT)
