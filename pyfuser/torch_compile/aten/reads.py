"""Reads at computed positions: slices, concatenation, padding, and reads by index tensors.

Bounds and widths are sizes of the region, so a model's layers share what they build.  The builders
clamp them, so no read leaves its tensor.  Values keep their stored dtype: a half-precision value
that is only moved is never converted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ...dtypes import DataType, compute_dtype, from_torch
from ...ir.scalars import Integer, IntExpr
from ...ir.strides import may_overlap
from ...ir.vals import TensorView
from ...ops.gather_builders import (
    embedding_rows,
    gather,
    index,
    index_select,
    require_inside,
    select,
)
from ...ops.pointwise import require_equal
from ...ops.read_builders import cat, pad, slice, slice_scatter
from ...ops.shape_builders import broadcast, size
from ..sizes import hints
from .region_builder import Call, meta_of
from .shapes import index_along, is_empty
from .sizes import is_one, size_key
from .term import Term, typed
from .translation import Build, Table, Translation

aten = torch.ops.aten

# Widths of padding up to here are a property of the operation, such as a convolution's, and may
# show in the structure; larger ones are sizes.
_SMALL_WIDTH = 16


def _alike(call: Call, arguments: Any) -> list[TensorView]:
    """Tensors of one dtype: the logical one if all are kept in it, else the held one."""
    logical = from_torch(call.meta.dtype)
    tensors = [call.tensor(argument) for argument in arguments]
    if all(tensor.dtype is logical for tensor in tensors):
        return tensors
    return [call.builder.cast(tensor, compute_dtype(logical)) for tensor in tensors]


def _clamped(bound: Any, extent: Any, default: int) -> Any:
    """A bound of a slice, counted from the front and inside the axis, if that is known."""
    value = default if bound is None else meta_of(bound)
    number, total = size_key(value), size_key(extent)
    if isinstance(number, int) and isinstance(total, int):
        return max(0, min(number + total if number < 0 else number, total))
    if isinstance(number, int) and number >= torch.iinfo(torch.int64).max:
        return extent
    return value


def _bound(call: Call, tensor: TensorView, dim: int, value: Any, extent: Any) -> Any:
    """A bound for the builders: the axis's own size if it equals that."""
    if size_key(value) == size_key(extent):
        return size(call.fusion, tensor, dim)
    return _position(call, value, tensor.axes[dim].size)


def _is_whole(start: Any, stop: Any, extent: Any) -> bool:
    return bool(size_key(start) == 0 and size_key(stop) == size_key(extent))


def _slice(
    call: Call, x: Any, dim: int = 0, start: Any = None, stop: Any = None, step: int = 1
) -> TensorView:
    tensor, sizes = call.tensor(x), call.sizes_of(x)
    at = dim % tensor.ndim
    extent = sizes[at]
    first, last = _clamped(start, extent, 0), _clamped(stop, extent, torch.iinfo(torch.int64).max)
    if _is_whole(first, last, extent) and step == 1 or is_one(extent):
        return tensor
    if is_one(call.meta.shape[at]):
        picked = select(call.fusion, tensor, _position(call, first, tensor.axes[at].size), at)
        return broadcast(call.fusion, picked, [d == at for d in range(tensor.ndim)])
    starts: list[Any] = [0] * tensor.ndim
    stops: list[Any] = [size(call.fusion, tensor, d) for d in range(tensor.ndim)]
    steps: list[Any] = [1] * tensor.ndim
    starts[at] = _bound(call, tensor, at, first, extent)
    stops[at] = _bound(call, tensor, at, last, extent)
    steps[at] = step
    return slice(call.fusion, tensor, starts, stops, steps)


def _position(call: Call, index: Any, extent: IntExpr) -> Any:
    """An index or a bound for the builders; a number if the size is part of the structure."""
    value = meta_of(index)
    if isinstance(value, int) and (value < 0 or isinstance(extent, Integer)):
        return value
    return call.builder.sizes.entry(value)


def _counted(index: Any, extent: Any) -> Any:
    """A numeric index, counted from the front if the size is known."""
    value, total = meta_of(index), size_key(extent)
    if isinstance(value, int) and value < 0 and isinstance(total, int):
        return value + total
    return value


def _select(call: Call, x: Any, dim: int, index: Any) -> TensorView:
    tensor = call.tensor(x)
    at = dim % tensor.ndim
    place = _counted(index, call.sizes_of(x)[at])
    return select(call.fusion, tensor, _position(call, place, tensor.axes[at].size), at)


