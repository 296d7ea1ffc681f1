"""The attention of a single query is kernels: masks, shared heads, gradients, no keys to look at.

The oracle is eager in float64; the error may be twice eager's own in the tested dtype.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pyfuser.torch_compile.explain import explain
from tests.support.compiled import strict as strict
from tests.support.long_cases import pairwise
from tests.torch_compile.errors_of_results import compared

pytestmark = pytest.mark.usefixtures("poison")


def operands(
    batch: int, heads: int, shared: int, length: int, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """Query, keys and values; several heads of the query share one of the others."""
    query = torch.randn(batch, 1, heads, 16, dtype=dtype).transpose(1, 2)
    return [query, *torch.randn(2, batch, shared, length, 16, dtype=dtype)]


def check(function: Callable[..., Tensor], *inputs: Tensor, dynamic: bool | None = None) -> None:
    """The result is as precise as eager's."""
    found = compared(function, *inputs, dynamic=dynamic)
    found.require_as_precise(8 * found.rounding * found.scale)


@pytest.mark.parametrize(
    ("shape", "dtype", "dynamic"),
    pairwise(
        [(1, 4, 4, 9), (2, 6, 2, 33), (3, 4, 1, 1)],
        [torch.float32, torch.bfloat16, torch.float16],
        [None, True],
    ),
)
def test_values(shape: tuple[int, int, int, int], dtype: torch.dtype, dynamic: bool | None) -> None:
    batch, heads, shared, length = shape
    given = operands(*shape, dtype)
    gqa = heads != shared

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=gqa)

    def masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask, scale=0.3, enable_gqa=gqa)

    check(plain, *given, dynamic=dynamic)
    check(masked, *given, torch.randn(batch, 1, 1, length, dtype=dtype), dynamic=dynamic)
    mask = torch.rand(batch, heads, 1, length) > 0.5
    mask[0, 0] = False  # no key at all
    check(masked, *given, mask, dynamic=dynamic)


def test_a_growing_length() -> None:
    compiled = torch.compile(F.scaled_dot_product_attention, backend="pyfuser")
    for length in (3, 4, 5, 700):
        given = operands(1, 4, 4, length)
        torch.testing.assert_close(compiled(*given), F.scaled_dot_product_attention(*given))


def test_gradients() -> None:
    given = [each.requires_grad_() for each in operands(2, 4, 4, 7)]
    found = []
    for call in (
        F.scaled_dot_product_attention,
        torch.compile(F.scaled_dot_product_attention, backend="pyfuser"),
    ):
        found.append(torch.autograd.grad(call(*given).sin().sum(), given))
    torch.testing.assert_close(found[1], found[0])


def test_only_a_single_query_is_kernels() -> None:
    for rows, calls in ((1, 0), (2, 1)):
        query = torch.randn(1, 4, rows, 16)
        keys, values = torch.randn(2, 1, 4, 9, 16)
        with torch.no_grad():
            found = explain(F.scaled_dot_product_attention, query, keys, values)
        assert str(found).count("_scaled_dot_product") == calls
