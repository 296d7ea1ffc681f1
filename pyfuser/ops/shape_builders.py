"""Shape builders: broadcast, expand, permute, squeeze, full, iota and size queries.

Each adds at most one expression per change of shape, and a `set` if nothing changes.  An axis whose
size is declared to be 1 is a broadcast axis; an expanded axis keeps one element in memory and gets
`expanded_extent`.  Reshape is in `reshape_builders`.
"""

from __future__ import annotations

import cmath
from collections.abc import Sequence

from ..dtypes import DataType, fits, is_floating, is_integer
from ..errors import ArgumentTypeError, DefinitionError, expected
from ..ir.domains import IterDomain, IterType, TensorDomain
from ..ir.exprs import (
    BroadcastOp,
    ExpandOp,
    FullOp,
    IotaOp,
    PermuteOp,
    PointwiseOp,
    SqueezeOp,
)
from ..ir.fusion import Fusion, broadcast_contiguity
from ..ir.scalars import ONE, Integer, IntExpr
from ..ir.vals import PythonNumber, Scalar, TensorView, Val
from .pointwise import (
    as_tensor,
    as_val,
    copy,
    copy_axis,
    new_tensor,
    prepend_axes,
    real_scalar,
    require_equal,
    size_of_scalar,
)
from .single_elements import as_single, may_be_single

SizeEntry = int | Scalar
Shape = Sequence[SizeEntry]


def wrapped_dim(op: str, dim: int, rank: int, hint: str = "") -> int:
    """A possibly negative dimension as an index; DefinitionError outside [-rank, rank)."""
    if not isinstance(dim, int):
        operation = f"{op}(): incompatible function arguments"
        raise ArgumentTypeError(expected(operation, "an integer as dimension", repr(dim)))
    if not rank:
        raise DefinitionError(expected(op, "a tensor with dimensions", "one of rank 0", hint))
    if not -rank <= dim < rank:
        raise DefinitionError(expected(op, f"a dimension in [{-rank}, {rank - 1}]", dim, hint))
    return dim % rank


def require_sequence(op: str, given: object, what: str) -> None:
    """ArgumentTypeError if something else is given for a list."""
    if not isinstance(given, Sequence):
        operation = f"{op}(): incompatible function arguments"
        raise ArgumentTypeError(expected(operation, f"a list of {what}", repr(given)))


def is_unchanged(entry: object) -> bool:
    """True for -1, as a number or as a constant scalar."""
    return entry == -1 or (isinstance(entry, Scalar) and entry.constant == -1)


def new_axis(fusion: Fusion, extent: IntExpr) -> IterDomain:
    """A fresh axis of this size: broadcast if it is 1."""
    return fusion.ids.broadcast() if extent is ONE else fusion.ids.new(extent)


def size(fusion: Fusion, operand: Val, dim: int) -> Scalar:
    """The size of one dimension as a scalar of dtype Int."""
    tensor = as_tensor(fusion, operand, "size")
    hint = "Tried to access out of boundary index"
    extent = tensor.axes[wrapped_dim("size", dim, tensor.ndim, hint)].size
    value = extent.value if isinstance(extent, Integer) else None
    return fusion.new_scalar(DataType.Int, constant=value, extent=extent)


def shape(fusion: Fusion, operand: Val) -> list[Scalar]:
    """The sizes of all dimensions."""
    tensor = as_tensor(fusion, operand, "shape")
    return [size(fusion, tensor, dim) for dim in range(tensor.ndim)]


def broadcast(fusion: Fusion, operand: Val, is_broadcast_dim: Sequence[bool]) -> TensorView:
    """New axes of size 1 where `is_broadcast_dim` (one entry per output axis) is True."""
    tensor = as_tensor(fusion, operand, "broadcast")
    flags = tuple(bool(flag) for flag in is_broadcast_dim)
    if flags.count(False) != tensor.ndim:
        what = f"{tensor.ndim} False entries, one for each dimension"
        hint = "Invalid broadcast, number of false entries in is_broadcast_dim expected to be "
        raise DefinitionError(expected("broadcast", what, list(flags), f"{hint}{tensor.ndim}"))
    if not any(flags):
        return copy(fusion, tensor)
    kept = iter(tensor.axes)
    axes = [fusion.ids.broadcast() if flag else copy_axis(fusion, next(kept)) for flag in flags]
    output = new_tensor(fusion, axes, tensor.dtype)
    fusion.add_expr(BroadcastOp((tensor,), (output,), flags))
    return output