def _cat(call: Call, tensors: Any, dim: int = 0) -> TensorView:
    rank = len(call.meta.shape)
    at = dim % rank
    # A tensor of shape [0] may be among any others.
    parts = [
        t for t in tensors if size_key(meta_of(t).shape[at if meta_of(t).dim() == rank else 0])
    ]
    made = _alike(call, parts)
    return made[0] if len(made) == 1 else cat(call.fusion, made, at)


def _width(call: Call, width: Any) -> Any:
    value = meta_of(width)
    is_small = isinstance(value, int) and value <= _SMALL_WIDTH
    return value if is_small else call.builder.sizes.entry(value)


def _pad(call: Call, x: Any, widths: Any, value: Any = 0) -> TensorView:
    (tensor,) = _alike(call, [x])
    entries = [_width(call, width) for width in widths]
    fill = typed(call.fusion, call.number(value, tensor.dtype), tensor.dtype)
    return pad(call.fusion, tensor, entries, fill)


def _placed(call: Call, base: Term, source: Term, dim: int, index: Any) -> Term:
    """The base with `source`, of size 1 along `dim`, at one index."""
    positions = index_along(call, call.meta.shape, dim)
    return positions.equals(call.number(index, DataType.Int)).choose(source, base)


def _select_scatter(call: Call, x: Any, source: Any, dim: int, index: Any) -> Term:
    base, part = (call.term(t) for t in _alike(call, [x, source]))
    at = dim % base.tensor.ndim
    _require_place(call, base.tensor, at, index)
    _require_sizes(call, "select_scatter", x, source, at)
    part = part.with_new_axes([d == at for d in range(base.tensor.ndim)])
    return _placed(call, base, part, at, _place(call, base.tensor, index, at))


def _require_place(call: Call, base: TensorView, dim: int, index: Any) -> None:
    """The index is one of the dimension's: tested now if that is known, else at each call."""
    value, total = meta_of(index), size_key(call.meta.shape[dim])
    is_known = isinstance(value, int) and isinstance(total, int)
    extent = Integer.of(total) if is_known else base.axes[dim].size
    place = value if isinstance(value, int) else call.builder.sizes.entry(value)
    require_inside(call.fusion, "select_scatter", extent, place)


def _require_sizes(call: Call, op: str, x: Any, source: Any, dim: int | None = None) -> None:
    """The source is as long as the base along all dimensions, or all but one."""
    base, part = list(call.tensor(x).axes), list(call.tensor(source).axes)
    sizes, others = list(call.sizes_of(x)), list(call.sizes_of(source))
    if dim is not None:
        for given in (base, sizes) if len(part) < len(base) else (base, sizes, part, others):
            del given[dim]
    for own, other, a, b in zip(sizes, others, base, part, strict=True):
        if size_key(own) != size_key(other):
            require_equal(call.fusion, op, a.size, b.size)


def _place(call: Call, base: TensorView, index: Any, dim: int) -> Any:
    """A fixed index as an input, so that it isn't part of the structure."""
    value = _counted(index, call.meta.shape[dim])
    if isinstance(value, int) and value < 0:
        return (call.term(size(call.fusion, base, dim)) + value).value
    if isinstance(value, int) and value > 1:
        return call.builder.sizes.plain(value)
    return value


def _slice_scatter(
    call: Call,
    x: Any,
    source: Any,
    dim: int = 0,
    start: Any = None,
    stop: Any = None,
    step: int = 1,
) -> TensorView | Term:
    base, part = _alike(call, [x, source])
    at = dim % base.ndim
    extent, length = call.sizes_of(x)[at], call.sizes_of(source)[at]
    first, last = _clamped(start, extent, 0), _clamped(stop, extent, torch.iinfo(torch.int64).max)
    if _is_whole(first, last, extent) and step == 1:
        _require_sizes(call, "slice_scatter", x, source)
        return part
    if is_one(length) and size_key(last - first) == 1:
        _require_sizes(call, "slice_scatter", x, source, at)
        place = _place(call, base, first, at)
        return _placed(call, call.term(base), call.term(part), at, place)
    begin, end = (_bound(call, base, at, value, extent) for value in (first, last))
    return slice_scatter(call.fusion, base, part, at, begin, end, step)


# -- reads by index tensors


