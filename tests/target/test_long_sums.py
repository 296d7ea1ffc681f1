"""Long sums round no more than eager's: each error is at most 4 times eager's, against float64.

Long chains of additions are least accurate on data that is positive or mostly zeros: each addition
rounds to the same side.  Eager sums in cascades, and moments and batch norms in float64.
"""

from __future__ import annotations

from math import prod

import pytest
import torch
from torch import Tensor

from pyfuser import DataType, FusionDefinition
from pyfuser.target.cascade import BLOCK, LONGEST_CHAIN, levels
from tests.support.compiled import BACKEND, assert_as_close_as_eager
from tests.support.compiled import strict as strict

Dims = tuple[int, ...]

DATA = {
    "normal": torch.randn,
    "positive": torch.rand,
    "mostly zero": lambda shape: (torch.randn(shape) - 1.5).relu(),
}
# Inner, outer, few columns, and axes that can't be merged.
SHAPES: list[tuple[tuple[int, ...], Dims]] = [
    ((3, 300_007), (1,)),
    ((40, 20_011), (1,)),
    ((300_007, 3), (0,)),
    ((50_021, 70), (0,)),
    ((16, 24, 40, 41), (0, 2, 3)),
    ((3001, 8, 5), (0, 2)),
    ((8, 40, 41, 24), (0, 1, 2)),
]


@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize(("shape", "dims"), SHAPES, ids=str)
def test_sums_and_moments(shape: tuple[int, ...], dims: Dims, kind: str) -> None:
    torch.manual_seed(0)
    x = DATA[kind](shape)
    with FusionDefinition() as sums:
        t = sums.define_tensor([-1] * len(shape), contiguity=True)
        sums.add_output(sums.ops.sum(t, list(dims)))
    with FusionDefinition() as moments:
        t = moments.define_tensor([-1] * len(shape), contiguity=True)
        for each in moments.ops.var_mean(t, list(dims), 0):
            moments.add_output(each)

    def reference(x: Tensor) -> dict[str, Tensor]:
        variance, mean = torch.var_mean(x, dims, correction=0)
        return {"sum": x.sum(dims) / x.numel(), "variance": variance, "mean": mean}

    (total,) = sums.execute([x])
    variance, mean = moments.execute([x])
    got = {"sum": total / x.numel(), "variance": variance, "mean": mean}
    assert_as_close_as_eager(got, reference(x), reference(x.double()))


def test_sums_in_double() -> None:
    """A chain of float64 is cut as well: its error only shows against exact integers."""
    x = torch.full((1 << 20,), 1 + 2.0**-30, dtype=torch.float64)
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1], contiguity=True, dtype=DataType.Double)
        fd.add_output(fd.ops.sum(t, [0]))
    (total,) = fd.execute([x])
    assert total.item() == (1 << 20) + 2.0**-10


@pytest.mark.parametrize("channels_last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("kind", DATA)
def test_batch_norm_and_its_gradients(kind: str, channels_last: bool) -> None:
    torch.manual_seed(0)
    x, grad = DATA[kind]((2, 12, 100, 99)), torch.randn(2, 12, 100, 99)
    if channels_last:
        x, grad = (each.to(memory_format=torch.channels_last) for each in (x, grad))
    weight, bias = torch.rand(12) + 0.5, torch.randn(12)

    def step(call: object, dtype: torch.dtype) -> dict[str, Tensor]:
        leaves = [each.detach().to(dtype).requires_grad_() for each in (x, weight, bias)]
        statistics = torch.zeros(12, dtype=dtype), torch.zeros(12, dtype=dtype)
        y = call(*leaves, *statistics)  # type: ignore[operator]
        found = torch.autograd.grad(y, leaves, grad.to(dtype))
        names = ("y", "mean", "variance", "of x", "of weight", "of bias")
        return dict(zip(names, (y.detach(), *statistics, *found), strict=True))

    def norm(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return torch.nn.functional.batch_norm(x, mean, var, weight, bias, True, 0.1, 1e-5)

    ours = step(torch.compile(norm, backend=BACKEND), torch.float32)
    assert_as_close_as_eager(ours, step(norm, torch.float32), step(norm, torch.float64))


@pytest.mark.parametrize(
    "extents", [(64,), (100,), (4000,), (10**9,), (500, 3), (3, 500), (70, 70, 70), (1, 10**6, 1)]
)
def test_no_chain_stays_long(extents: tuple[int, ...]) -> None:
    """Blocks on each level have at least BLOCK additions and few more, and cover everything."""
    left = list(extents)
    for axis, block in levels(extents):
        chain = max(block, 1) * prod(left[axis + 1 :])
        assert BLOCK <= chain < 2 * BLOCK
        left = [*left[:axis], -(-left[axis] // max(block, 1))]
    assert prod(left) <= LONGEST_CHAIN
    assert levels(extents)


@pytest.mark.parametrize("extents", [(), (0,), (1,), (63,), (7, 9), (0, 5)])
def test_short_chains_stay_whole(extents: tuple[int, ...]) -> None:
    assert levels(extents) == ()
