"""Library operations in half precision get float32 where the processor has no instructions for it.

The tests pretend so on every processor.  The oracle is the same operation in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from pyfuser import FusionDefinition
from pyfuser.ops.library_ops import LIBRARY_OPS
from pyfuser.plans import library_operations
from tests.ops.library_definitions import LAYOUTS, defined
from tests.support.random_tensors import laid_out

pytestmark = [pytest.mark.usefixtures("poison"), pytest.mark.cpu]

DTYPES = (torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def seen(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """The dtype of the first operand of each call; no processor has instructions for half."""
    found: list[torch.dtype] = []

    def noting(reference: Callable[..., Any]) -> Callable[..., Any]:
        def noted(**arguments: Any) -> Any:
            found.append(next(iter(arguments.values())).dtype)
            return reference(**arguments)

        return noted

    rows = {
        name: replace(row, reference=noting(row.reference)) for name, row in LIBRARY_OPS.items()
    }
    monkeypatch.setattr(library_operations, "LIBRARY_OPS", rows)
    monkeypatch.setattr(library_operations, "is_faster_in_float32", lambda dtype: dtype in DTYPES)
    return found


def _linear(fd: FusionDefinition, x: Any, w: Any) -> Any:
    return fd.ops.linear(x, w)


def _matmul(fd: FusionDefinition, x: Any, w: Any) -> Any:
    return fd.ops.matmul(x, fd.ops.permute(w, [1, 0]))


def _check(got: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> None:
    assert got.dtype is dtype
    rounding = torch.finfo(dtype).eps
    torch.testing.assert_close(got.double(), exact, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("define", [_linear, _matmul])
def test_products(
    define: Callable[..., Any], layout: str, dtype: torch.dtype, seen: list[torch.dtype]
) -> None:
    x, w = torch.randn(17, 24).to(dtype), laid_out(torch.randn(13, 24).to(dtype), layout)
    (got,) = defined(define, [x, w]).execute([x, w])
    _check(got, x.double() @ w.double().mT, dtype)
    assert seen == [torch.float32] and got.is_contiguous()


@pytest.mark.parametrize(("rows", "is_widened"), [(1, False), (8, False), (9, True)])
def test_few_rows_stay(rows: int, is_widened: bool, seen: list[torch.dtype]) -> None:
    """Of a matrix that lies transposed; one that doesn't is converted for any."""
    x, w = torch.randn(rows, 24).bfloat16(), torch.randn(13, 24).bfloat16()
    defined(_linear, [x, w]).execute([x, w])
    assert seen == [torch.float32 if is_widened else torch.bfloat16]
    w = w.mT.contiguous().mT
    defined(_linear, [x, w]).execute([x, w])
    assert seen[1:] == [torch.float32]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_attention_and_its_gradients(dtype: torch.dtype, seen: list[torch.dtype]) -> None:
    def define(fd: FusionDefinition, q: Any, k: Any, v: Any, grad: Any) -> Any:
        output, sums, seed, offset = fd.ops.sdpfa_fwd(q, k, v)
        operands = (grad, q, k, v, output, sums)
        return output, *fd.ops.sdpfa_bwd(*operands, None, None, seed, offset)

    inputs = [(torch.randn(2, 3, length, 8) / 2).to(dtype) for length in (5, 7, 7, 5)]
    got = defined(define, inputs).execute(inputs)
    *wide, grad = (each.double().requires_grad_() for each in inputs)
    output = torch.nn.functional.scaled_dot_product_attention(*wide)
    exact = [output.detach(), *torch.autograd.grad(output, wide, grad.detach())]
    for tensor, wanted in zip(got, exact, strict=True):
        _check(tensor, wanted, dtype)
    assert seen == [torch.float32] * 2


def test_products_of_groups(seen: list[torch.dtype]) -> None:
    def define(fd: FusionDefinition, x: Any, w: Any, ends: Any) -> Any:
        return fd.ops.grouped_mm(x, w, ends)

    x, w = torch.randn(9, 16).bfloat16(), torch.randn(2, 16, 24).bfloat16()
    ends = torch.tensor([4, 9], dtype=torch.int32)
    (got,) = defined(define, [x, w, ends]).execute([x, w, ends])
    exact = torch.cat([x[:4].double() @ w[0].double(), x[4:].double() @ w[1].double()])
    _check(got, exact, torch.bfloat16)
    assert seen == [torch.float32]
