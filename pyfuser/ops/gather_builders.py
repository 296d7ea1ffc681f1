"""Gather builders: operations that read a tensor at the elements of an index tensor.

Each makes one `GatherOp` (`select` of a number is a window).  An index that is out of range raises
torch's error when the fusion runs; as in torch, a negative index counts from the end for `index`
and is out of range for all others.
"""

from __future__ import annotations

from ..errors import DefinitionError, expected
from ..ir.bounds import larger, smaller
from ..ir.exprs import GatherOp
from ..ir.fusion import Fusion
from ..ir.scalars import ONE, ZERO, Integer, IntExpr
from ..ir.vals import Scalar, TensorView, Val
from ..ir.windows import Window
from .pointwise import (
    as_index,
    as_tensor,
    copy_axis,
    joined_axis,
    new_tensor,
    require_at_most,
    size_of_scalar,
)
from .read_builders import sliced
from .shape_builders import broadcast, new_axis, squeeze, wrapped_dim


def index(fusion: Fusion, operand: Val, index: Val, dim: int) -> TensorView:
    """operand[:, index] for dim 1, with an index of any rank: negatives count from the end."""
    return _take(fusion, operand, index, dim, "index")


def _take(fusion: Fusion, operand: Val, index: Val, dim: int, op: str) -> TensorView:
    """[a, n, b] at index [...] along dimension 1 -> [a, ..., b]; an index of any rank."""
    tensor, positions = as_tensor(fusion, operand, op), as_index(fusion, op, index)
    dim = wrapped_dim(op, dim, tensor.ndim)
    rank = positions.ndim
    inner = [*tensor.axes[:dim], *positions.axes, *tensor.axes[dim + 1 :]]
    source_axes: list[int | None] = [d if d < dim else d + rank - 1 for d in range(tensor.ndim)]
    source_axes[dim] = None
    output = new_tensor(fusion, [copy_axis(fusion, axis) for axis in inner], tensor.dtype)
    index_axes = tuple(range(dim, dim + rank))
    fusion.add_expr(GatherOp((tensor, positions), (output,), tuple(source_axes), index_axes, op))
    return output


def index_select(fusion: Fusion, operand: Val, index: Val, dim: int) -> TensorView:
    """The slices of a dimension selected by the index; an index of rank 0 keeps the dimension."""
    positions = as_index(fusion, "index_select", index)
    if positions.ndim == 0:
        positions = broadcast(fusion, positions, [True])
    return _take(fusion, operand, positions, dim, "index_select")


def select(fusion: Fusion, operand: Val, index: Val | int, dim: int) -> TensorView:
    """One slice of a dimension, without the dimension; a number may be negative."""
    tensor = as_tensor(fusion, operand, "select")
    dim = wrapped_dim("select", dim, tensor.ndim)
    if isinstance(index, TensorView):
        if index.ndim:
            raise DefinitionError(expected("select", "an index of rank 0", index.ndim))
        return _take(fusion, tensor, index, dim, "select")
    extent = tensor.axes[dim].size
    if not isinstance(index, int | Scalar):
        raise DefinitionError(
            expected("select", "an integer or a scalar as the index", repr(index))
        )
    require_inside(fusion, "select", extent, index)
    number = index.constant if isinstance(index, Scalar) else index
    if isinstance(number, int) and number < 0:
        start = larger(extent + Integer.of(number), ZERO)
    else:
        start = smaller(size_of_scalar(fusion, "select", index), larger(extent - 1, ZERO))
    windows: list[Window | None] = [None] * tensor.ndim
    if extent is not ONE:
        windows[dim] = Window(ZERO, ONE, start, ONE)
    return squeeze(fusion, sliced(fusion, tensor, tuple(windows)), [dim])


def require_inside(fusion: Fusion, op: str, extent: IntExpr, index: Scalar | int) -> None:
    """Records that an index is one of a dimension's; DefinitionError if it can't be."""
    number = index.constant if isinstance(index, Scalar) else index
    match number, extent:
        case int(), Integer(value=length):
            if not -length <= number < length:
                what = f"an index in [{-length}, {length - 1}]"
                raise DefinitionError(expected(op, what, number))
            return
        case int(), _:
            needed: IntExpr = Integer.of(number + 1 if number >= 0 else -number)
        case _:
            needed = size_of_scalar(fusion, op, index) + 1
    require_at_most(fusion, op, "an index", needed, extent)


def gather(fusion: Fusion, operand: Val, index: Val, dim: int) -> TensorView:
    """out[i][j] = operand[index[i][j]][j] for dim 0: of the index's shape.

    Along the other dimensions the index may be shorter than the operand.  The result isn't expanded
    where the index is: each element comes from a different position.
    """
    tensor, positions = as_tensor(fusion, operand, "gather"), as_index(fusion, "gather", index)
    dim = _aligned_dim("gather", tensor, positions, dim)
    for d, (a, b) in enumerate(zip(tensor.axes, positions.axes, strict=True)):
        if d != dim and a.size is not ONE:  # one element is read at all positions
            where = f" in dimension {d}"
            require_at_most(fusion, "gather", "an index", b.size, a.size, where)
    axes = [
        copy_axis(fusion, b) if d == dim or a.is_broadcast else new_axis(fusion, b.size)
        for d, (a, b) in enumerate(zip(tensor.axes, positions.axes, strict=True))
    ]
    output = new_tensor(fusion, axes, tensor.dtype)
    _add(fusion, tensor, positions, output, dim, "gather")
    return output


def take_along_axis(fusion: Fusion, operand: Val, index: Val, dim: int) -> TensorView:
    """`gather` whose operands broadcast along the other dimensions."""
    op = "take_along_axis"
    tensor, positions = as_tensor(fusion, operand, op), as_index(fusion, op, index)
    dim = _aligned_dim(op, tensor, positions, dim)
    axes = [
        copy_axis(fusion, b) if d == dim else joined_axis(fusion, op, (a, b))
        for d, (a, b) in enumerate(zip(tensor.axes, positions.axes, strict=True))
    ]
    output = new_tensor(fusion, axes, tensor.dtype)
    _add(fusion, tensor, positions, output, dim, op)
    return output


def _aligned_dim(op: str, tensor: TensorView, index: TensorView, dim: int) -> int:
    if index.ndim != tensor.ndim:
        raise DefinitionError(expected(op, f"an index of rank {tensor.ndim}", index.ndim))
    return wrapped_dim(op, dim, tensor.ndim)


def _add(
    fusion: Fusion, tensor: TensorView, index: TensorView, output: TensorView, dim: int, op: str
) -> None:
    source_axes = tuple(None if d == dim else d for d in range(tensor.ndim))
    index_axes = tuple(range(tensor.ndim))
    fusion.add_expr(GatherOp((tensor, index), (output,), source_axes, index_axes, op))


def embedding_rows(fusion: Fusion, operand: Val, weight: Val) -> TensorView:
    """The rows of a weight selected by the operand, an index of any rank."""
    rank = as_tensor(fusion, weight, "embedding_fwd").ndim
    if rank != 2:
        raise DefinitionError(expected("embedding_fwd", "a weight of rank 2", f"rank {rank}"))
    return _take(fusion, weight, operand, 0, "embedding_fwd")
