"""Read builders: slice, flip, pad, cat and slice_scatter, built from windows on a tensor.

Bounds are clamped to the sizes as in torch, so a window reads inside its source whatever the bounds
of a call are.  Sizes and bounds may be symbolic; sums and differences stay symbolic if they are
provably sizes, so that the parts of a tensor put together again have its size.  Reads at the
elements of an index tensor are in `gather_builders`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

from ..dtypes import DataType, from_torch, is_complex, is_floating, is_integer, to_torch
from ..errors import DefinitionError, UnsupportedError, expected
from ..ir.bounds import larger, proves_at_most, smaller
from ..ir.domains import IterDomain
from ..ir.exprs import PointwiseOp, WindowOp
from ..ir.fusion import Fusion
from ..ir.scalars import ONE, ZERO, Integer, IntExpr, ceil_div
from ..ir.vals import PythonNumber, Scalar, TensorView, Val
from ..ir.windows import Window
from .pointwise import (
    as_tensor,
    as_val,
    cast_tensor,
    copy,
    copy_axis,
    joined_axis,
    new_tensor,
    prepend_axes,
    require_equal,
    size_of_scalar,
)
from .shape_builders import new_axis, require_sequence, wrapped_dim

SizeEntry = int | Scalar
Windows = tuple[Window | None, ...]


def window(
    fusion: Fusion,
    source: Val,
    windows: Windows,
    axes: Sequence[IterDomain],
    fill: Val | None = None,
) -> TensorView:
    """The window op with these output axes."""
    dtype = source.dtype
    output = new_tensor(fusion, axes, dtype)
    inputs = (source,) if fill is None else (source, fill)
    fusion.add_expr(WindowOp(inputs, (output,), windows))
    return output


# -- slice


def clamped(fusion: Fusion, op: str, entry: SizeEntry, extent: IntExpr) -> IntExpr:
    """A bound inside [0, extent]; a negative number counts from the end."""
    value = entry.constant if isinstance(entry, Scalar) else entry
    if isinstance(value, int) and value < 0:
        return larger(extent + Integer.of(value), ZERO)
    return smaller(size_of_scalar(fusion, op, entry), extent)


def _stride(entry: SizeEntry, op: str) -> int:
    value = entry.constant if isinstance(entry, Scalar) else entry
    if not isinstance(value, int):
        raise UnsupportedError(expected(op, "constant strides", entry))
    if value < 1:
        raise UnsupportedError(expected(op, "strides of at least 1", value))
    return value


def _most(fusion: Fusion, extent: IntExpr, start: SizeEntry, end: SizeEntry) -> int | None:
    """The distance between the bounds as they were given, if it is the same for all sizes."""
    match end:
        case Scalar(expr=PointwiseOp(op="add", inputs=(first, Scalar(constant=int() as count)))):
            if first is start:
                return count
    bounds: list[IntExpr] = []
    for entry in (start, end):
        value = entry.constant if isinstance(entry, Scalar) else entry
        if isinstance(value, int) and value < 0:
            bounds.append(extent + Integer.of(value))
        else:
            bounds.append(size_of_scalar(fusion, "slice", entry))
    distance = bounds[1] - bounds[0]
    return distance.value if isinstance(distance, Integer) else None


def slice_window(
    start: IntExpr, stop: IntExpr, step: int, extent: IntExpr, most: int | None = None
) -> Window | None:
    """The window of source[start:stop:step] for bounds inside [0, extent]; None for all.

    The bounds are at most `most` apart.
    """
    if start is ZERO and stop is extent and step == 1:
        return None
    is_ordered = proves_at_most(start, stop)
    count = stop - start if is_ordered else larger(stop - start, ZERO)
    if most is not None and 0 < most <= step:  # an axis of at most one element may broadcast
        return Window(ZERO, smaller(count, ONE), start, Integer.of(step))
    return Window(ZERO, ceil_div(count, Integer.of(step)), start, Integer.of(step))


def slice(
    fusion: Fusion,
    operand: Val,
    start_indices: Sequence[SizeEntry],
    end_indices: Sequence[SizeEntry],
    strides: Sequence[SizeEntry] | None = None,
) -> TensorView:
    """operand[start:end:stride, ...], one entry per dimension, with torch's rules for bounds."""
    tensor = as_tensor(fusion, operand, "slice")
    strides = [1] * tensor.ndim if strides is None else strides
    for name, entries in (("start", start_indices), ("end", end_indices), ("stride", strides)):
        if len(entries) != tensor.ndim:
            what = f"{tensor.ndim} {name} entries, one for each dimension"
            hint = "Number of tensor dimensions does not match slice dimensions!"
            raise DefinitionError(expected("slice", what, len(entries), hint))
    windows: list[Window | None] = []
    columns = zip(tensor.axes, start_indices, end_indices, strides, strict=True)
    for axis, start, end, stride in columns:
        first, last = (clamped(fusion, "slice", entry, axis.size) for entry in (start, end))
        every = _stride(stride, "slice")
        most = _most(fusion, axis.size, start, end)
        windows.append(slice_window(first, last, every, axis.size, most))
    return sliced(fusion, tensor, tuple(windows))


