"""The cases for JAX: the same functions of its arrays.

Random ones (dropout) draw numbers by JAX's own generator, as the others do by torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..torch_cases import CHANNELS, HEAD, KEPT


def _normal(x: Any, axes: Any, epsilon: float = 1e-5) -> Any:
    wide = x.astype(jnp.float32)
    mean = wide.mean(axes, keepdims=True)
    variance = wide.var(axes, keepdims=True)
    return (wide - mean) * jax.lax.rsqrt(variance + epsilon)


def _layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    return (_normal(x, -1) * weight + bias).astype(x.dtype)


def _rms_norm(x: Any, weight: Any) -> Any:
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)
    return (wide * scale * weight).astype(x.dtype)


def _by_channel(vector: Any) -> Any:
    return vector[None, :, None]


def _batch_norm(x: Any, weight: Any, bias: Any) -> Any:
    return (_normal(x, (0, 2)) * _by_channel(weight) + _by_channel(bias)).astype(x.dtype)


def _instance_norm(x: Any, weight: Any, bias: Any) -> Any:
    return (_normal(x, 2) * _by_channel(weight) + _by_channel(bias)).astype(x.dtype)


def _group_norm(x: Any, weight: Any, bias: Any) -> Any:
    grouped = x.reshape(x.shape[0], CHANNELS // 8, -1)
    normal = _normal(grouped, 2).reshape(x.shape)
    return (normal * _by_channel(weight) + _by_channel(bias)).astype(x.dtype)


def _dropout(x: Any) -> Any:
    kept = jax.random.bernoulli(jax.random.key(0), KEPT, x.shape)
    return jnp.where(kept, x / KEPT, 0).astype(x.dtype)


def _mul_chain(x: Any, y: Any) -> Any:
    return x * y * x * y * x * y


def _long_chain(x: Any, y: Any) -> Any:
    for _ in range(6):
        x = jnp.tanh(x * 0.5 + y) * 1.1 - jnp.abs(y)
    return x


def _cross_entropy(x: Any, target: Any) -> Any:
    chosen = jnp.take_along_axis(jax.nn.log_softmax(x.astype(jnp.float32)), target[:, None], 1)
    return (-chosen.mean()).astype(x.dtype)


def _rope(x: Any, cosine: Any, sine: Any) -> Any:
    rotated = jnp.concatenate((-x[..., HEAD // 2 :], x[..., : HEAD // 2]), -1)
    return x * cosine + rotated * sine


def _adamw_step(weight: Any, gradient: Any, mean: Any, square: Any) -> Any:
    mean = mean + 0.1 * (gradient - mean)
    square = 0.999 * jnp.abs(square) + 0.001 * gradient * gradient
    step = mean / (1 - 0.9**100) / (jnp.sqrt(square / (1 - 0.999**100)) + 1e-8)
    return weight * (1 - 1e-5) - 1e-3 * step, mean, square


def _segments(x: Any, y: Any) -> Any:
    for _ in range(3):
        x = jax.nn.softmax(x, 1) * y
        x = (x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-5)
    return jax.nn.gelu(x, approximate=False)


def _attention_softmax(scores: Any, mask: Any) -> Any:
    return _dropout(jax.nn.softmax(scores * HEAD**-0.5 + mask, -1))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y,
    "mul chain": _mul_chain,
    "bias + GELU (tanh)": lambda x, bias: jax.nn.gelu(x + bias, approximate=True),
    "bias + GELU (erf)": lambda x, bias: jax.nn.gelu(x + bias, approximate=False),
    "SiLU * mul": lambda x, y: jax.nn.silu(x) * y,
    "scale + bias + ReLU": lambda x, scale, bias: jax.nn.relu(x * scale + bias),
    "softmax": lambda x: jax.nn.softmax(x, 1),
    "log-softmax": lambda x: jax.nn.log_softmax(x, 1),
    "layer norm": _layer_norm,
    "RMS norm": _rms_norm,
    "sum over columns": lambda x: x.sum(1),
    "sum over rows": lambda x: x.sum(0),
    "sum over all": lambda x: x.sum(),
    "var_mean": lambda x: (x.var(1, ddof=1), x.mean(1)),
    "transposed add": lambda x, y: x + y.T,
    "transpose": lambda x: (x * 2).T,
    "batch norm": _batch_norm,
    "dropout + layer norm": lambda x, y, *of: _layer_norm(y + _dropout(x), *of),
    "cross entropy": _cross_entropy,
    "RoPE": _rope,
    "embedding + position": lambda table, index, position: table[index] + position,
    "broadcast add (outer)": lambda x, y: x + y,
    "long chain": _long_chain,
    "norm of rows": lambda x: jnp.sqrt((x * x).sum(1)) + 1,
    "mean of scaled rows": lambda x: jax.nn.relu(x * 2 + 1).mean(0) * 3,
    "masked log-softmax": lambda x, mask: jax.nn.log_softmax(jnp.where(mask, -1e4, x), 1),
    "instance norm": _instance_norm,
    "group norm": _group_norm,
    "group norm + SiLU": lambda x, *of: jax.nn.silu(_group_norm(x, *of)),
    "attention softmax": _attention_softmax,
    "embedding + layer norm": lambda table, index, *of: _layer_norm(table[index], *of),
    "cat": lambda x, y: jnp.concatenate((x * 2, jax.nn.sigmoid(y), x - y), 1),
    "AdamW step": _adamw_step,
    "many segments": _segments,
    "transpose (1, 2)": lambda x: (x + 1).transpose(0, 2, 1),
    "transpose (0, 2)": lambda x: (x + 1).transpose(2, 1, 0),
}
