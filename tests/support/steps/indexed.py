"""Steps that read or write where an index tensor says."""

from __future__ import annotations

from typing import Any

from pyfuser import DataType
from pyfuser.dtypes import FLOAT8
from pyfuser.ops.scatter_builders import HOW
from tests.support.random_tensors import Shape
from tests.support.steps.made import RandomFusion, Value
from tests.support.steps.pointwise import WIDE, Step


def _full(value: Value) -> bool:
    return value.rank > 0 and 0 not in value.shape


def _shape(made: RandomFusion, most: int) -> Shape:
    """A shape of an index of at most this rank."""
    return tuple(made.number(1, 6) for _ in range(made.number(0, most)))


def _source(made: RandomFusion) -> tuple[Value, int] | None:
    value = made.value(_full)
    return None if value is None else (value, made.number(0, value.rank - 1))


def take(made: RandomFusion, name: str) -> None:
    """The slices of a dimension at an index: index, index_select, select."""
    found = _source(made)
    if found is None:
        return
    value, dim = found
    size = value.shape[dim]
    if name == "select" and made.flag():
        last = made.number(-size, size - 1)
        made.add(made.ops.select(value.tensor, last if last < 0 else made.scalar(last), dim))
        return
    rank = {"index": max(4 - value.rank, 0), "index_select": 1}.get(name, 0)
    index = made.positions(_shape(made, min(rank, 2)), size, name == "index")
    if index is not None:
        made.add(getattr(made.ops, name)(value.tensor, index.tensor, dim))


def _along(made: RandomFusion, value: Value, dim: int) -> Value | None:
    """An index of a value's rank, as long as it, or shorter, except along a dimension."""
    sizes = [made.number(1, n) if made.flag(4) else n for n in value.shape]
    sizes[dim] = made.number(1, 6)
    return made.positions(tuple(sizes), value.shape[dim])


def gather(made: RandomFusion, name: str) -> None:
    """The elements of a dimension at an index of the same rank."""
    found = _source(made)
    if found is None:
        return
    value, dim = found
    if name == "take_along_axis":
        shape = list(value.shape)
        shape[dim] = made.number(1, 6)
        shape = [1 if d != dim and made.flag(3) else n for d, n in enumerate(shape)]
        index = made.positions(tuple(shape), value.shape[dim])
    else:
        index = _along(made, value, dim)
    if index is not None:
        made.add(getattr(made.ops, name)(value.tensor, index.tensor, dim))


def embedding(made: RandomFusion, name: str) -> None:
    """The rows of a table, perhaps with a largest norm."""
    table = made.value(lambda v: v.rank == 2 and 0 not in v.shape and v.dtype in WIDE)
    table = table or made.random_input((made.number(1, 9), made.number(1, 9)), DataType.Float)
    index = made.positions(_shape(made, 2), table.shape[0])
    if index is not None:
        most = made.one_of((None, None, 1.5, 4.0))
        kind = made.one_of((2.0, 1.0, float("inf"))) if most else None
        made.add(made.ops.embedding_fwd(index.tensor, table.tensor, None, most, kind))


def _how(made: RandomFusion, value: Value) -> str:
    """How elements are combined: some dtypes have no arithmetic."""
    is_plain = value.dtype not in (DataType.Bool, *FLOAT8)
    return made.one_of(HOW) if is_plain else "set"


def _like(made: RandomFusion, dtype: DataType, shape: Shape) -> Value:
    """A value of this dtype and shape: a computed one, or an input."""
    found = made.value(lambda v: v.dtype is dtype and v.shape == shape)
    return found or made.random_input(shape, dtype)


def scatter(made: RandomFusion, name: str) -> None:
    """Elements written, or combined, along a dimension."""
    found = _source(made)
    if found is None or found[0].dtype is DataType.Index:
        return
    value, dim = found
    index = _along(made, value, dim)
    if index is None:
        return
    source: Any = made.scalar(1) if value.dtype is not DataType.Bool else True
    if made.number(0, 3):
        source = _like(made, value.dtype, index.shape).tensor
    made.add(made.ops.scatter(value.tensor, index.tensor, source, dim, _how(made, value)))


def index_put(made: RandomFusion, name: str) -> None:
    """Slices written, or combined, along a dimension."""
    found = _source(made)
    if found is None or found[0].dtype is DataType.Index:
        return
    value, dim = found
    index = made.positions((made.number(1, 6),), value.shape[dim], True)
    if index is None:
        return
    shape = (*value.shape[:dim], *index.shape, *value.shape[dim + 1 :])
    source = _like(made, value.dtype, shape[made.number(0, 1) :])
    if source.rank < value.rank and source.shape != shape[value.rank - source.rank :]:
        return
    made.add(made.ops.index_put(value.tensor, index.tensor, source.tensor, dim, _how(made, value)))


def points(made: RandomFusion, name: str) -> None:
    """Elements, or rows, at points of two dimensions, read or written."""
    value = made.value(lambda v: v.rank > 1 and 0 not in v.shape and v.dtype is not DataType.Index)
    if value is None:
        return
    dims, count = made.order(value.rank)[:2], made.number(1, 6)
    indices = [made.positions((count,), value.shape[d], True) for d in dims]
    places = [index.tensor for index in indices if index is not None]
    rows = made.ops.index(value.tensor, places, dims)
    if made.flag():
        made.add(rows)
    else:
        reverse = places[::-1] if value.shape[dims[0]] == value.shape[dims[1]] else places
        made.add(made.ops.index_put(value.tensor, reverse, rows, dims, _how(made, value)))


def read_backwards(made: RandomFusion, name: str) -> None:
    """A dimension in reverse, by a computed index."""
    found = _source(made)
    if found is None:
        return
    value, dim = found
    count = made.size(value, dim)
    backwards = made.ops.sub(value.shape[dim] - 1, made.ops.iota(count))
    made.add(made.ops.index_select(value.tensor, backwards, dim))


STEPS: dict[str, Step] = {
    "embedding_fwd": embedding,
    "gather": gather,
    "index": take,
    "index_put": index_put,
    "index_select": take,
    "scatter": scatter,
    "select": take,
    "take_along_axis": gather,
}
COMPOSITES: dict[str, Step] = {"points": points, "read backwards": read_backwards}
