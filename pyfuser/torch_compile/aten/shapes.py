"""Shapes and dtypes: views, copies, conversions, filled tensors, ranges and triangular masks.

A view that only moves, adds, drops or expands axes is an expression that moves no data.  A reshape
of real axes is refused, for what is stored may be seen in any shape; but one that splits the axes
of what is rolled, flipped or joined, which is then often permuted and copied, saves storing it.  A
copy is the value itself: a value that needs its own tensor gets one
where it leaves the fusion.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch.fx import Node

from ...dtypes import DataType, from_torch, is_integer
from ...ir.vals import TensorView
from ...ops.reshape_builders import reshape
from ...ops.shape_builders import broadcast, expand, iota, permute, shape, squeeze
from ..views import bytes_of, elements_of, is_view
from .region_builder import Call, meta_of
from .sizes import is_one, size_key
from .term import Term
from .translation import Build, Table, Translation
from .widening import is_half

aten, prims = torch.ops.aten, torch.ops.prims

# Elements of a repeat that are read one by one in less time than torch's call takes.
_MOST_REPEATED = 1 << 14
# Bytes computed from each element of a repeat, a row's weight, that take longer than reading it.
_BYTES_OF_A_ROW = 64

# What kernels read at computed positions anyway.
_REARRANGED = (
    aten.roll.default,
    aten.flip.default,
    aten.cat.default,
    aten.constant_pad_nd.default,
    aten.slice.Tensor,
)


# -- views


def _permute(call: Call, x: Any, dims: Any) -> TensorView:
    return permute(call.fusion, call.tensor(x), list(dims))


def _transpose(call: Call, x: Any, first: int, second: int) -> TensorView:
    tensor = call.tensor(x)
    if not tensor.ndim:
        return tensor
    order = list(range(tensor.ndim))
    order[first], order[second] = order[second], order[first]
    return permute(call.fusion, tensor, order)


def _t(call: Call, x: Any) -> TensorView:
    tensor = call.tensor(x)
    return tensor if tensor.ndim < 2 else permute(call.fusion, tensor, [1, 0])


def _unsqueeze(call: Call, x: Any, dim: int) -> TensorView:
    tensor = call.tensor(x)
    at = dim % (tensor.ndim + 1)
    return broadcast(call.fusion, tensor, [i == at for i in range(tensor.ndim + 1)])


def _squeeze(call: Call, x: Any, dims: Any = None) -> TensorView:
    tensor = call.tensor(x)
    chosen = range(tensor.ndim) if dims is None else [dims] if isinstance(dims, int) else dims
    sizes = call.sizes_of(x)
    ones = [dim for dim in chosen if tensor.ndim and is_one(sizes[dim])]
    return squeeze(call.fusion, tensor, ones) if ones else tensor


def _expand(call: Call, x: Any, sizes: Any, implicit: bool = False) -> TensorView:
    return _expanded(call, call.tensor(x), call.sizes_of(x), call.meta.shape)


def _expanded(call: Call, tensor: TensorView, old: Any, new: Any) -> TensorView:
    """Axes of size 1 get the new sizes; the others keep theirs."""
    added = len(new) - len(old)
    entries: list[Any] = []
    for dim, size in enumerate(new):
        is_real = dim >= added and not is_one(old[dim - added])
        entries.append(-1 if is_real else call.builder.sizes.entry(size))
    if all(entry == -1 or is_one(size) for entry, size in zip(entries, new, strict=True)):
        return (
            tensor
            if not added
            else broadcast(call.fusion, tensor, [d < added for d in range(len(new))])
        )
    return expand(call.fusion, tensor, entries)


def _view(call: Call, x: Any, sizes: Any) -> TensorView:
    """Drops axes of size 1, splits others, then inserts axes where the new shape has them."""
    tensor, old, new = call.tensor(x), call.sizes_of(x), list(call.meta.shape)
    if [size_key(size) for size in old] == [size_key(size) for size in new]:
        return tensor
    fusion, ones = call.fusion, [dim for dim, size in enumerate(old) if is_one(size)]
    flat = squeeze(fusion, tensor, ones) if ones else tensor
    for dim, parts in reversed([*enumerate(_parts(old, new) or ())]):
        if len(parts) > 1:
            known = shape(fusion, flat)
            flat = reshape(fusion, flat, [*known[:dim], *parts, *known[dim + 1 :]])
    flags = [is_one(size) for size in new]
    return broadcast(fusion, flat, flags) if any(flags) else flat


def _parts(old: Sequence[Any], new: Sequence[Any]) -> list[list[Any]] | None:
    """The new sizes that each of the old ones is split into, all without those of 1.

    None if axes are merged, or sizes that are split aren't numbers.
    """
    left, found = [size_key(size) for size in new if not is_one(size)], []
    for key in (size_key(size) for size in old if not is_one(size)):
        counts = range(1, len(left) + 1)
        count = next((n for n in counts if _are_together(left[:n], key)), None)
        if count is None:
            return None
        found.append(left[:count])
        left = left[count:]
    return None if left else found


def _are_together(parts: list[Any], size: Any) -> bool:
    return parts == [size] or (all(isinstance(n, int) for n in parts) and prod(parts) == size)


def _view_refusal(node: Node, x: Any, *rest: Any) -> str | None:
    """A reshape is a view of what is stored; it splits what a kernel can read anywhere."""
    old, new = meta_of(x), meta_of(node)
    if old.dtype is not new.dtype:
        return "a view of another dtype"
    kept = [[size_key(s) for s in shape if not is_one(s)] for shape in (old.shape, new.shape)]
    if kept[0] == kept[1]:
        return None
    is_rearranged = isinstance(x, Node) and x.target in _REARRANGED
    if is_rearranged and not is_empty(old) and _parts(old.shape, new.shape) is not None:
        return None
    return "a reshape of real axes"


def _repeat(call: Call, x: Any, repeats: Any) -> TensorView:
    """An axis that is repeated gets one before it, which is expanded and then merged with it."""
    tensor, fusion = call.tensor(x), call.fusion
    added = len(repeats) - tensor.ndim
    if added:
        tensor = broadcast(fusion, tensor, [dim < added for dim in range(len(repeats))])
    old = [1] * added + list(call.sizes_of(x))
    for dim, count in reversed(list(enumerate(map(meta_of, repeats)))):
        if is_one(count):
            continue
        is_merged = not is_one(old[dim])
        if is_merged:
            tensor = broadcast(fusion, tensor, [at == dim for at in range(tensor.ndim + 1)])
        entries: list[Any] = [-1] * tensor.ndim
        entries[dim] = call.builder.sizes.entry(count)
        tensor = expand(fusion, tensor, entries)
        if is_merged:
            sizes = shape(fusion, tensor)
            tensor = reshape(fusion, tensor, [*sizes[:dim], -1, *sizes[dim + 2 :]])
    return tensor


def _repeats_outside(node: Node, x: Any, repeats: Any) -> str | None:
    """Refuses what torch copies row by row, and a kernel would read element by element."""
    if is_empty(meta_of(node)):
        return "a repeated tensor without elements"
    kept = [dim for dim, size in enumerate(meta_of(x).shape) if not is_one(size)]
    counts = list(repeats)[len(repeats) - meta_of(x).dim() :]
    is_inside = bool(kept) and not is_one(meta_of(counts[kept[-1]]))
    is_of_rows = bool(node.users) and all(
        bytes_of(user) >= _BYTES_OF_A_ROW * elements_of(node) and not _runs_along(node, user)
        for user in node.users
    )
    is_large = _most_read(node) > _MOST_REPEATED
    is_outside = is_large and not is_of_rows or _is_kept_rounded(x)
    return "a repeat of elements" if is_inside and is_outside else None


def _is_kept_rounded(node: Node) -> bool:
    """True for half precision that the graph computes and returns (see rounded_values.py).

    A kernel would read what it stores, at the places of other elements.
    """
    is_computed = node.op == "call_function" and is_half(meta_of(node))
    return is_computed and any(user.op == "output" for user in node.users)


def _runs_along(node: Node, user: Node) -> bool:
    """True if a result has the last axis of what it is computed from."""
    own, value = meta_of(node), user.meta.get("val")
    if not isinstance(value, torch.Tensor) or not (own.dim() and value.dim()):
        return False
    return not is_one(own.shape[-1]) and size_key(own.shape[-1]) == size_key(value.shape[-1])


def _most_read(node: Node) -> int:
    """The most elements of the tensor, or of what reads it, or views of it, one by one."""
    found = elements_of(node)
    for user in node.users:
        if is_view(user):
            found = max(found, _most_read(user))
        elif _runs_along(node, user):
            found = max(found, elements_of(user))
    return found


# -- copies and conversions


def _same(call: Call, x: Any, *rest: Any) -> TensorView:
    return call.tensor(x)


def _converted(call: Call, x: Any, *rest: Any) -> TensorView:
    """Converts a value, rounded to its source dtype as in eager.

    A program that converts half precision to measure its rounding, or to compare, relies on this.
    """
    source, target = from_torch(meta_of(x).dtype), from_torch(call.meta.dtype)
    if source is target:
        return call.tensor(x)
    if target is DataType.Bool:
        return call.exact(x).differs(0).tensor
    return call.builder.cast(call.exact(x).tensor, target)


def _same_device(node: Node, x: Any, *rest: Any) -> str | None:
    source, target = meta_of(x), meta_of(node)
    if source.device != target.device:
        return "a copy to another device"
    if node.kwargs.get("pin_memory"):
        return "pinned memory"
    return None


def _copied(call: Call, x: Any, source: Any, *rest: Any) -> TensorView | Term:
    """The source, a tensor or a number, in the shape and the dtype of x."""
    if not isinstance(meta_of(source), torch.Tensor):
        return call.filled(call.meta.shape, source, call.meta.dtype)
    made = _converted(call, source)
    return _expanded(call, made, call.sizes_of(source), call.meta.shape)


# -- tensors without operands


def _filled_like(value: float | None) -> Build:
    """full, zeros, ones and similar ops: the metadata has the shape."""

    def build(call: Call, *given: Any) -> Term:
        fill: Any = value
        if value is None:
            names = [argument.name for argument in _schema(call.node)]
            place = next(names.index(n) for n in ("fill_value", "s", "value") if n in names)
            fill = given[place]
        return call.filled(call.meta.shape, fill, call.meta.dtype)

    return build


def _schema(node: Node) -> Any:
    return node.target._schema.arguments  # type: ignore[union-attr]


def _range(call: Call, start: Any, step: Any) -> TensorView:
    """start + step * i; floating ranges are computed in Double and rounded once."""
    target = call.dtype
    length = call.builder.sizes.entry(call.meta.shape[0])
    whole = all(isinstance(meta_of(v), (bool, int, torch.SymInt)) for v in (start, step))
    kind = DataType.Int if whole else DataType.Double
    if is_integer(target):
        kind = DataType.Int
    first, by = call.number(start, kind).value, call.number(step, kind).value
    counted = iota(call.fusion, length, first, by, kind)
    return call.builder.cast(counted, target)


def _arange(call: Call, *given: Any) -> TensorView:
    names = [argument.name for argument in _schema(call.node)]
    by_name = dict(zip(names, given, strict=True))
    return _range(call, by_name.get("start", 0), by_name.get("step", 1))


def _iota(call: Call, length: Any, start: Any, step: Any, *rest: Any) -> TensorView:
    return _range(call, start, step)


def _whole_steps(node: Node, *given: Any) -> str | None:
    """Refuses an integer range of fractions, which eager truncates step by step."""
    values = [meta_of(v) for v in (*node.args, *node.kwargs.values())]
    if any(isinstance(v, torch.SymFloat) for v in values):
        return "a symbolic fraction"
    fraction = any(isinstance(v, float) for v in values)
    if fraction and not meta_of(node).dtype.is_floating_point:
        return "an integer range with fractional arguments"
    return "an empty range" if is_empty(meta_of(node)) else None


def is_empty(meta: Any) -> bool:
    """True for a tensor that has no elements for any inputs."""
    return any(isinstance(size, int) and size == 0 for size in meta.shape)


def index_along(call: Call, shape: Any, dim: int) -> Term:
    """The index along `dim`, with the rank of `shape` and size 1 elsewhere."""
    counted = iota(call.fusion, call.builder.sizes.entry(shape[dim]))
    return call.term(counted).with_new_axes([d != dim % len(shape) for d in range(len(shape))])


def _triangle(is_lower: bool) -> Build:
    def build(call: Call, x: Any, diagonal: Any = 0) -> Term:
        shape = call.meta.shape
        rank = len(shape)
        distance = index_along(call, shape, rank - 1) - index_along(call, shape, rank - 2)
        bound = call.number(diagonal, DataType.Int)
        keep = distance <= bound if is_lower else distance >= bound
        term = call.held(x)
        return keep.choose(term, call.constant(0, term.dtype))

    return build


def one_index_a_row(node: Node, x: Any, dim: int, index: Any, value: Any) -> str | None:
    """Why a scatter along `dim` has not exactly one index for each row; None if it has."""
    source, places = meta_of(x), meta_of(index)
    if places.dim() != source.dim() or not source.dim():
        return "an index of another rank"
    for axis in range(source.dim()):
        size, count = source.shape[axis], places.shape[axis]
        along = axis == dim % source.dim()
        if not (is_one(count) if along else size_key(size) == size_key(count)):
            return "an index of more than one element per row, or of only some rows"
    return None


def _view_row(build: Build, check: Any = None) -> Translation:
    return Translation(build, "view", check, keeps_values=True)


def _factories() -> Table:
    table: Table = {}
    for value, names in (
        (0, ("zeros", "zeros_like", "new_zeros")),
        (1, ("ones", "ones_like", "new_ones")),
    ):
        for name in names:
            table[getattr(aten, name).default] = Translation(_filled_like(value))
    for name in ("full", "full_like", "new_full", "scalar_tensor"):
        table[getattr(aten, name).default] = Translation(_filled_like(None))
    for overload in (aten.arange.default, aten.arange.start, aten.arange.start_step):
        table[overload] = Translation(_arange, check=_whole_steps)
    table[prims.iota.default] = Translation(_iota, check=_whole_steps)
    return table


TRANSLATIONS: Table = {
    **_factories(),
    aten.permute.default: _view_row(_permute),
    aten.transpose.int: _view_row(_transpose),
    aten.t.default: _view_row(_t),
    aten.unsqueeze.default: _view_row(_unsqueeze),
    aten.squeeze.default: _view_row(_squeeze),
    aten.squeeze.dim: _view_row(_squeeze),
    aten.squeeze.dims: _view_row(_squeeze),
    aten.expand.default: _view_row(_expand),
    aten.repeat.default: Translation(_repeat, "read", _repeats_outside, keeps_values=True),
    aten.view.default: _view_row(_view, _view_refusal),
    aten.reshape.default: _view_row(_view, _view_refusal),
    aten._unsafe_view.default: _view_row(_view, _view_refusal),
    aten.alias.default: _view_row(_same),
    aten.detach.default: _view_row(_same),
    aten.lift_fresh.default: _view_row(_same),
    aten.lift_fresh_copy.default: Translation(_same, keeps_values=True),
    aten.clone.default: Translation(_same, keeps_values=True),
    aten.contiguous.default: Translation(_same, keeps_values=True),
    aten._to_copy.default: Translation(_converted, check=_same_device, exact=(0,)),
    prims.convert_element_type.default: Translation(_converted, exact=(0,)),
    aten.copy.default: Translation(_copied, check=_same_device, exact=(1,)),
    aten.fill.Scalar: Translation(_filled_like(None)),
    aten.fill.Tensor: Translation(_copied, exact=(1,)),
    aten.zero.default: Translation(_filled_like(0)),
    aten.triu.default: Translation(_triangle(False), keeps_values=True),
    aten.tril.default: Translation(_triangle(True), keeps_values=True),
}  # fmt: skip
