"""Backward passes, measured on GPUs: from the gradient and what the forward pass keeps.

A case without a definition is compiled by torch.compile from its reference.  Statistics of norms
are in float32, as eager keeps them on a GPU.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .cases import Case, Factory, Outputs
from .torch_cases import CHANNELS, HEAD, KEPT, angles, indices

aten = torch.ops.aten


def _two(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    return [make(rows, columns), make(rows, columns)]


def _three(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    return [make(rows, columns), make(rows, columns), make(rows, columns)]


def _silu_mul_backward(gradient: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> Outputs:
    return aten.silu_backward(gradient * y, x), gradient * F.silu(x)


def _relu(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    return [*_two(rows, columns, make), make(rows, columns) > 0, make(columns)]


def _scale_bias_relu_backward(
    gradient: torch.Tensor, x: torch.Tensor, positive: torch.Tensor, scale: torch.Tensor
) -> Outputs:
    passed = torch.where(positive, gradient, 0)
    return passed * scale, (passed * x).sum(0), passed.sum(0)


def _softmax(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    return [make(rows, columns), torch.softmax(make(rows, columns), 1)]


def _softmax_backward(gradient: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    return aten._softmax_backward_data(gradient, result, 1, result.dtype)


def _log_softmax(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    return [make(rows, columns), torch.log_softmax(make(rows, columns), 1)]


def _log_softmax_backward(gradient: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    return aten._log_softmax_backward_data(gradient, result, 1, result.dtype)


def _layer_norm(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    """The gradient, x, the statistics, weight and bias."""
    x = make(rows, columns)
    wide = x.float() if x.is_cuda else x
    variance, mean = torch.var_mean(wide, 1, correction=0, keepdim=True)
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


def _dropout_norm(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    return [*_layer_norm(rows, columns, make), make(rows, columns) > 0]


def _dropout_norm_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    scale: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    kept: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    total, *of_weights = _layer_norm_backward(gradient, x, mean, scale, weight, bias)
    return total, total * kept * (1 / KEPT), *of_weights


def _rms_norm(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    x = make(rows, columns)
    scale = (x.float().square().mean(1, keepdim=True) + 1e-6).rsqrt()
    return [make(rows, columns), x, scale, make(columns)]


def _rms_norm_backward(
    gradient: torch.Tensor, x: torch.Tensor, scale: torch.Tensor, weight: torch.Tensor
) -> Outputs:
    normal = x * scale
    passed = gradient * weight
    of_x = scale * (passed - normal * (passed * normal).mean(1, keepdim=True))
    return of_x.to(x.dtype), (gradient * normal).sum(0).to(weight.dtype)


def _batch_norm(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    shape = (max(rows // CHANNELS, 1), CHANNELS, columns)
    x = make(*shape)
    variance, mean = torch.var_mean(x.float(), (0, 2), correction=0)
    return [make(*shape), x, make(CHANNELS).float(), mean, (variance + 1e-5).rsqrt()]


def _batch_norm_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    mean: torch.Tensor,
    scale: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    wanted = [True, True, True]
    return aten.native_batch_norm_backward(
        gradient, x, weight, None, None, mean, scale, True, 1e-5, wanted
    )


def _cross_entropy(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    """The gradient of the mean, the logarithms of the probabilities, and the targets."""
    result = torch.log_softmax(make(rows, columns), 1)
    total = torch.full((), float(rows), device=result.device, dtype=result.dtype)
    return [make(1)[0].abs() + 1, result, indices(rows, columns, make), total]


def _cross_entropy_backward(
    gradient: torch.Tensor, result: torch.Tensor, target: torch.Tensor, total: torch.Tensor
) -> torch.Tensor:
    of_loss = aten.nll_loss_backward(gradient, result, target, None, 1, -100, total)
    return aten._log_softmax_backward_data(of_loss, result, 1, result.dtype)


def _heads(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    return [make(rows, max(columns // HEAD, 1), HEAD), *angles(rows, make)]


def _rope_backward(
    gradient: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor
) -> torch.Tensor:
    of_rotated = gradient * sine
    halves = of_rotated[..., HEAD // 2 :], -of_rotated[..., : HEAD // 2]
    return gradient * cosine + torch.cat(halves, -1)


def _tokens(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    return [make(rows, columns), indices(rows, rows, make)]


def _embedding_backward(gradient: torch.Tensor, index: torch.Tensor) -> Outputs:
    table = aten.embedding_dense_backward(gradient, index, gradient.shape[0], -1, False)
    return table, gradient * 1


GRADIENTS = (
    Case("GELU, backward", _two, None, lambda gradient, x: aten.gelu_backward(gradient, x)),
    Case("SiLU * mul, backward", _three, None, _silu_mul_backward),
    Case("scale + bias + ReLU, backward", _relu, None, _scale_bias_relu_backward, is_sum=True),
    Case("softmax, backward", _softmax, None, _softmax_backward),
    Case("log-softmax, backward", _log_softmax, None, _log_softmax_backward),
    Case("layer norm, backward", _layer_norm, None, _layer_norm_backward),
    Case("RMS norm, backward", _rms_norm, None, _rms_norm_backward),
    Case("batch norm, backward", _batch_norm, None, _batch_norm_backward),
    Case("dropout + layer norm, backward", _dropout_norm, None, _dropout_norm_backward),
    Case("cross entropy, backward", _cross_entropy, None, _cross_entropy_backward),
    Case("RoPE, backward", _heads, None, _rope_backward),
    Case("embedding, backward", _tokens, None, _embedding_backward),
)
