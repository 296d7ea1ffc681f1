"""Products with what surrounds them, as one definition each: the library computes the products.

`linear` with a bias and GELU, an MLP, and an attention block of a model: what reads a product is a
fused kernel, the bias is the library's own, and heads are views of the library's operands.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from pyfuser import DataType, FusionDefinition

from .cases import Case, Factory

HIDDEN, HEAD, MODEL = 256, 64, 256
LONGEST = 1024  # positions of the attention block


def _scaled(make: Factory, *shape: int) -> torch.Tensor:
    """A weight whose products are as large as the other operand."""
    return make(*shape) * shape[-1] ** -0.5


def _linear_inputs(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    return [make(rows, columns), _scaled(make, HIDDEN, columns), make(HIDDEN)]


def _mlp_inputs(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    first = _linear_inputs(rows, columns, make)
    return [*first, _scaled(make, columns, HIDDEN), make(columns)]


def _attention_inputs(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    """[2, positions, MODEL] and the weights of queries, keys, values and the result."""
    positions = min(max(rows * columns // (2 * MODEL), 1), LONGEST)
    return [make(2, positions, MODEL), *(_scaled(make, MODEL, MODEL) for _ in range(4))]


def _wide(fd: FusionDefinition, x: Any) -> Any:
    return fd.ops.cast(x, DataType.Float)


def _gelu(fd: FusionDefinition, x: Any) -> Any:
    """In float32, rounded to the dtype of the argument."""
    wide, o = _wide(fd, x), fd.ops
    normal = o.add(o.erf(o.mul(wide, 0.5**0.5)), 1.0)
    return o.cast(o.mul(o.mul(wide, 0.5), normal), x.dtype())


def _linear_gelu(fd: FusionDefinition, x: Any, weight: Any, bias: Any) -> Any:
    return _gelu(fd, fd.ops.linear(x, weight, bias))


def _mlp(fd: FusionDefinition, x: Any, up: Any, bias: Any, down: Any, last: Any) -> Any:
    return fd.ops.linear(_linear_gelu(fd, x, up, bias), down, last)


def _attention(fd: FusionDefinition, x: Any, *weights: Any) -> Any:
    o = fd.ops
    batch, positions = o.size(x, 0), o.size(x, 1)
    split = [batch, positions, MODEL // HEAD, HEAD]
    query, key, value = (
        o.permute(o.reshape(o.linear(x, weight), split), [0, 2, 1, 3]) for weight in weights[:3]
    )
    if x.dtype() is DataType.Float:
        mixed = o.sdpfa_fwd(query, key, value, scale=HEAD**-0.5)[0]
    else:  # two products in half precision are twice as fast
        scores = o.mul(_wide(fd, o.matmul(query, o.permute(key, [0, 1, 3, 2]))), HEAD**-0.5)
        powers = o.exp(o.sub(scores, o.max(scores, [3], True)))
        share = o.cast(o.div(powers, o.sum(powers, [3], True)), x.dtype())
        mixed = o.matmul(share, value)
    mixed = o.permute(mixed, [0, 2, 1, 3])
    result = o.linear(o.reshape(mixed, [batch, positions, MODEL]), weights[3])
    return o.cast(o.add(_wide(fd, result), _wide(fd, x)), x.dtype())


def _torch_mlp(
    x: torch.Tensor, up: torch.Tensor, bias: torch.Tensor, down: torch.Tensor, last: torch.Tensor
) -> torch.Tensor:
    return F.linear(F.gelu(F.linear(x, up, bias)), down, last)


def _torch_attention(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    split = (*x.shape[:2], MODEL // HEAD, HEAD)
    query, key, value = (F.linear(x, w).view(split).transpose(1, 2) for w in weights[:3])
    wide = torch.promote_types(x.dtype, torch.float32)
    share = torch.softmax((query @ key.transpose(-1, -2)).to(wide) * HEAD**-0.5, -1).to(x.dtype)
    return F.linear((share @ value).transpose(1, 2).reshape(x.shape), weights[3]) + x


PRODUCTS = (
    Case(
        "linear + bias + GELU",
        _linear_inputs,
        _linear_gelu,
        lambda x, weight, bias: F.gelu(F.linear(x, weight, bias)),
        is_native=True,
    ),
    Case("MLP", _mlp_inputs, _mlp, _torch_mlp, is_native=True),
    Case("attention block", _attention_inputs, _attention, _torch_attention, is_native=True),
)
