"""Rows of a few elements: each lane has a row, and the elements of a vector are a row apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pyfuser import FusionDefinition
from pyfuser.devices.cpu import heuristics
from pyfuser.ir.scalars import Integer
from pyfuser.target.parameters import PointwiseFacts
from tests.support.compiled import strict as strict
from tests.support.long_cases import long, pairwise
from tests.support.targets import PRETENDED

pytestmark = pytest.mark.usefixtures("poison")

FUNCTIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "scaled": lambda x, w, s: (x * w + s, x - s),
    "integers": lambda x, w, s: (x > w, (x * 2).int(), x.isnan().sum(-1)),
    "sums": lambda x, w, s: (x.sum(-1), (x * s).sum(-1, keepdim=True) + s, x.amax(-1)),
    "softmax": lambda x, w, s: (torch.softmax(x, -1), torch.log_softmax(x * w, -1)),
    "norm": lambda x, w, s: F.layer_norm(x, x.shape[-1:], w, w) * s,
    "normalised": lambda x, w, s: x / (x.norm(dim=-1, keepdim=True) + 1),
    "largest": lambda x, w, s: (x.max(-1), x.argmin(-1), torch.where(x > 0, x, w).max(-1).values),
    "stacked": lambda x, w, s: torch.stack([x[..., 0], x[..., -1] * 2], -1).flatten(-2) + 1,
    "joined": lambda x, w, s: torch.cat([x, s, x * 3], -1) * 2,
    "padded": lambda x, w, s: F.pad(x + 1, (1, 2)) * 2,
    "turned": lambda x, w, s: x.flip(-1) * w + x.roll(1, -1) - x.flip(0),
    "transposed": lambda x, w, s: (x.mT + 1, (x * w).mT.contiguous(), x.mT.sum(-1)),
    "repeated": lambda x, w, s: x.repeat_interleave(2, -1) * s,
    "picked": lambda x, w, s: x.gather(-1, x.argmax(-1, keepdim=True)) * w,
    "expanded": lambda x, w, s: s.expand_as(x) * x[:1] + x.sum(0),
    "running": lambda x, w, s: (x.cumsum(-1) + s, x.cumsum(0) * w),
    "written": lambda x, w, s: x.clone().index_fill_(-1, torch.tensor([0]), 1).add_(s),
}
SHAPES = [(7, 2), (300, 7), (1, 3), (0, 3), (3, 50, 4), (1100, 5), (64, 15), (40, 3), (16, 2)]
DTYPES = [torch.bfloat16, torch.float32, long(torch.float64)]
OF_SOME = ["largest", "picked"]  # there is no largest of no elements


def layouts(x: Tensor) -> list[Tensor]:
    """The same numbers contiguous, transposed, and in part of a larger tensor."""
    wide = torch.cat([x, x, x], -1)[..., 1 : 1 + x.shape[-1]].clone()
    part = torch.cat([wide, wide], -1)[..., : x.shape[-1]]
    part.copy_(x)
    return [x, x.mT.contiguous().mT, part]


@pytest.mark.parametrize(
    ("name", "dtype", "shape"),
    [
        *pairwise([n for n in FUNCTIONS if n not in OF_SOME], DTYPES, SHAPES, count=15),
        *pairwise(OF_SOME, DTYPES, [shape for shape in SHAPES if shape[0]], count=9),
    ],
)
def test_results(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    function = FUNCTIONS[name]
    compiled = torch.compile(function, backend="pyfuser", dynamic=True)
    generator = torch.Generator().manual_seed(len(name))
    tolerance = 3e-2 if dtype is torch.bfloat16 else 1e-4
    x = torch.randint(-9, 9, shape, generator=generator).to(dtype) / 2
    s = torch.randint(-3, 3, (*shape[:-1], 1), generator=generator).to(dtype)
    for given in layouts(x):
        weight = x.new_full(shape[-1:], 2)
        got, wanted = compiled(given, weight, s), function(given, weight, s)
        torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)


def test_gradients() -> None:
    def loss(x: Tensor, w: Tensor) -> Tensor:
        return (torch.softmax(x * w, -1) * F.normalize(x + 1, dim=-1)).sum()

    compiled = torch.compile(loss, backend="pyfuser")
    x = torch.randn(200, 3, dtype=torch.float64, requires_grad=True)
    w = torch.randn(3, dtype=torch.float64, requires_grad=True)
    got, wanted = (torch.autograd.grad(function(x, w), (x, w)) for function in (compiled, loss))
    torch.testing.assert_close(got, wanted)


def test_random_numbers_don_t_depend_on_the_lanes() -> None:
    """The kernel of 40 rows has lanes along them, that of 3 rows along the columns."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.add(fd.ops.rand_like(x), x))
    drawn = []
    for rows in (40, 3):
        torch.manual_seed(5)
        drawn.append(fd.execute([torch.zeros(rows, 5)])[0])
    assert torch.equal(drawn[0][:3], drawn[1])


def test_which_axis_the_lanes_run_along() -> None:
    def is_across(rows: int, columns: int) -> bool:
        facts = PointwiseFacts(
            rows=Integer.of(rows), columns=Integer.of(columns), groups=None, transposed=None,
            bytes=4, narrowest=4, vector=4, inputs=1, work=1, functions=0,
            touched=Integer.of(4 * rows), across=Integer.of(rows),
        )  # fmt: skip
        return heuristics.pointwise(PRETENDED.processor, facts, {}).across

    assert is_across(64, 3) and is_across(16, 7)
    assert is_across(8, 3) and is_across(4, 2)  # fewer lanes
    assert not is_across(3, 3) and not is_across(15, 7)
    assert not is_across(64, 9) and not is_across(64, 1)
