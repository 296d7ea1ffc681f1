"""Diagonals as comparisons of row and column, which fuse with their neighbours: writes to them, and
identity matrices.

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


def _is_on(sizes: Sequence[Any], offset: int, dim1: int, dim2: int, device: Any) -> Tensor:
    """True where the index along `dim2` is the one along `dim1` plus the offset, for a tensor of
    `sizes`; the other dimensions have one element.
    """
    row, column = (
        torch.arange(first, first + sizes[dim], device=device).view(
            [-1, *[1] * (len(sizes) - 1 - dim)]
        )
        for dim, first in ((dim1, offset), (dim2, 0))
    )
    return row == column


def _spread(
    values: Tensor, sizes: Sequence[Any], offset: int, dim1: int, dim2: int
) -> tuple[Tensor, Tensor]:
    """(where the diagonal is, its values beside themselves), for a tensor of `sizes`."""
    dim1, dim2 = dim1 % len(sizes), dim2 % len(sizes)
    along, across = (dim1, dim2) if offset >= 0 else (dim2, dim1)
    missing = sizes[along] - values.shape[-1]
    if not statically_known_true(missing == 0):
        values = aten.constant_pad_nd(values, [0, missing])
    mask = _is_on(sizes, offset, dim1, dim2, values.device)
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


def _eye(n: int, m: int | None = None, **options: Any) -> Tensor | Any:
    """Torch's decomposition compares ranges of a type for which eager has no ranges."""
    columns = n if m is None else m
    layout, dtype = options.get("layout"), options.get("dtype") or torch.get_default_dtype()
    if layout not in (None, torch.strided) or n < 0 or columns < 0:
        return NotImplemented
    return _is_on((n, columns), 0, 0, 1, options.get("device")).to(dtype)


DECOMPOSITIONS: dict[OpOverload, Callable[..., Any]] = {
    aten.diagonal_backward.default: _diagonal_backward,
    aten.diagonal_scatter.default: _diagonal_scatter,
    aten.eye.default: _eye,
    aten.eye.m: _eye,
}
