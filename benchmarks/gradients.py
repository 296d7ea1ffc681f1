"""Cases for GPUs that a FusionDefinition doesn't have a name for: backward passes.

A case without a definition is compiled by torch.compile from its reference; the backward pass alone
is measured, from what the forward pass keeps.
"""

from __future__ import annotations

import torch

from .cases import Case, Factory

aten = torch.ops.aten


def _gelu(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    return [make(rows, columns), make(rows, columns)]


def _softmax(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    return [make(rows, columns), torch.softmax(make(rows, columns), 1)]


def _softmax_backward(gradient: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    return aten._softmax_backward_data(gradient, result, 1, result.dtype)


def _layer_norm(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    """The gradient, x, the statistics (in float32, as eager keeps them), weight and bias."""
    x = make(rows, columns)
    variance, mean = torch.var_mean(x.float(), 1, correction=0, keepdim=True)
    return [make(rows, columns), x, mean, (variance + 1e-5).rsqrt(), make(columns), make(columns)]


def _layer_norm_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    scale: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    wanted = [True, True, True]
    return aten.native_layer_norm_backward(
        gradient, x, x.shape[1:], mean, scale, weight, bias, wanted
    )


GRADIENTS = (
    Case("GELU, backward", _gelu, None, lambda gradient, x: aten.gelu_backward(gradient, x)),
    Case("softmax, backward", _softmax, None, _softmax_backward),
    Case("layer norm, backward", _layer_norm, None, _layer_norm_backward),
)
