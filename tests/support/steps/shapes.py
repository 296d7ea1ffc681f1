"""Steps that change shapes, or make tensors from sizes."""

from __future__ import annotations

from contextlib import suppress
from math import prod
from typing import Any

from pyfuser import DataType
from pyfuser.dtypes import to_torch
from pyfuser.errors import UnsupportedError
from pyfuser.ir.scalars import ONE
from tests.support.steps.made import RandomFusion, Value
from tests.support.steps.pointwise import CASTS, WHOLE, WIDE, Step

_MOST_RANK = 4


def _sizes(made: RandomFusion, value: Value) -> list[Any]:
    return [made.size(value, d) for d in range(value.rank)]


def broadcast(made: RandomFusion, name: str) -> None:
    """New dimensions of size 1."""
    value = made.value(lambda v: v.rank < _MOST_RANK)
    if value is not None:
        places = made.some_of(value.rank + 1)[: _MOST_RANK - value.rank]
        rank = value.rank + len(places)
        made.add(made.ops.broadcast(value.tensor, [d in places for d in range(rank)]))


def _single(value: Value) -> list[int]:
    """The dimensions that are known to have size 1."""
    return [d for d, axis in enumerate(value.tensor.axes) if axis.size is ONE]


def expand(made: RandomFusion, name: str) -> None:
    """Dimensions of size 1 repeated, or a new one in front."""
    value = made.value(lambda v: bool(_single(v))) or made.value(lambda v: v.rank < _MOST_RANK)
    if value is None:
        return
    wider = [made.number(2, 5) if d in _single(value) else -1 for d in range(value.rank)]
    if not _single(value) or (value.rank < _MOST_RANK and made.flag()):
        wider = [made.number(1, 3), *wider]
    made.add(made.ops.expand(value.tensor, wider))


def broadcast_in_dim(made: RandomFusion, name: str) -> None:
    """Dimensions of a larger shape."""
    value = made.value(lambda v: v.rank < _MOST_RANK)
    if value is None:
        return
    place = made.number(0, value.rank)
    shape = _sizes(made, value)
    shape.insert(place, made.number(1, 4))
    dims = [d for d in range(value.rank + 1) if d != place]
    made.add(made.ops.broadcast_in_dim(value.tensor, shape, dims))


def squeeze(made: RandomFusion, name: str) -> None:
    """Dimensions of size 1 dropped."""
    value = made.value(lambda v: bool(_single(v)))
    if value is None:
        other = made.value(lambda v: v.rank > 0)
        if other is None:
            return
        value = (made.add(made.ops.sum(other.tensor, [0], True)) or [other])[0]
    single = _single(value)
    if single:
        made.add(made.ops.squeeze(value.tensor, [single[i] for i in made.some_of(len(single))]))


def permute(made: RandomFusion, name: str) -> None:
    """The dimensions in another order."""
    value = made.value(lambda v: v.rank > 1)
    if value is not None:
        made.add(made.ops.permute(value.tensor, made.order(value.rank)))


def stride_order(made: RandomFusion, name: str) -> None:
    """A copy in another order of memory."""
    value = made.value(lambda v: v.rank > 1)
    if value is not None:
        made.add(made.ops.stride_order(value.tensor, made.order(value.rank)))


def reshape(made: RandomFusion, name: str) -> None:
    """Neighbouring dimensions merged, or one split; the others by name or as numbers."""
    value = made.value(lambda v: v.rank > 0 and 0 not in v.shape)
    if value is None:
        return
    shape, sizes = value.shape, _sizes(made, value)
    dim, is_constant = made.number(0, value.rank - 1), made.flag()
    if is_constant:
        sizes = list(shape)
    factors = [n for n in range(2, shape[dim] + 1) if shape[dim] % n == 0]
    if factors and value.rank < _MOST_RANK and made.flag():
        inner = made.one_of(factors)
        outer = shape[dim] // inner if is_constant else -1
        parts = [outer, inner] if made.flag() else [inner, outer]
        made.add(made.ops.reshape(value.tensor, [*sizes[:dim], *parts, *sizes[dim + 1 :]]))
        return
    stop = made.number(dim, value.rank - 1) + 1
    merged = prod(shape[dim:stop]) if is_constant else -1
    made.add(made.ops.reshape(value.tensor, [*sizes[:dim], merged, *sizes[stop:]]))


