"""Writes by index tensors: scatter, scatter_add, scatter_reduce, index_put, index_add, index_copy
and the gradient of an embedding.

The base stays in its own dtype, because most of it is only moved, and values are rounded to it, as
in eager.  Where as many half-precision values are added as the base has elements, or more, their
sums are in float and are rounded once: eager does so for some layouts of the index, and adds one by
one in half precision for others.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch.fx import Node

from ...dtypes import REDUCED_FLOATING, DataType, from_torch
from ...ir.vals import TensorView
from ...ops.pointwise import require_equal
from ...ops.scatter_builders import index_put, scatter
from ...ops.shape_builders import full
from ..sizes import hints
from .region_builder import Call, meta_of
from .shapes import index_along, one_index_a_row
from .sizes import size_key
from .term import Term
from .translation import Build, Table, Translation

aten = torch.ops.aten

# torch's names of reductions -> the scatter's.
_HOW = {"sum": "sum", "prod": "prod", "amax": "max", "amin": "min"}


def _scatter(
    call: Call, x: Any, dim: int, index: Any, source: Any, how: str = "set", op: str = "scatter"
) -> TensorView:
    dtype = _combining_dtype(call, how, source)
    base, positions = call.builder.cast(call.tensor(x), dtype), call.tensor(index)
    value: Any
    if isinstance(meta_of(source), torch.Tensor):
        value = call.builder.cast(call.tensor(source), dtype)
    else:
        value = call.number(source, dtype).value
    for d, (own, other) in enumerate(zip(call.sizes_of(x), call.sizes_of(index), strict=True)):
        if d != dim % len(base.axes) and size_key(own) == size_key(other):
            require_equal(call.fusion, op, base.axes[d].size, positions.axes[d].size)
    return _rounded(call, scatter(call.fusion, base, positions, value, dim, how, op))


def _combining_dtype(call: Call, how: str, values: Any) -> DataType:
    """The dtype in which values are combined with a base."""
    dtype = from_torch(call.meta.dtype)
    value = meta_of(values)
    if how != "sum" or dtype not in REDUCED_FLOATING or not isinstance(value, torch.Tensor):
        return dtype
    are_many = prod(hints(value.shape)) >= prod(hints(call.meta.shape))
    return DataType.Float if are_many else dtype


def _rounded(call: Call, made: TensorView) -> TensorView:
    """A result in the dtype of the call."""
    return call.builder.cast(made, from_torch(call.meta.dtype))


def _scatter_value(call: Call, x: Any, dim: int, index: Any, value: Any) -> Term | TensorView:
    """A number for each index; with one index per row, the value where the position equals it."""
    if one_index_a_row(call.node, x, dim, index, value) is not None:
        return _scatter(call, x, dim, index, value)
    at = dim % len(call.meta.shape)
    size = call.builder.sizes.entry(call.meta.shape[at])
    checked = call.held(index, DataType.Int).op("checked_place", size, at)
    place = index_along(call, call.meta.shape, at).equals(checked)
    return place.choose(call.number(value, call.dtype), call.held(x))


def _scatter_add(call: Call, x: Any, dim: int, index: Any, source: Any) -> TensorView:
    return _scatter(call, x, dim, index, source, "sum", "scatter_add")


def _scatter_reduce(
    call: Call, x: Any, dim: int, index: Any, source: Any, reduce: str, include_self: bool = True
) -> TensorView:
    return _scatter(call, x, dim, index, source, _HOW[reduce], "scatter_reduce")


def _index_put(
    call: Call, x: Any, indices: Any, values: Any, accumulate: bool = False, *rest: Any
) -> TensorView:
    """x[:, index] = values: a negative index counts from the end."""
    dim, positions = next((d, i) for d, i in enumerate(indices) if i is not None)
    how = "sum" if accumulate else "set"
    dtype = _combining_dtype(call, how, values)
    base, value = (call.builder.cast(call.tensor(each), dtype) for each in (x, values))
    return _rounded(call, index_put(call.fusion, base, call.tensor(positions), value, dim, how))


def _row_writes(how: str, op: str) -> Build:
    """index_add and index_copy: whole rows, or columns, at the elements of a list."""

    def build(call: Call, x: Any, dim: int, index: Any, source: Any, alpha: Any = 1) -> TensorView:
        dtype = _combining_dtype(call, how, source)
        base, value = (call.builder.cast(call.tensor(each), dtype) for each in (x, source))
        if alpha != 1:
            scaled = call.held(source) * call.number(alpha, call.dtype)
            value = call.builder.cast(scaled.tensor, dtype)
        made = index_put(call.fusion, base, call.tensor(index), value, dim, how, op)
        return _rounded(call, made)

    return build


def _embedding_backward(
    call: Call, grad: Any, index: Any, count: Any, padding: Any, by_frequency: bool
) -> TensorView:
    """Zeros, to whose rows the gradients are added; those of the padding aren't."""
    dtype = _combining_dtype(call, "sum", grad)
    sizes = [call.builder.sizes.entry(size) for size in call.meta.shape]
    zeros = full(call.fusion, sizes, call.number(0, dtype).value, dtype)
    rows, value = call.tensor(index), call.builder.cast(call.tensor(grad), dtype)
    if isinstance(padding, int) and padding >= 0:
        place = call.held(index, DataType.Int)
        flags = [False] * rows.ndim + [True]
        is_padding = place.equals(call.number(padding, DataType.Int)).with_new_axes(flags)
        kept = is_padding.choose(call.number(0, call.dtype), call.held(grad))
        value = call.builder.cast(kept.tensor, dtype)
    name = "embedding_dense_backward"
    return _rounded(call, index_put(call.fusion, zeros, rows, value, 0, "sum", name))


