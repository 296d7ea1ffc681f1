"""What the tests of reductions and normalisations share: types, and inputs in all layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pyfuser import DataType, FusionDefinition

Dims = tuple[int, ...]
Reference = Callable[[torch.Tensor, Dims], list[torch.Tensor]]

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "sliced": lambda x: torch.stack([x, x], -1).flatten(-2)[..., ::2],
    "expanded": lambda x: x[:1].expand_as(x),
    "misaligned": lambda x: torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape),
}


def random(
    shape: Sequence[int], dtype: torch.dtype, seed: int = 0, center: float = 0.0
) -> torch.Tensor:
    """Numbers around the centre, small integers of both signs."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        numbers = torch.rand(shape, generator=generator, dtype=torch.float64)
        return (numbers - 0.5 + center).to(dtype)
    low = 0 if dtype is torch.uint8 else -3
    return torch.randint(low, 4, tuple(shape), generator=generator).to(dtype)


def in_float(fd: FusionDefinition, x: Any) -> Any:
    return x if x.dtype is DataType.Double else fd.ops.cast(x, DataType.Float)