def _window(made: RandomFusion, value: Value) -> tuple[list[Any], list[Any], list[int]]:
    """Starts, ends and steps that keep something of each dimension."""
    starts: list[Any] = [0] * value.rank
    ends, steps = _sizes(made, value), [1] * value.rank
    for dim in made.some_of(value.rank):
        start = made.number(0, value.shape[dim] - 1)
        starts[dim] = made.scalar(start)
        ends[dim] = made.scalar(made.number(start + 1, value.shape[dim]))
        steps[dim] = made.number(1, 3)
    return starts, ends, steps


def _full(value: Value) -> bool:
    return value.rank > 0 and 0 not in value.shape


def slice_(made: RandomFusion, name: str) -> None:
    """A part, between numbers or scalars."""
    value = made.value(_full)
    if value is not None:
        made.add(made.ops.slice(value.tensor, *_window(made, value)))


def flip(made: RandomFusion, name: str) -> None:
    """Some dimensions in the opposite order."""
    value = made.value(lambda v: v.rank > 0)
    if value is not None:
        made.add(made.ops.flip(value.tensor, made.some_of(value.rank)))


def slice_scatter(made: RandomFusion, name: str) -> None:
    """A part replaced by the same part of a value of this shape."""
    value = made.value(_full)
    if value is None:
        return
    like = made.value(lambda v: v.shape == value.shape and v.dtype is value.dtype) or value
    dim = made.number(0, value.rank - 1)
    start = made.number(0, value.shape[dim] - 1)
    end, step = made.number(start + 1, value.shape[dim]), made.number(1, 2)
    starts, ends, steps = [0] * value.rank, _sizes(made, like), [1] * value.rank
    starts[dim], ends[dim], steps[dim] = start, end, step
    part = made.ops.slice(like.tensor, starts, ends, steps)
    part = made.ops.neg(part) if made.flag() and value.dtype is not DataType.Bool else part
    if part.dtype is value.dtype:
        made.add(made.ops.slice_scatter(value.tensor, part, dim, start, end, step))


def pad(made: RandomFusion, name: str) -> None:
    """Elements added to, or cut off from, the last dimensions."""
    value = made.value(_full)
    if value is None:
        return
    widths: list[Any] = []
    for d in range(made.number(1, min(value.rank, 2))):
        size = value.shape[-1 - d]
        widths += [made.number(0, 3), made.number(0, 3) - min(size - 1, made.number(0, 2))]
    fill: Any = made.scalar(True if value.dtype is DataType.Bool else made.one_of((0, 1, 2)))
    made.add(made.ops.pad(value.tensor, widths, fill if made.flag() else None))


def cat(made: RandomFusion, name: str) -> None:
    """Two or three values side by side."""
    first = made.value(lambda v: v.rank > 0)
    if first is None:
        return
    dim, parts = made.number(0, first.rank - 1), [first]
    for _ in range(made.number(1, 2)):
        found = made.value(lambda v: _fits_beside(first, v, dim))
        parts.append(found or first)
    with suppress(UnsupportedError):  # torch doesn't promote all dtypes
        made.add(made.ops.cat([part.tensor for part in parts], dim))


def _fits_beside(a: Value, b: Value, dim: int) -> bool:
    return (
        a.rank == b.rank
        and a.shape[:dim] == b.shape[:dim]
        and a.shape[dim + 1 :] == (b.shape[dim + 1 :])
    )


def stack(made: RandomFusion, name: str) -> None:
    """Values of one shape along a new dimension."""
    value = made.value(lambda v: v.rank < _MOST_RANK)
    if value is None:
        return
    other = made.value(lambda v: v.shape == value.shape and v.dtype is value.dtype) or value
    place = made.number(0, value.rank)
    flags = [d == place for d in range(value.rank + 1)]
    parts = [made.ops.broadcast(each.tensor, flags) for each in (value, other)]
    made.add(made.ops.cat(parts, place))


def repeat(made: RandomFusion, name: str) -> None:
    """A dimension repeated as a whole, or each of its elements."""
    value = made.value(lambda v: 0 < v.rank < _MOST_RANK and 0 not in v.shape)
    if value is None:
        return
    dim, count = made.number(0, value.rank - 1), made.number(2, 3)
    place = dim + made.number(0, 1)
    rank = value.rank + 1
    wide = made.ops.broadcast(value.tensor, [d == place for d in range(rank)])
    wide = made.ops.expand(wide, [count if d == place else -1 for d in range(rank)])
    sizes = _sizes(made, value)
    made.add(made.ops.reshape(wide, [*sizes[:dim], -1, *sizes[dim + 1 :]]))


