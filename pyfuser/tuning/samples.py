"""Inputs made up for fusions of which only the metadata of the inputs is known.

Floats are random; integers are at least 1 and below every size, because they may be divisors or
indices.  The numbers come from a generator of their own: those of a program don't change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ..ir.vals import TensorView
from ..ops.metadata import TensorLike, TensorMetadata

_SEED = 0


def samples(inputs: Sequence[Any]) -> list[Any]:
    """The inputs, with a tensor for each metadata."""
    limit = _least_size(inputs)
    return [_tensor(x, limit) if isinstance(x, TensorMetadata) else x for x in inputs]


def _least_size(inputs: Iterable[Any]) -> int:
    """The least size that isn't 0 or 1; 2 if there is none."""
    shapes = (x.shape for x in inputs if isinstance(x, TensorLike))
    return min((size for shape in shapes for size in shape if size > 1), default=2)


def _tensor(metadata: TensorMetadata, limit: int) -> torch.Tensor:
    pairs = list(zip(metadata.shape, metadata.strides, strict=True))
    span = 0 if 0 in metadata.shape else 1 + sum((n - 1) * step for n, step in pairs)
    dtype, device = metadata.dtype, metadata.device
    numbers = torch.Generator(device).manual_seed(_SEED)
    if dtype.is_floating_point or dtype.is_complex:
        kind = dtype if dtype.is_complex else torch.float32
        made = torch.randn(span, generator=numbers, dtype=kind, device=device).to(dtype)
    else:
        low, high = (0, 2) if dtype is torch.bool else (1, min(limit, 127))
        high = max(high, low + 1)
        made = torch.randint(low, high, (span,), generator=numbers, device=device).to(dtype)
    return made.as_strided(metadata.shape, metadata.strides)


def laid_out(tensor: torch.Tensor, value: TensorView) -> torch.Tensor:
    """A tensor between two kernels, dense in the memory order that its reader expects."""
    order = value.domain.memory_order
    places = sorted(range(len(order)), key=order.__getitem__)
    return tensor.permute(order).contiguous().permute(places)


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides."""
    made = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return made.copy_(tensor)
