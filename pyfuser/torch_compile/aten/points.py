"""Reads and writes at points: `index` and `index_put` with several index tensors as one with one.

The indexed dimensions are one dimension of a view, and the index tensors one index into it, which
the kernel that reads or writes computes. Each index tensor is checked for its own dimension.

    Before:  index_put(x, [i, j], v)                                 x of [4, 5, 6]
    After:   k = checked_index(i, 4, 0) * 5 + checked_index(j, 5, 1)
             view(index_put(view(x, [20, 6]), [k], v), [4, 5, 6])    negative indices counted

A write needs adjacent dimensions that lie in order in memory; anything else stays whole. A read may
have any: the view's dimension then steps through memory by the greatest common divisor of the
strides of the indexed dimensions, so that the other dimensions' elements overlap.

    Before:  index(x, [i, None, j])                                  x of [4, 5, 6]
    After:   k = checked_index(i, 4, 0) * 30 + checked_index(j, 6, 1)
             index(as_strided(x, [96, 5], [1, 6]), [k])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from ...ir.strides import dense_strides
from ..sizes import hints
from .checked import ops
from .true_metadata import by_stride, in_order, index, indexed_strides, is_in_order

aten = torch.ops.aten

_INTEGERS = (torch.int64, torch.int32)


def _points(x: Tensor, indices: Sequence[Tensor | None]) -> dict[int, Tensor] | None:
    """The index tensor of each indexed dimension; None if the op has to stay whole."""
    given = {dim: index for dim, index in enumerate(indices) if index is not None}
    if len(given) < 2 or not x.numel():
        return None
    if any(i.dtype not in _INTEGERS or i.device != x.device for i in given.values()):
        return None
    return given if all(index.numel() for index in given.values()) else None


def _are_adjacent(dims: Sequence[int]) -> bool:
    return list(dims) == list(range(dims[0], dims[-1] + 1))


def _place(x: Tensor, given: dict[int, Tensor], steps: Sequence[int]) -> Any:
    """One index into the view, of which an indexed dimension takes so many steps an element."""
    place: Any = None
    for number, ((dim, at), step) in enumerate(zip(given.items(), steps, strict=True)):
        size = x.shape[dim]
        checked = ops.checked_index(at.long(), size, number)
        counted = torch.where(checked < 0, checked + size, checked) * step
        place = counted if place is None else place + counted
    return place


def _flattened(x: Tensor, dims: Sequence[int]) -> tuple[Tensor, list[int]]:
    """A contiguous tensor with adjacent dimensions as one, and the steps in it."""
    steps = [math.prod(x.shape[d + 1 : dims[-1] + 1]) for d in dims]
    return x.flatten(dims[0], dims[-1]), steps


def _overlapping(x: Tensor, dims: Sequence[int], first: int) -> tuple[Tensor, list[int]]:
    """A view with one dimension, at `first`, instead of the indexed ones, and the steps in it."""
    strides = [x.stride(d) for d in dims]
    unit = math.gcd(*strides) or 1
    steps = [stride // unit for stride in strides]
    count = 1 + sum((x.shape[d] - 1) * step for d, step in zip(dims, steps, strict=True))
    kept = [d for d in range(x.dim()) if d not in dims]
    sizes, others = [x.shape[d] for d in kept], [x.stride(d) for d in kept]
    sizes.insert(first, count)
    others.insert(first, unit)
    return x.as_strided(sizes, others), steps


def _index(op: OpOverload) -> Callable[..., Any]:
    def read(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor | Any:
        given = _points(x, indices)
        if given is None:
            return index(x, indices) if op is aten.index.Tensor else NotImplemented
        is_dense = all(is_in_order(each) for each in (x, *given.values()))
        if not is_dense and len(given) > 2:  # the layout that eager gives the result isn't known
            return NotImplemented
        dims = list(given)
        first = dims[0] if _are_adjacent(dims) else 0  # torch puts the others after the points
        if _are_adjacent(dims) and x.is_contiguous():
            flat, steps = _flattened(x, dims)
        elif all(isinstance(n, int) for n in (*x.shape, *x.stride())):
            flat, steps = _overlapping(x, dims, first)
        else:
            return NotImplemented
        made = op(flat, [None] * first + [_place(x, given, steps)])
        sizes = hints(made.shape)
        wanted = tuple(dense_strides(sizes, range(len(sizes))))
        if not is_dense:
            wanted = indexed_strides(x, indices)
        return made if tuple(hints(made.stride())) == wanted else in_order(made, by_stride(wanted))

    return read


def _index_put(op: OpOverload) -> Callable[..., Any]:
    def write(
        x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
    ) -> Tensor | Any:
        given = _points(x, indices)
        if given is None or values.dtype != x.dtype or not x.is_contiguous():
            return NotImplemented
        dims = list(given)
        if not _are_adjacent(dims) or not any(index.dim() for index in given.values()):
            return NotImplemented
        flat, steps = _flattened(x, dims)
        place = _place(x, given, steps)
        return op(flat, [None] * dims[0] + [place], values, accumulate).view(x.shape)

    return write


DECOMPOSITIONS: dict[OpOverload, Callable[..., Any]] = {
    **{op: _index(op) for op in (aten.index.Tensor, aten._unsafe_index.Tensor)},
    **{op: _index_put(op) for op in (aten.index_put.default, aten._unsafe_index_put.default)},
}