def full(made: RandomFusion, name: str) -> None:
    """A constant in the shape of a value."""
    value, dtype = made.value(), made.one_of(CASTS)
    if value is None:
        return
    number = True if dtype is DataType.Bool else made.one_of((0, 1, 2))
    made.add(made.ops.full(_sizes(made, value), made.scalar(number), dtype))


def iota(made: RandomFusion, name: str) -> None:
    """Numbers in a row, as many as a dimension has, or in its place."""
    value = made.value(lambda v: v.rank > 0)
    if value is None:
        return
    dim, dtype = made.number(0, value.rank - 1), made.one_of((*WHOLE, *WIDE))
    first, step = made.number(0, 3), made.one_of((1, 2, -1))
    last = first + step * value.shape[dim]
    is_signed = to_torch(dtype).is_signed
    if not -100 < last < 100 or (last < 0 and not is_signed):
        return
    along = made.ops.iota(made.size(value, dim), made.scalar(first), step, dtype)
    flags = [d != dim for d in range(value.rank)]
    made.add(made.ops.broadcast(along, flags) if any(flags) and made.flag() else along)


def size(made: RandomFusion, name: str) -> None:
    """A product with the size of a dimension, and with that of all."""
    value = made.value(lambda v: v.rank > 0 and v.is_floating)
    if value is None:
        return
    dim = made.number(0, value.rank - 1)
    if name == "shape":
        count = made.ops.shape(value.tensor)[dim]
    else:
        count = made.ops.size(value.tensor, dim)
    made.add(made.ops.mul(value.tensor, count))


def triu(made: RandomFusion, name: str) -> None:
    """0 below a diagonal, a number or a scalar."""
    value = made.value(lambda v: v.rank > 1)
    if value is not None:
        made.add(made.ops.triu(value.tensor, made.scalar(made.number(-2, 2))))


def tril(made: RandomFusion, name: str) -> None:
    """0 above a diagonal."""
    value = made.value(lambda v: v.rank > 1 and v.dtype is not DataType.Bool)
    if value is None:
        return
    ops, rank = made.ops, value.rank
    row, column = (
        ops.broadcast(ops.iota(made.size(value, d)), [e != d for e in range(rank)])
        for d in (rank - 2, rank - 1)
    )
    made.add(ops.where(ops.le(column, row), value.tensor, 0))


def part_beside_whole(made: RandomFusion, name: str) -> None:
    """A slice of one element along a dimension, next to the whole tensor."""
    value = made.value(lambda v: _full(v) and v.dtype is not DataType.Bool)
    if value is None:
        return
    dim = made.number(0, value.rank - 1)
    first = made.number(0, value.shape[dim] - 1)
    starts, stops = [0] * value.rank, _sizes(made, value)
    starts[dim], stops[dim] = first, first + 1
    made.add(made.ops.maximum(value.tensor, made.ops.slice(value.tensor, starts, stops)))


def both_ways(made: RandomFusion, name: str) -> None:
    """A value along two axes of one result: beside its transpose, or as rows and as columns."""
    value = made.value(lambda v: v.rank > 1 and v.shape[-1] == v.shape[-2] and v.is_floating)
    if value is not None:
        last = [*range(value.rank - 2), value.rank - 1, value.rank - 2]
        one, other = made.ops.permute(value.tensor, last), value.tensor
    else:
        value = made.value(lambda v: v.rank == 1 and v.is_floating)
        if value is None:
            return
        one, other = (
            made.ops.broadcast(value.tensor, flags) for flags in ([True, False], [False, True])
        )
    if made.flag():
        one = made.ops.sin(one)
    made.add(made.ops.add(one, other))


STEPS: dict[str, Step] = {
    "broadcast": broadcast,
    "broadcast_in_dim": broadcast_in_dim,
    "cat": cat,
    "expand": expand,
    "flip": flip,
    "full": full,
    "iota": iota,
    "pad": pad,
    "permute": permute,
    "reshape": reshape,
    "shape": size,
    "size": size,
    "slice": slice_,
    "slice_scatter": slice_scatter,
    "squeeze": squeeze,
    "stride_order": stride_order,
    "triu": triu,
}

COMPOSITES: dict[str, Step] = {
    "both ways": both_ways,
    "part beside whole": part_beside_whole,
    "repeat": repeat,
    "stack": stack,
    "tril": tril,
}
