"""Graphs with sizes that only data decide, which Dynamo makes if it is told to capture such ops.

torch runs their forward; the backward gets the sizes as arguments and has kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.support.compiled import BACKEND


@pytest.fixture(autouse=True)
def captured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("PYFUSER_STRICT", raising=False)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(
        capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True
    ):
        yield
    torch._dynamo.reset()


def _experts(x: Tensor) -> Tensor:
    """Reads and writes at points, as of tokens by their expert."""
    rows, columns = (x > 0).nonzero(as_tuple=True)
    return x.index_put((rows, columns), x[rows, columns].exp())


def _contiguous_in_eager(x: Tensor) -> Tensor:
    """Traced with the strides of the exponents."""
    return 2.0 ** x[x[:, 0] > 0].t()


def _permuted(x: Tensor) -> Tensor:
    rows = x[x[:, 0] > 0].view(-1, 2, 3)
    return (rows.permute(1, 0, 2).exp() * 2).sin()


def _losses(x: Tensor) -> Tensor:
    rows = x[x[:, 0] > 0]
    return functional.cross_entropy(rows, rows.argmax(1)) + functional.dropout(rows, 0.0).sum()


@pytest.mark.filterwarnings("ignore:pyfuser. a graph:RuntimeWarning")
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("function", [_experts, _contiguous_in_eager, _permuted, _losses])
def test_results_and_gradients_are_eager_s(
    function: Callable[[Tensor], Tensor], dynamic: bool | None
) -> None:
    compiled = torch.compile(function, backend=BACKEND, dynamic=dynamic, fullgraph=True)
    torch.manual_seed(0)
    for _ in range(2):
        x = torch.randn(9, 6, requires_grad=True)
        got, expected = compiled(x), function(x)
        torch.testing.assert_close(got, expected)
        weight = torch.randn_like(expected)
        gradients = [torch.autograd.grad((y * weight).sum(), x)[0] for y in (got, expected)]
        torch.testing.assert_close(*gradients)
