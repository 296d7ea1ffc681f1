"""Random tensors: numbers that every dtype holds exactly, in the layouts that inputs may have."""

from __future__ import annotations

import torch

from tests.support.fences import fenced

Shape = tuple[int, ...]

LAYOUTS = ("contiguous", "transposed", "sliced", "expanded", "misaligned", "channels_last")
_WITHOUT_SIGN = (torch.uint8, torch.uint64, torch.float8_e8m0fnu)


def laid_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    """The same shape in another layout of memory, which is fenced."""
    return fenced(_in_layout(x, layout))


def _in_layout(x: torch.Tensor, layout: str) -> torch.Tensor:
    match layout:
        case "transposed" if x.dim() > 1:
            return x.transpose(0, -1).contiguous().transpose(0, -1)
        case "sliced" if x.dim():
            return torch.stack([x, x], -1).flatten(-2)[..., ::2]
        case "expanded" if x.dim() and x.shape[0]:
            return x[:1].expand_as(x)
        case "misaligned":
            return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)
        case "channels_last" if x.dim() == 4:
            return x.to(memory_format=torch.channels_last)
    return x


def random_tensor(shape: Shape, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Multiples of 1/4 between -2 and 2: exact in every dtype, with many equal ones."""
    generator = torch.Generator().manual_seed(seed)
    quarters = torch.randint(-8, 9, shape, generator=generator)
    if dtype is torch.float8_e8m0fnu:
        return torch.exp2((quarters // 3).float()).to(dtype)
    if dtype.is_floating_point:
        return (quarters / 4).to(dtype)
    return (quarters.abs() if dtype in _WITHOUT_SIGN else quarters).to(dtype)
