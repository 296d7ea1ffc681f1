"""Vectors at the edges of windows (cat, pad, RoPE): whole, filled, and those in between."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pyfuser.devices.cuda.emulator.runtime import EmulatedKernel, emulated
from tests.cuda.host_compiler import requires_host_compiler
from tests.support.long_cases import long, pairwise

pytestmark = requires_host_compiler


def rotated(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "cat": lambda x: torch.cat((x * 2, x[:, :8] - 1, x.abs()), 1),
    "cat of functions": lambda x: torch.cat((x * 2, torch.tanh(x[:, :8]), x.exp(), x - 1), 1),
    "cat in another order": lambda x: torch.cat((x.exp(), x * 2, x.tanh(), x.sigmoid()), 1),
    "rows of functions": lambda x: torch.cat((x.exp(), x * 2, x[:1].tanh()), 0),
    "pad": lambda x: functional.pad(x + 1, (8, 16), value=3.0) * 2,
    "pad by one": lambda x: functional.pad(x + 1, (1, 2)) * 2,
    "RoPE": lambda x: x * 2 + rotated(x) * 3,
    "RoPE of parts": lambda x: rotated(x * 2 + 1)[:, 4:] - x[:, 4:],
}
WIDTHS = (8, 16, 24, 26, 31, 64, 136)


def run(name: str, x: Tensor) -> tuple[Tensor, list[EmulatedKernel]]:
    torch._dynamo.reset()
    with emulated() as runtime:
        found = torch.compile(FUNCTIONS[name], backend="pyfuser", dynamic=False)(x)
    return found, runtime.kernels


@pytest.mark.parametrize("dtype", [long(torch.float32), torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("name", "width", "rows", "start"),
    pairwise(
        FUNCTIONS,
        WIDTHS,
        [37, 1],
        [pytest.param(0, id="aligned"), pytest.param(1, id="misaligned")],
    ),
)
def test_all_widths(
    name: str,
    width: int,
    rows: int,
    start: int,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    whole = torch.randint(-9, 9, (start + rows * width,)).to(dtype)  # all results are exact
    x = whole[start:].view(rows, width)
    found, _ = run(name, x)
    torch.testing.assert_close(found, FUNCTIONS[name](x))


@pytest.mark.parametrize("name", ["cat", "pad", "RoPE"])
def test_whole_vectors_need_no_test_for_each_element(name: str) -> None:
    """There are vectors inside and vectors outside of a window, in blocks at an edge too."""
    _, kernels = run(name, torch.randn(64, 128).bfloat16())
    text = kernels[0].code.text
    assert text.count("load_aligned_or<8>(") >= 2
    assert "else if" not in text
    assert not re.search(r"\[j\d+\] = \(.* \? ", text)


def test_expensive_parts_are_computed_where_they_are_chosen() -> None:
    x = torch.randn(64, 128)
    found, kernels = run("cat of functions", x)
    torch.testing.assert_close(found, FUNCTIONS["cat of functions"](x))
    before = kernels[0].code.text.partition("tanhf(")[0]
    last = before.splitlines()[-1]
    opened = before.rpartition("if (")[2]
    assert "\n" in opened and "}" not in opened, f"expected a branch around {last}"


def test_where_a_slice_ends_is_a_condition_for_later_sizes() -> None:
    """Rows of 4 elements have whole vectors; rows of 6 don't, and need another kernel."""
    torch._dynamo.reset()
    with emulated():
        glu = torch.compile(lambda x: functional.glu(x * 1.5), backend="pyfuser", dynamic=True)
        for shape in ((6, 8), (9, 12), (9, 14), (5, 2), (7, 64)):
            x = torch.randn(shape)
            torch.testing.assert_close(glu(x), functional.glu(x * 1.5))
