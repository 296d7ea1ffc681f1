"""Results of norms that gradients compute again instead of reading what the forward saved."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support.compiled import BACKEND
from tests.support.compiled import strict as strict

Activation = Callable[[Tensor], Tensor]


class Block(nn.Module):
    """A product, a norm and an activation, all of one shape."""

    def __init__(self, norm: nn.Module, activation: Activation) -> None:
        super().__init__()
        self.norm, self.activation = norm, activation

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.norm(x.flip(0) * 2))


def saved_by(module: nn.Module, x: Tensor) -> tuple[list[Tensor], Tensor]:
    """What a call saves of the shape of its input, and its result."""
    saved: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        if tensor.shape == x.shape:
            saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = module(x)
    return saved, result


def assert_gradients(module: nn.Module, x: Tensor, saves: int, dynamic: bool | None = None) -> None:
    """Compares two steps with the same in float64; `saves` counts the saved tensors like x."""
    exact = copy.deepcopy(module).double()
    compiled = torch.compile(module, backend=BACKEND, fullgraph=True, dynamic=dynamic)
    tolerance = 16 * torch.finfo(x.dtype).eps
    for step in range(2):
        inputs = [(x + step).to(dtype).requires_grad_() for dtype in (x.dtype, torch.float64)]
        saved, result = saved_by(compiled, inputs[0])
        assert len(saved) == saves
        expected = exact(inputs[1])
        slope = torch.linspace(-1, 1, x.numel()).view(x.shape)
        result.backward(slope.to(result))
        expected.backward(slope.double())
        pairs = [(result, expected), (inputs[0].grad, inputs[1].grad)]
        pairs += zip(module.buffers(), exact.buffers(), strict=True)
        parameters = zip(module.parameters(), exact.parameters(), strict=True)
        pairs += [(mine.grad, other.grad) for mine, other in parameters]
        for got, wanted in pairs:
            assert got is not None and wanted is not None
            scale = max(float(wanted.detach().abs().max()), 1.0)
            torch.testing.assert_close(
                got.double(), wanted.double(), rtol=tolerance, atol=tolerance * scale
            )
        module.zero_grad()
        exact.zero_grad()


def leaky(x: Tensor) -> Tensor:
    return functional.leaky_relu(x, 0.1)


def gated(x: Tensor) -> Tensor:
    return x * x.mean(0, keepdim=True).sigmoid()


def through_a_view(x: Tensor) -> Tensor:
    return functional.silu(x.flatten(0, 1)).view(x.shape)


@pytest.mark.parametrize(
    "activation", [functional.silu, functional.hardswish, leaky, functional.relu6, gated]
)
@pytest.mark.parametrize("affine", [True, False])
def test_a_batch_norm_s_result_is_not_saved(activation: Activation, affine: bool) -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(5, affine=affine)
    assert_gradients(Block(norm, activation), torch.randn(3, 5, 7, 4), saves=1)


@pytest.mark.parametrize("dynamic", [None, True])
def test_norms_of_other_ranks_and_shapes(dynamic: bool | None) -> None:
    torch.manual_seed(0)
    silu = functional.silu
    x = torch.randn(6, 5)
    assert_gradients(Block(nn.BatchNorm1d(5), silu), x, 1, dynamic)
    assert_gradients(Block(nn.LayerNorm(5), silu), x, 1, dynamic)
    x = torch.randn(6, 5, 3)
    assert_gradients(Block(nn.BatchNorm1d(5, track_running_stats=False), silu), x, 1, dynamic)
    assert_gradients(Block(nn.LayerNorm([5, 3]), through_a_view), x, 1, dynamic)
    x = torch.randn(2, 5, 3, 4).to(memory_format=torch.channels_last)
    assert_gradients(Block(nn.BatchNorm2d(5), silu), x, 1, dynamic)
    assert_gradients(Block(nn.BatchNorm3d(5), silu), torch.randn(2, 5, 3, 4, 2), 1, dynamic)


def test_half_precision_with_statistics_in_float32() -> None:
    torch.manual_seed(0)
    norm, x = nn.BatchNorm2d(5), torch.randn(3, 5, 7, 4, dtype=torch.bfloat16)
    assert_gradients(Block(norm, functional.silu), x, saves=1)


def test_rounded_statistics_do_not_give_the_result_again() -> None:
    """A mean of 100 in bfloat16 is wrong by up to a quarter of a standard deviation of 1."""
    torch.manual_seed(0)
    norm = nn.LayerNorm(64).bfloat16()
    x = (torch.randn(8, 64) * 4 + 50).bfloat16()
    compiled = torch.compile(Block(norm, functional.silu), backend=BACKEND)
    leaf = x.clone().requires_grad_()
    saved, _ = saved_by(compiled, leaf)
    assert len(saved) == 2


def test_a_result_that_a_product_s_gradient_reads_is_saved() -> None:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(8, 8))

    def branches(x: Tensor) -> Tensor:
        return functional.silu(x) + x @ weight.to(x)

    x = torch.randn(8, 8)
    block = Block(nn.LayerNorm(8), branches)
    saved, _ = saved_by(torch.compile(block, backend=BACKEND), x.requires_grad_())
    assert len(saved) == 3  # the input of the norm, its result, the weight


def test_the_running_statistics_are_not_saved() -> None:
    """Their new values would have to be kept beside the buffers."""
    norm = nn.BatchNorm1d(5)
    saved: list[Tensor] = []
    compiled = torch.compile(norm, backend=BACKEND)
    x = torch.randn(8, 5, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        compiled(x)
    assert len(saved) == 4  # the input, the weight, the mean, 1 / standard deviation
