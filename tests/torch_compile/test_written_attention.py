"""Attention written as two products and a softmax becomes torch's own where that is faster.

The oracle is eager in float64; the error may be twice eager's own in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pyfuser.torch_compile.explain import explain
from tests.support.compiled import strict as strict
from tests.torch_compile.errors_of_results import compared

pytestmark = [pytest.mark.usefixtures("poison"), pytest.mark.cpu]

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT * 0.25, -1) @ v


def unscaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.softmax(q @ k.transpose(-2, -1), dim=-1) @ v


def divided(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.softmax(q @ k.mT / math.sqrt(q.shape[-1]), q.dim() - 1) @ v


def merged(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mixed = plain(q, k, v).transpose(-3, -2)
    return mixed.reshape(*mixed.shape[:-2], -1) + 1


def twice(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Another layer reads the result, and the keys are changed between."""
    return plain(plain(q, k, v), k + 1, v * 2)


def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    kept = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    return torch.softmax((q @ k.mT).masked_fill(~kept, -math.inf), -1) @ v


def with_shares(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    shares = torch.softmax(q @ k.mT, -1)
    return shares @ v, shares


def across(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Not attention: the shares are of queries."""
    return torch.softmax(q @ k.mT, -2) @ v


def operands(*batch: int, rows: int = 5, keys: int = 200, width: int = 16) -> list[Tensor]:
    made = (torch.randn(*batch, n, width) for n in (rows, keys, keys))
    return list(made)


def is_whole(function: Attention, *given: Tensor) -> bool:
    with torch.no_grad():
        return "_scaled_dot_product" in str(explain(function, *given))


def check(function: Attention, *given: Tensor) -> None:
    with torch.no_grad():
        found = compared(function, *given, dynamic=False)
    found.require_as_precise(8 * found.rounding * found.scale)


@pytest.mark.parametrize("batch", [(3,), (2, 3), (2, 1, 3), (1, 1)], ids=str)
@pytest.mark.parametrize("function", [plain, unscaled, divided, merged, twice])
def test_written_attention(function: Attention, batch: tuple[int, ...]) -> None:
    if function is merged and len(batch) == 1:
        batch = (1, *batch)
    given = operands(*batch)
    check(function, *given)
    assert is_whole(function, *given)


@pytest.mark.parametrize("rows", [1, 7, 192])
@pytest.mark.parametrize("width", [1, 13, 64])
def test_sizes(rows: int, width: int) -> None:
    check(plain, *operands(2, 2, rows=rows, width=width))


def test_heads_that_are_views() -> None:
    """Of one tensor, in another order, of every second element, the same for all heads."""
    wide = torch.randn(2, 200, 3, 4, 16)
    q, k, v = wide.permute(2, 0, 3, 1, 4)
    check(merged, q, k, v)
    check(plain, q, k, v)
    check(plain, q, k, torch.randn(2, 4, 200, 32)[..., ::2])
    check(merged, q, torch.randn(2, 1, 200, 16).expand(2, 4, 200, 16), v)
    check(plain, q, torch.randn(2, 4, 16, 200).mT, v)


@pytest.mark.parametrize("function", [masked, with_shares, across])
def test_what_stays_two_products(function: Attention) -> None:
    given = operands(2, 3, rows=200)
    assert not is_whole(function, *given)
    if function is not with_shares:
        check(function, *given)


@pytest.mark.parametrize("shape", [(5, 200), (1, 1, 5, 200), (1, 5, 200)], ids=str)
def test_softmax_in_other_axes(shape: tuple[int, ...]) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        shares = torch.softmax(torch.bmm(q, k.mT).view(shape), -1)
        return torch.bmm(shares.view(1, 5, 200), v)

    check(function, *operands(1))
    assert is_whole(function, *operands(1))


def test_few_keys_and_half_precision_stay_products() -> None:
    assert not is_whole(plain, *operands(2, 3, keys=191))
    assert not is_whole(plain, *(each.bfloat16() for each in operands(2, 3)))


def test_gradients() -> None:
    given = [each.requires_grad_() for each in operands(2, 3)]
    found = [
        torch.autograd.grad(call(*given).sin().sum(), given)
        for call in (merged, torch.compile(merged, backend="pyfuser"))
    ]
    torch.testing.assert_close(found[1], found[0])


def test_not_a_number() -> None:
    given = operands(2, 3)
    given[0][0, 0, 1, 2] = math.nan
    given[1][1, 2, 3, 4] = math.inf
    with torch.no_grad():
        result = torch.compile(plain, backend="pyfuser")(*given)
    assert torch.equal(result.isnan(), plain(*given).isnan())
