"""Elements in other places: flip, and roll as two slices side by side.

A kernel reads them where it needs them; torch finds the place of each element by itself.  Padding
by reflection and replication stays torch's, which copies rows (measured: 2 to 6 times as fast).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ...ir.vals import TensorView
from ...ops.read_builders import cat, flip, slice
from ...ops.shape_builders import shape, size
from .reads import some_result
from .region_builder import Call, meta_of
from .sizes import size_key
from .translation import Table, Translation

aten = torch.ops.aten


def _flip(call: Call, x: Any, dims: Any) -> TensorView:
    tensor = call.tensor(x)
    return flip(call.fusion, tensor, list(dims)) if tensor.ndim else tensor


def _roll(call: Call, x: Any, shifts: Any, dims: Any) -> TensorView:
    """The last `shift` elements along a dimension, and then the others."""
    tensor, sizes = call.tensor(x), call.sizes_of(x)
    for shift, dim in zip(shifts, dims, strict=True):
        at = dim % tensor.ndim
        first = -shift % int(sizes[at])
        if first:
            is_short = tensor.axes[at].extent.is_constant  # its places are known, then
            start = first if is_short else call.builder.sizes.entry(first)
            last = _part(call, tensor, at, start, size(call.fusion, tensor, at))
            tensor = cat(call.fusion, [last, _part(call, tensor, at, 0, start)], at)
    return tensor


def _part(call: Call, tensor: TensorView, dim: int, start: Any, stop: Any) -> TensorView:
    """tensor[start:stop] along one dimension."""
    starts: list[Any] = [0] * tensor.ndim
    stops: list[Any] = list(shape(call.fusion, tensor))
    starts[dim], stops[dim] = start, stop
    return slice(call.fusion, tensor, starts, stops)


# -- refusals


def _known_sizes(node: Node, x: Any, shifts: Any, dims: Any) -> str | None:
    if len(dims) != len(shifts):
        return "a roll of all elements in a row"
    if not all(isinstance(shift, int) for shift in shifts):
        return "a roll by a number that isn't known"
    if not all(isinstance(size_key(meta_of(x).shape[dim]), int) for dim in dims):
        return "a roll along a dimension of unknown size"
    return some_result(node)


TRANSLATIONS: Table = {
    aten.flip.default: Translation(_flip, "read", some_result, keeps_values=True),
    aten.roll.default: Translation(_roll, "read", _known_sizes, keeps_values=True),
}
