"""An extremum of half precision equals one of its elements, in the forward and in the backward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.support.long_cases import pairwise

Function = Callable[[Tensor, Tensor], Tensor]


def written(operation: Callable[..., Tensor], values: Tensor, how: str) -> Tensor:
    """The extrema of the groups that every eighth row is in."""
    groups = torch.arange(values.shape[0]) % 8
    if operation is torch.scatter_reduce:
        groups = groups[:, None].expand(values.shape)
    base = values.new_zeros(8, values.shape[1])
    return operation(base, 0, groups, values, how, include_self=False)


EXTREMA: dict[str, Function] = {
    "of rows": lambda a, b: (F.silu(a) * b).amax(-1),
    "of columns": lambda a, b: (F.gelu(a + b) * b).amin(0),
    "of all": lambda a, b: (F.silu(a) * b).max(),
    "with places": lambda a, b: (F.silu(a) * b).max(-1).values,
    "norm": lambda a, b: torch.linalg.vector_norm(F.silu(a) * b, float("inf"), -1),
    "after a norm": lambda a, b: (F.layer_norm(a * b, a.shape[-1:]).tanh() * b).amax(-1),
    "beside a norm": lambda a, b: F.rms_norm(y := F.silu(a) * b, y.shape[-1:]) * y.amax(-1, True),
    "of written elements": lambda a, b: written(torch.scatter_reduce, F.silu(a) * b, "amax"),
    "of added rows": lambda a, b: written(torch.index_reduce, F.silu(a) * b, "amin"),
    "median": lambda a, b: (F.silu(a) * b).flatten()[1:].median(),
    "median of numbers": lambda a, b: (F.silu(a) * b)[:, ::2].nanmedian(),
    "after a sort": lambda a, b: (F.silu(a) * b).sort(-1).values.amax(-1),
    "after a product": lambda a, b: (F.silu(a) @ b.t()).relu().mul(0.3).amax(-1),
}


def scaled(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    """Returned transposed, and the extrema and the means of parts of its rows."""
    y = a * b + 1
    y = y / (y.square().mean(-2, keepdim=True) + 1e-3).sqrt()
    return y.mT, y.amax(-1), F.avg_pool1d(y, 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_an_extremum_beside_other_readers(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    leaves = [torch.randn(4, 32, 12).to(dtype).requires_grad_() for _ in range(2)]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    results = [torch.compile(scaled, backend="pyfuser")(*leaves), scaled(*exact)]
    gradients = [
        torch.autograd.grad(sum(x.double().sin().sum() for x in each), of[0])
        for each, of in zip(results, (leaves, exact), strict=True)
    ]
    (got,), (want,) = gradients
    assert got.isfinite().all()
    assert F.cosine_similarity(got.double().flatten(), want.flatten(), 0) > 0.9


def operands(dtype: torch.dtype, shape: tuple[int, int]) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=dtype) for _ in range(2)]


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize(
    ("name", "dtype", "shape"),
    pairwise(EXTREMA, [torch.bfloat16, torch.float16], [(33, 257), (64, 3)]),
)
def test_gradients(name: str, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    function = EXTREMA[name]
    leaves = [x.requires_grad_() for x in operands(dtype, shape)]
    want = function(*leaves)
    weight = torch.randn_like(want)
    got = torch.compile(function, backend="pyfuser")(*leaves)
    gradients = torch.autograd.grad(got, leaves, weight)
    for ours, eager in zip(gradients, torch.autograd.grad(want, leaves, weight), strict=True):
        assert ours.isfinite().all()
        # Elements that differ by a rounding are equal in eager, or another one is the extremum.
        assert F.cosine_similarity(ours.double().flatten(), eager.double().flatten(), 0) > 0.7
