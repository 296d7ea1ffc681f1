"""Scatter builders: operations that write, or add, values where an index tensor says.

Each makes one `ScatterOp`.  If several values go to one element, they do so in the order of the
values: without a reduction, the last one stays.  An index that is out of range raises torch's error
when the fusion runs; as in torch, a negative index counts from the end for `index_put` and is out
of range for all others.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..dtypes import COMPLEX, DataType
from ..errors import DefinitionError, expected
from ..ir.exprs import FullOp, ScatterOp
from ..ir.fusion import Fusion
from ..ir.scalars import ONE, ZERO, Integer, IntExpr
from ..ir.vals import Scalar, TensorView, Val
from .library_builders import library_dim
from .pointwise import (
    Argument,
    as_index,
    as_tensor,
    as_val,
    cast,
    constant,
    new_tensor,
    pointwise,
    require_equal,
)
from .read_builders import slice_window, sliced
from .shape_builders import broadcast, new_axis, squeeze

HOW = ("set", "sum", "prod", "max", "min")


def scatter(
    fusion: Fusion,
    arg: Val,
    index: Val,
    src: Argument,
    dim: int,
    how: str = "set",
    op: str = "scatter",
) -> TensorView:
    """`arg` with arg[index[i][j]][j] = src[i][j] for dim 0; `src` may be a number.

    The index may be shorter than `arg` along the other dimensions. It is as long as `src`, or, if
    both sizes are known, shorter.
    """
    tensor, positions = as_tensor(fusion, arg, op), as_index(fusion, op, index)
    source = as_val(fusion, src, op)
    dim = library_dim(op, dim, tensor)
    _check_shorter(op, positions, tensor, dim)
    if isinstance(source, TensorView):
        _check_shorter(op, positions, source, None)
        _check_dtype(op, tensor, source)
        source = _shortened(fusion, source, positions)
    if not tensor.ndim:
        flags = [True]
        tensor, positions = (broadcast(fusion, each, flags) for each in (tensor, positions))
        if isinstance(source, TensorView):
            source = broadcast(fusion, source, flags)
        made = scatter(fusion, tensor, positions, source, 0, how, op)
        return squeeze(fusion, made, [0])
    sizes = [axis.size for axis in positions.axes]
    base_axes = tuple(None if d == dim else d for d in range(tensor.ndim))
    index_axes = tuple(range(tensor.ndim))
    return _scattered(fusion, tensor, positions, source, sizes, base_axes, index_axes, how, op)


def index_put(
    fusion: Fusion,
    arg: Val,
    index: Val,
    src: Argument,
    dim: int,
    how: str = "set",
    op: str = "index_put",
) -> TensorView:
    """`arg` with arg[:, index] = src for dim 1, with an index of any rank.

    `src` has the shape that arg[:, index] has, or broadcasts to it.
    """
    tensor, positions = as_tensor(fusion, arg, op), as_index(fusion, op, index)
    source = as_val(fusion, src, op)
    dim = library_dim(op, dim, tensor)
    if not positions.ndim:
        positions = broadcast(fusion, positions, [True])
        if isinstance(source, TensorView) and source.ndim == tensor.ndim - 1:
            flags = [d == dim for d in range(tensor.ndim)]
            source = broadcast(fusion, source, flags)
    rank = positions.ndim
    outer, inner = tensor.axes[:dim], tensor.axes[dim + 1 :]
    sizes = [axis.size for axis in (*outer, *positions.axes, *inner)]
    if isinstance(source, TensorView):
        _check_dtype(op, tensor, source)
        if source.ndim > len(sizes):
            raise DefinitionError(expected(op, f"a src of rank {len(sizes)}", source.ndim))
        flags = [d < len(sizes) - source.ndim for d in range(len(sizes))]
        if any(flags):
            source = broadcast(fusion, source, flags)
    base_axes: list[int | None] = [d if d < dim else d + rank - 1 for d in range(tensor.ndim)]
    base_axes[dim] = None
    index_axes = tuple(range(dim, dim + rank))
    return _scattered(
        fusion, tensor, positions, source, sizes, tuple(base_axes), index_axes, how, op
    )


def _scattered(
    fusion: Fusion,
    tensor: TensorView,
    positions: TensorView,
    source: Val,
    sizes: Sequence[IntExpr],
    base_axes: tuple[int | None, ...],
    index_axes: tuple[int, ...],
    how: str,
    op: str,
) -> TensorView:
    if how not in HOW:
        raise DefinitionError(expected(op, f"one of {', '.join(HOW)}", repr(how)))
    if how != "set" and tensor.dtype in (*COMPLEX, DataType.Bool):
        raise DefinitionError(expected(op, "real numbers to combine", tensor.dtype))
    value = _materialised(fusion, source, sizes, tensor.dtype, op)
    axes = [new_axis(fusion, axis.size) for axis in tensor.axes]
    output = new_tensor(fusion, axes, tensor.dtype)
    inputs = (tensor, positions, value)
    fusion.add_expr(ScatterOp(inputs, (output,), base_axes, index_axes, how, op))
    return output


def _materialised(
    fusion: Fusion, source: Val, sizes: Sequence[IntExpr], dtype: DataType, op: str
) -> TensorView:
    """The values with an element for each write: neither a scalar nor expanded."""
    if isinstance(source, Scalar):
        return _filled(fusion, cast(fusion, source, dtype), sizes, dtype)
    assert isinstance(source, TensorView)
    for axis, size in zip(source.axes, sizes, strict=True):
        if axis.size is not ONE:
            require_equal(fusion, op, axis.size, size)
    pairs = zip(source.axes, sizes, strict=True)
    if not any(axis.is_broadcast and size is not ONE for axis, size in pairs):
        return source
    everywhere = _filled(fusion, constant(fusion, True, DataType.Bool), sizes, DataType.Bool)
    made = pointwise(fusion, "where", everywhere, source, source)
    assert isinstance(made, TensorView)
    return made


def _filled(fusion: Fusion, value: Val, sizes: Sequence[IntExpr], dtype: DataType) -> TensorView:
    output = new_tensor(fusion, [new_axis(fusion, size) for size in sizes], dtype)
    fusion.add_expr(FullOp((value,), (output,)))
    return output


def _check_dtype(op: str, tensor: TensorView, source: TensorView) -> None:
    if source.dtype is not tensor.dtype:
        raise DefinitionError(expected(op, f"a src of {tensor.dtype}", source.dtype))


def _shortened(fusion: Fusion, source: TensorView, index: TensorView) -> TensorView:
    """The part of the source that the index addresses."""
    windows = [
        slice_window(ZERO, own.size, 1, other.size)
        if isinstance(own.size, Integer) and isinstance(other.size, Integer)
        else None
        for own, other in zip(index.axes, source.axes, strict=True)
    ]
    return sliced(fusion, source, tuple(windows)) if any(windows) else source


def _check_shorter(op: str, index: TensorView, other: TensorView, dim: int | None) -> None:
    """An index has the rank of the other tensor, and is no longer except along `dim`."""
    if index.ndim != other.ndim:
        raise DefinitionError(expected(op, f"an index of rank {other.ndim}", index.ndim))
    for d, (a, b) in enumerate(zip(index.axes, other.axes, strict=True)):
        match a.size, b.size:
            case Integer(value=own), Integer(value=most) if d != dim and own > most:
                what = f"an index of at most {most} in dimension {d}"
                raise DefinitionError(expected(op, what, own))