def _gather(call: Call, x: Any, dim: int, index: Any, sparse_grad: bool = False) -> TensorView:
    source, positions = call.tensor(x), call.tensor(index)
    # An index may be shorter than its source; if it isn't, the kernel may rely on that.
    for d, (own, other) in enumerate(zip(call.sizes_of(x), call.sizes_of(index), strict=True)):
        if d != dim % len(source.axes) and size_key(own) == size_key(other):
            require_equal(call.fusion, "gather", source.axes[d].size, positions.axes[d].size)
    return gather(call.fusion, source, positions, dim)


def _index_select(call: Call, x: Any, dim: int, index: Any) -> TensorView:
    return index_select(call.fusion, call.tensor(x), call.tensor(index), dim)


def _embedding(call: Call, weight: Any, index: Any, *rest: Any) -> TensorView:
    return embedding_rows(call.fusion, call.tensor(index), call.tensor(weight))


def _index(call: Call, x: Any, indices: Any) -> TensorView:
    """x[:, index]: a negative index counts from the end."""
    dim, positions = next((d, i) for d, i in enumerate(indices) if i is not None)
    return index(call.fusion, call.tensor(x), call.tensor(positions), dim)


# -- refusals


def some_result(node: Node, *rest: Any) -> str | None:
    """Refuses what has no elements, and positions that may be negative."""
    if is_empty(meta_of(node)):
        return "a result without elements"
    for argument in node.all_input_nodes:
        meta = meta_of(argument)
        if isinstance(meta, torch.Tensor) and is_empty(meta) and meta.dim() != 1:
            return "an operand without elements"
        if isinstance(meta, torch.SymInt) and not statically_known_true(meta >= 0):
            return "a position or a width that may be negative"
    return None


# The offset of a part is the sum of all sizes before it, so the time that a cat takes to compile
# grows with the square of its parts: 64 parts take 1 s, 1000 took minutes.
_MOST_PARTS = 64


def _few_parts(node: Node, parts: Any, *rest: Any) -> str | None:
    if len(parts) > _MOST_PARTS:
        return f"a cat of {len(parts)} tensors, more than {_MOST_PARTS}"
    return some_result(node)


def _numeric_step(node: Node, x: Any, *rest: Any) -> str | None:
    steps = rest[3:] if node.target is aten.slice.Tensor else rest[4:]
    if steps and not isinstance(steps[0], int):
        return "a symbolic step"
    return some_result(node)


def _scattered(check: Callable[..., str | None]) -> Callable[..., str | None]:
    """Also refuses a base whose elements overlap in memory: torch keeps its strides, and a value is
    written to all elements that share its memory.
    """

    def refused(node: Node, x: Any, *rest: Any) -> str | None:
        made = meta_of(node)
        if may_overlap(hints(made.shape), hints(made.stride())):
            return "a result whose elements overlap in memory"
        return check(node, x, *rest)

    return refused


def _one_index(node: Node, x: Any, indices: Any) -> str | None:
    """Accepts one integer tensor among slices; several tensors are a gather of points."""
    given = [meta_of(index) for index in indices if index is not None]
    if len(given) != 1 or not isinstance(given[0], torch.Tensor):
        return "several index tensors"
    if given[0].dtype not in (torch.int64, torch.int32):
        return f"an index of {given[0].dtype}"
    return some_result(node)


def _whole_index(node: Node, x: Any, *rest: Any) -> str | None:
    index = next(r for r in rest if isinstance(meta_of(r), torch.Tensor))
    if meta_of(index).dtype not in (torch.int64, torch.int32):
        return f"an index of {meta_of(index).dtype}"
    return "a tensor of rank 0" if not meta_of(x).dim() else some_result(node)


def _read(build: Build, check: Any = some_result) -> Translation:
    return Translation(build, "read", check, keeps_values=True)


TRANSLATIONS: Table = {
    aten.slice.Tensor: _read(_slice, _numeric_step),
    aten.select.int: _read(_select),
    aten.cat.default: _read(_cat, _few_parts),
    aten.constant_pad_nd.default: Translation(_pad, "read", some_result),
    aten.slice_scatter.default: _read(_slice_scatter, _scattered(_numeric_step)),
    aten.select_scatter.default: _read(_select_scatter, _scattered(some_result)),
    aten.gather.default: _read(_gather, _whole_index),
    aten.index_select.default: _read(_index_select, _whole_index),
    aten.embedding.default: _read(_embedding, _whole_index),
    aten.index.Tensor: _read(_index, _one_index),
    aten._unsafe_index.Tensor: _read(_index, _one_index),
}