def broadcast_in_dim(
    fusion: Fusion, operand: Val, new_shape: Shape, broadcast_dims: Sequence[int]
) -> TensorView:
    """Places dimension i at `broadcast_dims[i]` of a tensor of the new shape."""
    tensor = as_tensor(fusion, operand, "broadcast_in_dim")
    dims = list(broadcast_dims)
    if len(dims) != tensor.ndim:
        what = f"{tensor.ndim} broadcast dimensions"
        hint = "The broadcast dimensions should match the input dimensions."
        raise DefinitionError(expected("broadcast_in_dim", what, dims, hint))
    wrapped = [wrapped_dim("broadcast_in_dim", dim, len(new_shape)) for dim in dims]
    if wrapped != sorted(set(wrapped)):
        hint = "Broadcast dimension is not greater than the previous value."
        raise DefinitionError(expected("broadcast_in_dim", "ascending dimensions", dims, hint))
    if len(new_shape) > tensor.ndim:
        flags = [dim not in wrapped for dim in range(len(new_shape))]
        tensor = broadcast(fusion, tensor, flags)
    return expand(fusion, tensor, new_shape)


def _expanded_axis(fusion: Fusion, axis: IterDomain, entry: SizeEntry) -> tuple[IterDomain, bool]:
    """The axis for a size of `expand`, and whether it differs from the tensor's."""
    if is_unchanged(entry):
        return copy_axis(fusion, axis), False
    extent = size_of_scalar(fusion, "expand", entry)
    if axis.is_broadcast and not axis.is_expanded and extent is not ONE:
        return fusion.ids.new(ONE, IterType.BROADCAST, extent), True
    require_equal(fusion, "expand", axis.size, extent)
    return copy_axis(fusion, axis), False


def _grows(fusion: Fusion, axis: IterDomain, entry: SizeEntry) -> bool:
    """True if the size of an axis that may be single isn't the one for `expand`."""
    if is_unchanged(entry) or not may_be_single(axis):
        return False
    return size_of_scalar(fusion, "expand", entry) is not axis.size


def expand(fusion: Fusion, operand: Val, new_shape: Shape) -> TensorView:
    """Repeats axes of size 1, without copying; -1 keeps a size; new axes come first."""
    tensor = as_tensor(fusion, operand, "expand")
    if len(new_shape) < tensor.ndim:
        what = f"a shape of at least {tensor.ndim} sizes"
        raise DefinitionError(expected("expand", what, len(new_shape)))
    tensor = prepend_axes(fusion, tensor, len(new_shape))
    changed_dims = [d for d, entry in enumerate(new_shape) if _grows(fusion, tensor.axes[d], entry)]
    tensor = as_single(fusion, tensor, changed_dims)
    pairs = [_expanded_axis(fusion, a, e) for a, e in zip(tensor.axes, new_shape, strict=True)]
    if not any(changed for _, changed in pairs):
        return copy(fusion, tensor)
    output = new_tensor(fusion, [axis for axis, _ in pairs], tensor.dtype)
    fusion.add_expr(ExpandOp((tensor,), (output,)))
    return output


def permute(fusion: Fusion, operand: Val, dims: Sequence[int]) -> TensorView:
    """Output dimension i is dimension `dims[i]`."""
    tensor = as_tensor(fusion, operand, "permute")
    if len(dims) != tensor.ndim:
        what = f"dims argument to have the same length as input, {tensor.ndim}"
        raise DefinitionError(expected("permute", what, list(dims)))
    hint = "dims argument is out of range, expects one of the input's dimensions"
    wrapped = tuple(wrapped_dim("permute", dim, tensor.ndim, hint) for dim in dims)
    if len(set(wrapped)) != tensor.ndim:
        raise DefinitionError(expected("permute", "no duplicated dimension entries", list(dims)))
    if wrapped == tuple(range(tensor.ndim)):
        return copy(fusion, tensor)
    axes = [copy_axis(fusion, tensor.axes[dim]) for dim in wrapped]
    output = new_tensor(fusion, axes, tensor.dtype)
    fusion.add_expr(PermuteOp((tensor,), (output,), wrapped))
    return output


