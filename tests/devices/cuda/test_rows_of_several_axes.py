"""Rows whose innermost axis is shorter than a block, as those of batch norm are: a block reads
several lines of the axis around it at once, into shared memory if the row fits there.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pyfuser.devices.cuda.emulator.runtime import SM_90, emulated
from tests.cuda.host_compiler import requires_host_compiler
from tests.support.long_cases import pairwise

pytestmark = requires_host_compiler

# Images of a few channels: rows that are kept and that aren't, lines that end within a block or an
# unrolled step, one line, one element a line, and two axes around the innermost.
SHAPES = [
    (70000, 2, 3),
    (3300, 3, 64),
    (256, 3, 64),
    (33, 4, 49),
    (17, 2, 1),
    (1, 3, 5),
    (41, 3, 7, 7),
    (600, 2, 33, 10),
    (5, 3, 300),
    (2, 2, 5, 3, 7),
]


def _channels(x: Tensor) -> list[int]:
    return [axis for axis in range(x.dim()) if axis != 1]


def normalised(x: Tensor) -> tuple[Tensor, ...]:
    """Batch norm without weights."""
    wide = x.float()
    centred = wide - wide.mean(_channels(x), keepdim=True)
    variance = centred.square().mean(_channels(x), keepdim=True)
    return ((centred * torch.rsqrt(variance + 1e-5)).to(x.dtype),)


def reduced(x: Tensor) -> tuple[Tensor, ...]:
    """Sums, extrema and moments of channels."""
    wide, axes = x.float(), _channels(x)
    return (wide * 2).sum(axes), wide.amax(axes), wide.var(axes, correction=0)


@pytest.mark.parametrize(
    ("shape", "function", "dtype"),
    pairwise(SHAPES, [reduced, normalised], [torch.bfloat16, torch.float32, torch.float64]),
)
def test_results(
    shape: tuple[int, ...], function: object, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    torch.manual_seed(0)
    torch._dynamo.reset()
    x = torch.randn(shape).to(dtype) + 2
    with emulated():
        found = torch.compile(function, backend="pyfuser", dynamic=False)(x)
    tolerance = 1e-2 if dtype is torch.bfloat16 else 2e-5
    for got, want in zip(found, function(x), strict=True):
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("dtype", "call"), [(torch.float32, "begin_copy("), (torch.bfloat16, "spread_aligned<8>(")]
)
def test_elements_of_a_row_are_under_way_together(
    dtype: torch.dtype, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Floats are copied asynchronously, and a vector of narrower elements is read at once."""
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    torch._dynamo.reset()
    with emulated() as runtime:
        torch.compile(normalised, backend="pyfuser", dynamic=False)(
            torch.randn(256, 3, 64).to(dtype)
        )
    (kernel,) = runtime.kernels
    assert call in kernel.code.text
    assert ("wait_for_copies();" in kernel.code.text) == (dtype is torch.float32)


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("columns", [49152, 51500, 55000])
def test_a_long_row_beside_what_its_threads_reduce(columns: int) -> None:
    """A block of 1024 threads has room for both, or doesn't keep the row."""
    torch._dynamo.reset()
    x = torch.randn(3, columns)
    with emulated(replace(SM_90, multiprocessors=2)) as runtime:
        compiled = torch.compile(functional.layer_norm, backend="pyfuser", dynamic=False)
        found = compiled(x, (columns,))
    torch.testing.assert_close(found, functional.layer_norm(x, (columns,)))
    kept = ["begin_copy(" in kernel.code.text for kernel in runtime.kernels]
    assert kept == [columns == 49152]
