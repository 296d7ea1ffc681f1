"""Short rows that don't follow each other in memory: loaded and stored whole, never gathered."""

from __future__ import annotations

import platform
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pyfuser.devices.cpu.host import host
from tests.support.long_cases import pairwise
from tests.support.targets import Pretend

from .test_machines import MACHINES

pytestmark = [
    pytest.mark.usefixtures("poison"),
    pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="x86 code"),
]

KINDS = ["host", *MACHINES]
DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int32, torch.uint8]
LENGTHS = [2, 3, 4, 5, 7, 8, 9, 15, 16]

# Of tensors of so many rows; the last axis has the elements of one.
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "slices": lambda x: torch.cat((x, x, x), -1)[..., x.shape[-1] : -x.shape[-1]],
    "every second": lambda x: torch.stack((x, x), 1)[:, 1],
    "exchanged": lambda x: x.view(-1, 3, x.shape[-1]).transpose(0, 1).contiguous().transpose(0, 1),
    "across": lambda x: x.t().contiguous().t(),
    "overlapping": lambda x: x.flatten().as_strided(x.shape, (1, 1)),
}
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(-1),
    "product": lambda x: x * 2 + x,
    "greatest": lambda x: x.amax(-1, keepdim=True) - x,
    "exchanged": lambda x: (x + 1).transpose(0, 1).contiguous(),
    "padded": lambda x: functional.pad(x, (1, 2)) * 3,
    "joined": lambda x: torch.cat((x[..., 1:], x * 2), -1),
    "rolled": lambda x: x.roll(1, -1) + x,
}


def compiled(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    torch._dynamo.reset()
    return torch.compile(function, backend="pyfuser", dynamic=False)(x)


@pytest.mark.parametrize(
    ("kind", "layout", "dtype", "length", "name"),
    pairwise(KINDS, LAYOUTS, DTYPES, LENGTHS, FUNCTIONS, count=22),
)
def test_all_layouts(
    kind: str, layout: str, dtype: torch.dtype, length: int, name: str, pretend: Pretend
) -> None:
    pretend(MACHINES.get(kind, host()))
    for rows in (3, 102):
        whole = torch.arange(rows * length).remainder(29).view(rows, length).to(dtype)
        x = LAYOUTS[layout](whole)
        assert torch.equal(compiled(FUNCTIONS[name], x), FUNCTIONS[name](x)), rows


@pytest.mark.parametrize("length", LENGTHS)
def test_what_is_between_rows_stays(length: int) -> None:
    whole = torch.arange(90.0 * (length + 2)).view(90, length + 2)
    want = whole.clone()
    want[:, 1:-1] = want[:, 1:-1] * 2 + want[:, 1:-1].sum(-1, keepdim=True)

    def update(x: Tensor) -> Tensor:
        return x.mul_(2).add_(x.sum(-1, keepdim=True) / 2)

    compiled(update, whole[:, 1:-1])
    assert torch.equal(whole, want)


@pytest.mark.cpu
@pytest.mark.parametrize("length", [4, 7, 12])
def test_no_element_is_gathered(
    length: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if host().vector_bits < 512:
        pytest.skip("only AVX-512 has masks that are as fast as vectors")
    monkeypatch.setenv("PYFUSER_DUMP", "llvm")
    x = torch.rand(500, length + 3)[:, :length]
    torch.testing.assert_close(compiled(lambda x: x.softmax(-1), x), x.softmax(-1))
    text = "".join(capsys.readouterr())
    assert "llvm.masked.load" in text and "llvm.masked.gather" not in text