# -- refusals


def _usable(node: Node, x: Any, index: Any, values: Any, combines: bool) -> str | None:
    base, places, source = meta_of(x), meta_of(index), meta_of(values)
    if isinstance(source, torch.Tensor) and source.dtype != base.dtype:
        return "values of another dtype, which torch refuses"
    if not isinstance(places, torch.Tensor) or places.dtype not in (torch.int64, torch.int32):
        return "an index that isn't an integer tensor"
    if not base.dim():
        return "a tensor of rank 0"
    if combines and base.dtype is torch.bool:
        return "a reduction of Bool"
    return None


def _aligned(combines: bool) -> Any:
    def check(node: Node, x: Any, dim: int, index: Any, source: Any, *rest: Any) -> str | None:
        reason = _usable(node, x, index, source, combines)
        if reason is not None:
            return reason
        if rest and (rest[0] not in _HOW or rest[1:] == (False,)):
            return "a mean, or a reduction without the base"
        values = meta_of(source)
        if not isinstance(values, torch.Tensor):
            return None
        if values.dim() != meta_of(index).dim():
            return "a source of another rank than the index"
        pairs = zip(meta_of(index).shape, values.shape, strict=True)
        is_equal = all(size_key(a) == size_key(b) for a, b in pairs)
        return None if is_equal else "a source that is longer than the index"

    return check


def _one_list(node: Node, x: Any, indices: Any, values: Any, *rest: Any) -> str | None:
    """Accepts one integer tensor among slices; several tensors are a scatter of points."""
    given = [index for index in indices if index is not None]
    if len(given) != 1:
        return "several index tensors"
    base, value = meta_of(x), meta_of(values)
    reason = _usable(node, x, given[0], values, combines=bool(rest and rest[0]))
    if reason is None and not meta_of(given[0]).dim():
        reason = "an index of rank 0"
    rank = base.dim() - 1 + meta_of(given[0]).dim()
    if reason is None and value.dim() > rank:
        reason = "values of a higher rank than their place"
    return reason


def _one_row(combines: bool) -> Any:
    def check(node: Node, x: Any, dim: int, index: Any, source: Any, *rest: Any) -> str | None:
        reason = _usable(node, x, index, source, combines)
        if reason is None and meta_of(index).dim() != 1:
            reason = "an index of rank 0"
        if reason is None and rest and isinstance(meta_of(rest[0]), complex):
            reason = "a complex factor"
        return reason

    return check


def _plain_gradient(node: Node, grad: Any, index: Any, *rest: Any) -> str | None:
    if rest[2]:
        return "gradients that are scaled by frequency"
    if meta_of(grad).dtype is torch.bool:
        return "a reduction of Bool"
    if meta_of(index).dtype not in (torch.int64, torch.int32):
        return "an index that isn't an integer tensor"
    return None if meta_of(index).dim() else "an index of rank 0"


def _scatter_row(build: Build, combines: bool) -> Translation:
    """A scatter on its own is left to torch, whose loop along the innermost axis is faster."""
    return Translation(build, "read", _aligned(combines))


TRANSLATIONS: Table = {
    aten.scatter.src: Translation(_scatter, "read", _aligned(False), keeps_values=True),
    aten.scatter.value: Translation(_scatter_value, check=_aligned(False)),
    aten.scatter_add.default: _scatter_row(_scatter_add, True),
    aten.scatter_reduce.two: _scatter_row(_scatter_reduce, True),
    aten.index_put.default: Translation(_index_put, "reduction", _one_list),
    aten._unsafe_index_put.default: Translation(_index_put, "reduction", _one_list),
    aten.index_add.default: Translation(
        _row_writes("sum", "index_add"), "reduction", _one_row(True)
    ),
    aten.index_copy.default: Translation(
        _row_writes("set", "index_copy"), "reduction", _one_row(False)
    ),
    aten.embedding_dense_backward.default: Translation(
        _embedding_backward, "reduction", _plain_gradient
    ),
}