def squeeze(
    fusion: Fusion, operand: Val, dims: Sequence[int], squeeze_expanded: bool = False
) -> TensorView:
    """Drops dimensions of size 1 (with `squeeze_expanded`, expanded ones too)."""
    tensor = as_tensor(fusion, operand, "squeeze")
    require_sequence("squeeze", dims, "dimensions")
    wrapped = {wrapped_dim("squeeze", dim, tensor.ndim) for dim in dims}
    tensor = as_single(fusion, tensor, wrapped)
    for dim in wrapped:
        axis = tensor.axes[dim]
        if not axis.is_broadcast or (axis.is_expanded and not squeeze_expanded):
            what = f"dimension {dim} of size 1"
            raise DefinitionError(expected("squeeze", what, f"size {axis.size}"))
    if not wrapped:
        return copy(fusion, tensor)
    flags = tuple(dim in wrapped for dim in range(tensor.ndim))
    kept = [axis for axis, flag in zip(tensor.axes, flags, strict=True) if not flag]
    output = new_tensor(fusion, [copy_axis(fusion, axis) for axis in kept], tensor.dtype)
    fusion.add_expr(SqueezeOp((tensor,), (output,), flags))
    return output


def full(
    fusion: Fusion, new_shape: Shape, fill_value: Val | PythonNumber, dtype: DataType
) -> TensorView:
    """A tensor of this shape and dtype whose elements are all `fill_value`."""
    value = as_val(fusion, fill_value, "full")
    if not isinstance(value, Scalar):
        raise DefinitionError(expected("full", "a scalar to fill with", "a tensor"))
    if is_integer(dtype) and isinstance(value.constant, int):
        # As in torch, a negative number may wrap around in an unsigned dtype.
        readings = (value.constant, abs(value.constant))
        if not any(fits(number, dtype) for number in readings):
            what = f"an integer of {dtype.value}"
            raise DefinitionError(expected("full", what, value.constant))
    extents = [size_of_scalar(fusion, "full", entry) for entry in new_shape]
    output = new_tensor(fusion, [new_axis(fusion, extent) for extent in extents], dtype)
    fusion.add_expr(FullOp((real_scalar(fusion, value, dtype),), (output,)))
    return output


def iota(
    fusion: Fusion,
    length: SizeEntry,
    start: Val | PythonNumber | None = None,
    step: Val | PythonNumber | None = None,
    dtype: DataType = DataType.Int,
) -> TensorView:
    """[length]: start, start + step, start + 2*step, ..."""
    if dtype is DataType.Bool or (is_floating(dtype) and dtype not in _IOTA_FLOATS):
        raise DefinitionError(expected("iota", "an integer dtype, Float or Double", dtype))
    first = as_val(fusion, 0 if start is None else start, "iota")
    stride = as_val(fusion, 1 if step is None else step, "iota")
    if not isinstance(first, Scalar) or not isinstance(stride, Scalar):
        raise DefinitionError(expected("iota", "scalars", "a tensor"))
    for name, value in (("start", first), ("step", stride)):
        if value.constant is not None and not cmath.isfinite(value.constant):
            hint = "iota: length, start, step must be finite numbers."
            raise DefinitionError(expected("iota", f"a finite {name}", value.constant, hint))
    if stride.constant == 0:
        hint = "iota: step value must not equal zero."
        raise DefinitionError(expected("iota", "a step other than 0", stride.constant, hint))
    extent = size_of_scalar(fusion, "iota", length)
    output = new_tensor(fusion, [new_axis(fusion, extent)], dtype)
    terms = real_scalar(fusion, first, dtype), real_scalar(fusion, stride, dtype)
    fusion.add_expr(IotaOp(terms, (output,)))
    return output


_IOTA_FLOATS = (DataType.Float, DataType.Double)


def stride_order(fusion: Fusion, operand: Val, order: Sequence[int]) -> TensorView:
    """A copy laid out in `order`: rank-1 for the outermost axis, 0 for the innermost."""
    tensor = as_tensor(fusion, operand, "stride_order")
    rank = tensor.ndim
    wrapped = [wrapped_dim("stride_order", position, rank) for position in order]
    if sorted(wrapped) != list(range(rank)):
        what = f"each of {rank} positions once"
        raise DefinitionError(expected("stride_order", what, list(order)))
    axes = [copy_axis(fusion, axis) for axis in tensor.axes]
    outermost_first = sorted(range(rank), key=lambda dim: -wrapped[dim])
    allocation = [axes[dim] for dim in outermost_first]
    domain = TensorDomain(axes, broadcast_contiguity(allocation), allocation=allocation or None)
    output = fusion.new_tensor(domain, tensor.dtype)
    fusion.add_expr(PointwiseOp((tensor,), (output,), "set"))
    return output
