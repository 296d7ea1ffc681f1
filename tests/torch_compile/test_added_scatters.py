"""A scatter into zeros, plus a tensor: small values add up before they meet large ones."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

ROWS = 37


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("padding", [None, 3])
def test_gradient_of_tied_embedding(dtype: torch.dtype, padding: int | None) -> None:
    def loss(weight: Tensor, index: Tensor) -> Tensor:
        hidden = torch.tanh(F.embedding(index, weight, padding_idx=padding))
        return (hidden @ weight.t()).logsumexp(-1).sum()

    weight = torch.randn(ROWS, 16).to(dtype).requires_grad_()
    index = torch.randint(0, ROWS, (4, 9))
    compiled = torch.compile(loss, backend="pyfuser")
    (found,) = torch.autograd.grad(compiled(weight, index), weight)
    wide = weight.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad(loss(wide, index), wide)
    (eager,) = torch.autograd.grad(loss(weight, index), weight)
    allowed = 2 * (eager.double() - expected).abs().max() + 1e-6 * expected.abs().max()
    assert (found.double() - expected).abs().max() <= allowed


def _plain(x: Tensor, index: Tensor, value: Tensor) -> Tensor:
    return torch.zeros_like(x).index_put((index,), value, accumulate=True) + x


def _repeated(x: Tensor, index: Tensor, value: Tensor) -> Tensor:
    return x[:1] + torch.zeros_like(x).index_put((index,), value, accumulate=True)


def _read_twice(x: Tensor, index: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    made = torch.zeros_like(x).index_put((index,), value, accumulate=True)
    return made + x, -made


def _two(x: Tensor, index: Tensor, value: Tensor) -> Tensor:
    one = torch.zeros_like(x).index_put((index,), value, accumulate=True)
    other = torch.zeros_like(x).index_put((index - 1,), value * 2, accumulate=True)
    return one + other


def _of_ones(x: Tensor, index: Tensor, value: Tensor) -> Tensor:
    return torch.ones_like(x).index_put((index,), value, accumulate=True) + x.exp()


@pytest.mark.parametrize("function", [_plain, _repeated, _read_twice, _two, _of_ones])
def test_added_scatter(function) -> None:  # type: ignore[no-untyped-def]
    x, index, value = torch.randn(ROWS, 5), torch.randint(0, ROWS, (101,)), torch.randn(101, 5)
    before = x.clone()
    found = torch.compile(function, backend="pyfuser")(x, index, value)
    expected = function(x.double(), index, value.double())
    torch.testing.assert_close(found, expected, check_dtype=False, rtol=1e-5, atol=1e-5)
    assert torch.equal(x, before)


@pytest.mark.parametrize(("dtype", "large"), [(torch.float32, 2.0**24), (torch.float64, 2.0**53)])
def test_small_values_are_not_lost_in_large_ones(dtype: torch.dtype, large: float) -> None:
    """Added to the tensor one by one, each value would be less than half of its rounding."""
    x, index = torch.full((4, 1), large, dtype=dtype), torch.zeros(1000, dtype=torch.int64)
    found = torch.compile(_plain, backend="pyfuser")(x, index, torch.ones(1000, 1, dtype=dtype))
    assert found[0].item() == large + 1000


def test_refused_index_leaves_tensor() -> None:
    compiled = torch.compile(_plain, backend="pyfuser")
    x = torch.randn(ROWS, 4)
    before = x.clone()
    with pytest.raises(IndexError):
        compiled(x, torch.tensor([0, ROWS, 1]), torch.randn(3, 4))
    assert torch.equal(x, before)
