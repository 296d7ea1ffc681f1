"""The parts of a small transformer that fuse: each is a FusionDefinition and a torch function.

A part takes tensors from the model and returns tensors to it.  `fused` defines it for inputs of any
size (ranks and dtypes are those of the example); `reference` is the same in plain torch.  In
float64, the reference judges both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from pyfuser import DataType, FusionDefinition

Outputs = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Part:
    """One part: its fused definition and its torch function."""

    name: str
    define: Callable[..., Any]
    reference: Callable[..., torch.Tensor | Outputs]

    def fused(self, inputs: Sequence[torch.Tensor]) -> FusionDefinition:
        """The part as a fusion for inputs of these ranks and dtypes."""
        with FusionDefinition() as fd:
            outputs = self.define(fd, *(fd.from_pytorch(each) for each in inputs))
            for output in outputs if isinstance(outputs, tuple) else (outputs,):
                fd.add_output(output)
        return fd


def _like_rows(fd: FusionDefinition, vector: Any) -> Any:
    """[features] as [1, features]."""
    return fd.ops.broadcast(vector, [True, False])


def _rms_norm(fd: FusionDefinition, x: Any, weight: Any) -> Any:
    ops = fd.ops
    mean = ops.div(ops.sum(ops.mul(x, x), 1, keepdim=True), ops.size(x, 1))
    return ops.mul(ops.mul(x, ops.rsqrt(ops.add(mean, 1e-6))), _like_rows(fd, weight))


def _masked_softmax(fd: FusionDefinition, scores: Any, mask: Any) -> Any:
    """Scores [batch, heads, queries, keys]; the mask is [queries, keys]."""
    ops = fd.ops
    visible = ops.broadcast(mask, [True, True, False, False])
    seen = ops.where(visible, ops.mul(scores, 0.125), float("-inf"))
    exponentials = ops.exp(ops.sub(seen, ops.max(seen, 3, keepdim=True)))
    return ops.div(exponentials, ops.sum(exponentials, 3, keepdim=True))


def _masked_softmax_in_torch(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.softmax((scores * 0.125).masked_fill(~mask, float("-inf")), -1)


def _residual_layer_norm(
    fd: FusionDefinition, x: Any, residual: Any, weight: Any, bias: Any
) -> tuple[Any, Any]:
    ops = fd.ops
    total = ops.add(x, residual)
    variance, mean = ops.var_mean(total, [1], correction=0, keepdim=True)
    normal = ops.mul(ops.sub(total, mean), ops.rsqrt(ops.add(variance, 1e-5)))
    return total, ops.add(ops.mul(normal, _like_rows(fd, weight)), _like_rows(fd, bias))


def _residual_layer_norm_in_torch(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> Outputs:
    total = x + residual
    return total, F.layer_norm(total, total.shape[1:], weight, bias, 1e-5)


def _bias_gelu_tanh(fd: FusionDefinition, x: Any, bias: Any) -> Any:
    ops = fd.ops
    x = ops.add(x, _like_rows(fd, bias))
    cube = ops.mul(ops.mul(x, x), x)
    inner = ops.mul(ops.add(x, ops.mul(cube, 0.044715)), 0.7978845608028654)
    return ops.mul(ops.mul(x, 0.5), ops.add(ops.tanh(inner), 1.0))


def _bias_gelu_erf(fd: FusionDefinition, x: Any, bias: Any) -> Any:
    ops = fd.ops
    x = ops.add(x, _like_rows(fd, bias))
    return ops.mul(ops.mul(x, 0.5), ops.add(ops.erf(ops.mul(x, 0.7071067811865476)), 1.0))


def _swiglu(fd: FusionDefinition, gate: Any, up: Any) -> Any:
    return fd.ops.mul(fd.ops.silu(gate), up)


def _log_softmax_loss(fd: FusionDefinition, logits: Any, targets: Any) -> tuple[Any, Any]:
    """Log-probabilities [tokens, 256], and each row's loss: -log p of its target."""
    ops = fd.ops
    shifted = ops.sub(logits, ops.max(logits, 1, keepdim=True))
    logarithms = ops.sub(shifted, ops.log(ops.sum(ops.exp(shifted), 1, keepdim=True)))
    classes = ops.broadcast(ops.iota(256, dtype=DataType.Int), [True, False])
    hit = ops.eq(classes, ops.broadcast(targets, [False, True]))
    return logarithms, ops.neg(ops.sum(ops.where(hit, logarithms, 0.0), 1))


def _log_softmax_loss_in_torch(logits: torch.Tensor, targets: torch.Tensor) -> Outputs:
    logarithms = torch.log_softmax(logits, 1)
    return logarithms, F.nll_loss(logarithms, targets, reduction="none")


RMS_NORM = Part("RMS norm", _rms_norm, lambda x, weight: F.rms_norm(x, x.shape[1:], weight, 1e-6))
MASKED_SOFTMAX = Part("masked softmax", _masked_softmax, _masked_softmax_in_torch)
RESIDUAL_LAYER_NORM = Part("residual + norm", _residual_layer_norm, _residual_layer_norm_in_torch)
BIAS_GELU_TANH = Part(
    "bias + GELU (tanh)",
    _bias_gelu_tanh,
    lambda x, bias: F.gelu(x + bias, approximate="tanh"),
)
BIAS_GELU_ERF = Part("bias + GELU (erf)", _bias_gelu_erf, lambda x, bias: F.gelu(x + bias))
SWIGLU = Part("SwiGLU", _swiglu, lambda gate, up: F.silu(gate) * up)
LOG_SOFTMAX_LOSS = Part("log-softmax + loss", _log_softmax_loss, _log_softmax_loss_in_torch)