def sliced(fusion: Fusion, tensor: TensorView, windows: Windows) -> TensorView:
    """The tensor read through windows that fill nothing."""
    if not any(windows):
        return copy(fusion, tensor)
    pairs = zip(tensor.axes, windows, strict=True)
    axes = [copy_axis(fusion, a) if w is None else new_axis(fusion, w.stop) for a, w in pairs]
    return window(fusion, tensor, windows, axes)


def flip(fusion: Fusion, operand: Val, dims: Sequence[int]) -> TensorView:
    """The tensor with its elements in the opposite order along these dimensions."""
    tensor = as_tensor(fusion, operand, "flip")
    flipped = [wrapped_dim("flip", dim, tensor.ndim) for dim in dims]
    if len({*flipped}) < len(flipped):
        raise DefinitionError(expected("flip", "each dimension once", list(dims)))
    windows = tuple(
        Window(ZERO, axis.size, axis.size - 1, Integer.of(-1))
        if dim in flipped and not axis.is_broadcast
        else None
        for dim, axis in enumerate(tensor.axes)
    )
    if not any(windows):
        return copy(fusion, tensor)
    return window(fusion, tensor, windows, [copy_axis(fusion, axis) for axis in tensor.axes])


# -- pad


def pad(
    fusion: Fusion,
    operand: Val,
    pad_widths: Sequence[SizeEntry],
    value: Val | PythonNumber | None = None,
) -> TensorView:
    """The tensor with `value` (0 by default) around it: widths (left, right) from the last
    dimension on; a negative width cuts off.  `value` may be a tensor of the result's shape.
    """
    tensor = as_tensor(fusion, operand, "pad")
    if len(pad_widths) % 2 or len(pad_widths) > 2 * tensor.ndim:
        what = f"a pair of widths for each of at most {tensor.ndim} dimensions"
        hint = "Number of pad widths must be at most twice the input dimension"
        hint = "Invalid number of padding widths" if len(pad_widths) % 2 else hint
        raise DefinitionError(expected("pad", what, f"{len(pad_widths)} widths", hint))
    windows: list[Window | None] = [None] * tensor.ndim
    axes = [copy_axis(fusion, axis) for axis in tensor.axes]
    for pair in range(len(pad_widths) // 2):
        left, right = (_width(fusion, entry) for entry in pad_widths[2 * pair : 2 * pair + 2])
        if left is ZERO and right is ZERO:
            continue
        dim = tensor.ndim - 1 - pair
        windows[dim], extent = pad_window(tensor.axes[dim].size, left, right)
        axes[dim] = new_axis(fusion, extent)
    fill = fill_value(fusion, tensor, _zero(tensor.dtype) if value is None else value)
    if not any(windows):
        return copy(fusion, tensor)
    return placed(fusion, tensor, tuple(windows), axes, fill)


def _width(fusion: Fusion, entry: SizeEntry) -> IntExpr:
    value = entry.constant if isinstance(entry, Scalar) else entry
    return Integer.of(value) if isinstance(value, int) else size_of_scalar(fusion, "pad", entry)


def pad_window(extent: IntExpr, left: IntExpr, right: IntExpr) -> tuple[Window, IntExpr]:
    """The window of an axis with `left` elements before and `right` after, and its extent."""
    total, stop = extent + left + right, extent + left
    if any(isinstance(width, Integer) and width.value < 0 for width in (left, right)):
        total = larger(total, ZERO)
    if isinstance(right, Integer) and right.value < 0:
        stop = total
    return Window(larger(left, ZERO), stop, left * -1, ONE), total


def fill_value(fusion: Fusion, tensor: TensorView, value: Val | PythonNumber) -> Val:
    """The fill around a tensor, checked to be of its kind."""
    fill = as_val(fusion, value, "pad")
    if isinstance(fill, TensorView):
        if fill.dtype is not tensor.dtype:
            raise DefinitionError(expected("pad", f"a fill of {tensor.dtype}", fill.dtype))
        return fill
    if _kind(fill.dtype) > _kind(tensor.dtype):
        what = f"a value that {tensor.dtype} can hold"
        raise DefinitionError(expected("pad", what, f"{fill} of {fill.dtype}"))
    return fill


def _kind(dtype: DataType) -> int:
    """Bool < integers < floating < complex."""
    if is_complex(dtype):
        return 3
    return 2 if is_floating(dtype) else 1 if is_integer(dtype) else 0


def placed(
    fusion: Fusion,
    source: TensorView,
    windows: Windows,
    axes: Sequence[IterDomain],
    fill: Val,
) -> TensorView:
    """The source in its windows, the fill around them; a fill's axes join the source's."""
    if isinstance(fill, TensorView):
        fill = prepend_axes(fusion, fill, source.ndim)
        if fill.ndim != source.ndim:
            raise DefinitionError(expected("pad", f"a fill of rank {source.ndim}", fill.ndim))
        columns = zip(axes, fill.axes, strict=True)
        axes = [joined_axis(fusion, "pad", column) for column in columns]
    return window(fusion, source, windows, axes, fill)


# -- cat and slice_scatter


def cat(fusion: Fusion, tensors: Sequence[Val], dim: int = 0) -> TensorView:
    """The tensors side by side along a dimension, in the dtype that torch promotes to."""
    require_sequence("cat", tensors, "tensors")
    parts = [as_tensor(fusion, tensor, "cat") for tensor in tensors]
    if not parts:
        hint = "Attempting to concatenate empty list of tensors"
        raise DefinitionError(expected("cat", "at least one tensor", "none", hint))
    dim = wrapped_dim("cat", dim, parts[0].ndim)
    parts = _promoted(fusion, parts)
    for part in parts:
        _check_part(fusion, parts[0], part, dim)
    if len(parts) == 1:
        return copy(fusion, parts[0])
    ends = list(accumulate(part.axes[dim].size for part in parts))
    fill: Val = as_val(fusion, _zero(parts[0].dtype), "cat")
    for part, end in zip(parts, ends, strict=True):
        start = end - part.axes[dim].size
        axes = [copy_axis(fusion, axis) for axis in part.axes]
        axes[dim] = new_axis(fusion, ends[-1])
        windows = tuple(Window(start, end, start * -1, ONE) if d == dim else None
                        for d in range(part.ndim))  # fmt: skip
        fill = placed(fusion, part, windows, axes, fill)
    assert isinstance(fill, TensorView)
    return fill


def _zero(dtype: DataType) -> PythonNumber:
    if dtype is DataType.Bool:
        return False
    return 0.0 if is_floating(dtype) else 0


def _promoted(fusion: Fusion, parts: list[TensorView]) -> list[TensorView]:
    common = to_torch(parts[0].dtype)
    for part in parts:
        try:
            common = torch.promote_types(common, to_torch(part.dtype))
        except RuntimeError:
            got = f"{from_torch(common)} and {part.dtype}"
            what = "dtypes that torch promotes"
            raise UnsupportedError(expected("cat", what, got)) from None
    dtype = from_torch(common)
    return [p if p.dtype is dtype else cast_tensor(fusion, p, dtype) for p in parts]


def _check_part(fusion: Fusion, first: TensorView, part: TensorView, dim: int) -> None:
    if part.ndim != first.ndim:
        hint = "Unexpected number of dimensions"
        raise DefinitionError(expected("cat", f"tensors of rank {first.ndim}", part.ndim, hint))
    for d, (a, b) in enumerate(zip(first.axes, part.axes, strict=True)):
        if d != dim:
            require_equal(fusion, "cat", a.size, b.size)


def slice_scatter(
    fusion: Fusion,
    operand: Val,
    source: Val,
    dim: int = 0,
    start: SizeEntry | None = None,
    end: SizeEntry | None = None,
    step: int = 1,
) -> TensorView:
    """`operand` with operand[start:end:step] along a dimension replaced by `source`."""
    base, part = as_tensor(fusion, operand, "slice_scatter"), as_tensor(fusion, source, "source")
    dim = wrapped_dim("slice_scatter", dim, base.ndim)
    every = Integer.of(_stride(step, "slice_scatter"))
    if part.ndim != base.ndim or part.dtype is not base.dtype:
        what = f"a source of rank {base.ndim} and {base.dtype}"
        raise DefinitionError(expected("slice_scatter", what, f"{part.ndim} and {part.dtype}"))
    extent = base.axes[dim].size
    first = clamped(fusion, "slice_scatter", 0 if start is None else start, extent)
    last = extent if end is None else clamped(fusion, "slice_scatter", end, extent)
    for d, (a, b) in enumerate(zip(base.axes, part.axes, strict=True)):
        wanted = a.size
        if d == dim:
            wanted = last - first if proves_at_most(first, last) else larger(last - first, ZERO)
            wanted = ceil_div(wanted, every)
        require_equal(fusion, "slice_scatter", wanted, b.size)
    if first is ZERO and every is ONE and part.axes[dim].size is extent:
        return copy(fusion, part)
    placed_in = _place(first, part.axes[dim].size, every)
    windows = tuple(placed_in if d == dim else None for d in range(base.ndim))
    axes = [copy_axis(fusion, axis) for axis in part.axes]
    axes[dim] = new_axis(fusion, extent)
    return placed(fusion, part, windows, axes, base)


def _place(first: IntExpr, length: IntExpr, every: IntExpr) -> Window:
    """The window with `length` elements from `first` on, one in `every`."""
    if every is ONE:
        return Window(first, first + length, first * -1, ONE)
    return Window(first, first + (length - 1) * every + 1, ZERO, ONE, every)
