"""`index_put` with several index tensors as one with a single index tensor.

The indexed dimensions are one dimension of a view, and the index tensors one index into it, which
the kernel that writes the values computes.  Each index tensor is checked for its own dimension.
This needs adjacent dimensions that lie in order in memory; anything else stays whole.

    Before:  index_put(x, [i, j], v)                                 x of [4, 5, 6]
    After:   k = checked_index(i, 4, 0) * 5 + checked_index(j, 5, 1)
             view(index_put(view(x, [20, 6]), [k], v), [4, 5, 6])    negative indices counted
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from .checked import ops

aten = torch.ops.aten

_INTEGERS = (torch.int64, torch.int32)


def _joined(x: Tensor, indices: Sequence[Tensor | None]) -> tuple[int, list[Tensor]] | None:
    """The first indexed dimension and the index tensors; None if the op has to stay whole."""
    places = [dim for dim, index in enumerate(indices) if index is not None]
    given = [index for index in indices if index is not None]
    if len(given) < 2 or places != list(range(places[0], places[-1] + 1)):
        return None
    if any(index.dtype not in _INTEGERS or index.device != x.device for index in given):
        return None
    is_dense = x.is_contiguous() and x.numel() and all(index.numel() for index in given)
    return (places[0], given) if is_dense and any(index.dim() for index in given) else None


def _counted(index: Tensor, size: Any, dim: int) -> Tensor:
    """An index in [0, size)."""
    checked = ops.checked_index(index.long(), size, dim)
    return torch.where(checked < 0, checked + size, checked)


def _index_put(op: OpOverload) -> Callable[..., Any]:
    def put(
        x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
    ) -> Tensor | Any:
        found = _joined(x, indices)
        if found is None or values.dtype != x.dtype:
            return NotImplemented
        start, given = found
        place: Any = None
        for number, index in enumerate(given):
            size = x.shape[start + number]
            counted = _counted(index, size, number)
            place = counted if place is None else place * size + counted
        flat = x.flatten(start, start + len(given) - 1)
        return op(flat, [None] * start + [place], values, accumulate).view(x.shape)

    return put


DECOMPOSITIONS: dict[OpOverload, Callable[..., Any]] = {
    op: _index_put(op) for op in (aten.index_put.default, aten._unsafe_index_put.default)
}
