"""Writes to diagonals as choices by row and column, which fuse with their neighbours.

    Before:  diagonal_backward(g, [64, 64], 0, 0, 1)
    After:   where(arange(64) == view(arange(64), [64, 1]), unsqueeze(g, 1), 0)

Eager fills a tensor with zeros, or copies one, and then writes the diagonal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ..sizes import sizes_of

aten = torch.ops.aten


def _spread(
    values: Tensor, sizes: Sequence[Any], offset: int, dim1: int, dim2: int
) -> tuple[Tensor, Tensor]:
    """(where the diagonal is, its values beside themselves), for a tensor of `sizes`."""
    rank = len(sizes)
    dim1, dim2 = dim1 % rank, dim2 % rank
    along, across = (dim1, dim2) if offset >= 0 else (dim2, dim1)
    missing = sizes[along] - values.shape[-1]
    if not statically_known_true(missing == 0):
        values = aten.constant_pad_nd(values, [0, missing])
    places = [
        torch.arange(sizes[dim], device=values.device).view([-1, *[1] * (rank - 1 - dim)])
        for dim in (dim1, dim2)
    ]
    mask = places[0] + offset == places[1] if offset else places[0] == places[1]
    return mask, values.unsqueeze(-1).movedim((-2, -1), (along, across))


def _diagonal_backward(
    gradient: Tensor, sizes: Sequence[Any], offset: int, dim1: int, dim2: int
) -> Tensor | Any:
    if gradient.is_complex():
        return NotImplemented
    mask, values = _spread(gradient, sizes, offset, dim1, dim2)
    return torch.where(mask, values, 0).contiguous()


def _diagonal_scatter(
    x: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor | Any:
    if x.is_complex() or x.dtype != source.dtype or not x.is_contiguous():
        return NotImplemented
    diagonal = aten.diagonal.default(x, offset, dim1, dim2)
    if sizes_of(source.shape) != sizes_of(diagonal.shape):  # eager raises an error
        return NotImplemented
    mask, values = _spread(source, x.shape, offset, dim1, dim2)
    return torch.where(mask, values, x).contiguous()


DECOMPOSITIONS: dict[OpOverload, Callable[..., Any]] = {
    aten.diagonal_backward.default: _diagonal_backward,
    aten.diagonal_scatter.default: _diagonal_scatter,
}
