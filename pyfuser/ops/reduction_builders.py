"""Reduction builders: sum, prod, max, min, var, var_mean and welford over any axes.

A reduction's output keeps the reduced axes in its domain, as reduction axes.  Broadcast axes are
never reduced: they are squeezed, and an expanded one multiplies (sum), raises to a power (prod) or
has no effect (max, min); where it has no element, nothing is reduced.  `keepdim` is a broadcast
afterwards.  Half-precision types are cast to Float around the reduction, so accumulators aren't
rounded to half precision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..dtypes import REDUCED_FLOATING, DataType, is_complex, is_floating
from ..errors import ArgumentTypeError, DefinitionError, expected
from ..ir.domains import IterDomain, IterType
from ..ir.exprs import BroadcastOp, ReductionOp, WelfordOp
from ..ir.fusion import Fusion, plain_domain
from ..ir.vals import PythonNumber, TensorView, Val
from .pointwise import as_tensor, cast_tensor, copy, copy_axis, new_tensor, pointwise
from .shape_builders import size, squeeze
from .table import OPS, REDUCTIONS

Dims = int | Sequence[int] | None


def normalised_dims(op: str, tensor: TensorView, dims: Dims) -> list[int]:
    """Dimensions in [0, rank), ascending; None is all.  DefinitionError for a wrong one."""
    rank = tensor.ndim
    if dims is None:
        return list(range(rank))
    given = [dims] if isinstance(dims, int) else list(dims)
    if not given:
        raise DefinitionError(expected(op, "at least one dimension", "none"))
    for dim in given:
        if not isinstance(dim, int):
            raise ArgumentTypeError(expected(op, "dimensions", repr(dim)))
        if not -max(rank, 1) <= dim < max(rank, 1):
            what = f"dimensions in [{-max(rank, 1)}, {max(rank, 1) - 1}]"
            raise DefinitionError(expected(op, what, dim))
    wrapped = sorted(dim % max(rank, 1) for dim in given)
    if len(set(wrapped)) != len(wrapped):
        raise DefinitionError(expected(op, "each dimension once", given))
    return [dim for dim in wrapped if dim < rank]


def reduce(
    fusion: Fusion,
    op: str,
    operand: Val,
    dims: Dims = None,
    keepdim: bool = False,
    dtype: DataType = DataType.Null,
) -> TensorView:
    """The reduction `op` of the table: [...] -> [...] without `dims` (of size 1 with `keepdim`)."""
    tensor = as_tensor(fusion, operand, op)
    reduced = normalised_dims(op, tensor, dims)
    if is_complex(tensor.dtype) and OPS[REDUCTIONS[op].combine].is_real:
        raise DefinitionError(expected(op, "real numbers", tensor.dtype))
    resolution = REDUCTIONS[op].resolve(tensor.dtype, dtype)
    compute = resolution.compute[0]
    if not reduced:
        return cast_tensor(fusion, tensor, resolution.result)
    ready = tensor if tensor.dtype is compute else cast_tensor(fusion, tensor, compute)
    flat, rest = _without_broadcasts(fusion, ready, reduced)
    output = _reduction(fusion, op, flat, rest) if rest else flat
    repeats = _expansion(fusion, tensor, reduced)
    if repeats is not None:
        output = _repeated(fusion, op, output, repeats)
    if output.dtype is not resolution.result:
        output = cast_tensor(fusion, output, resolution.result)
    return restored(fusion, output, reduced, tensor.ndim) if keepdim else output


def welford(
    fusion: Fusion, operand: Val, dims: Dims = None
) -> tuple[TensorView, TensorView, TensorView]:
    """(mean, sum of squared deviations, count) over `dims`; the count is of dtype Int.

    The deviations of complex numbers are distances, so their sum is real.
    """
    tensor = _floating_tensor(fusion, "welford", operand)
    if is_complex(tensor.dtype):
        parts = (pointwise(fusion, part, tensor) for part in ("real", "imag"))
        (real, across, count), (imaginary, along, _) = (welford(fusion, p, dims) for p in parts)
        mean = as_tensor(fusion, pointwise(fusion, "complex", real, imaginary), "welford")
        return mean, as_tensor(fusion, pointwise(fusion, "add", across, along), "welford"), count
    reduced = normalised_dims("welford", tensor, dims)
    flat, rest = _without_broadcasts(fusion, tensor, reduced)
    mean, squares, count = _welford(fusion, flat, rest)
    repeats = _expansion(fusion, tensor, reduced)
    if repeats is not None:
        squares = _repeated(fusion, "sum", squares, repeats)
        count = _repeated(fusion, "sum", count, repeats)
        mean = _or_none(fusion, "welford", mean, repeats, math.nan)
    return mean, squares, count


def _repeated(fusion: Fusion, op: str, reduced: TensorView, repeats: int | Val) -> TensorView:
    """The reduction of each element `repeats` times."""
    row, dtype = REDUCTIONS[op], reduced.dtype
    if row.repeated is not None:
        combined = as_tensor(fusion, pointwise(fusion, row.repeated, reduced, repeats), op)
        reduced = combined if combined.dtype is dtype else cast_tensor(fusion, combined, dtype)
    return _or_none(fusion, op, reduced, repeats, row.identity(dtype))


def _or_none(
    fusion: Fusion, op: str, reduced: TensorView, repeats: int | Val, of_none: PythonNumber
) -> TensorView:
    """What is reduced, or `of_none` if elements that repeat no time leave nothing to reduce."""
    if isinstance(repeats, int) and repeats:
        return reduced
    is_any = pointwise(fusion, "gt", repeats, 0)
    made = as_tensor(fusion, pointwise(fusion, "where", is_any, reduced, of_none), op)
    return made if made.dtype is reduced.dtype else cast_tensor(fusion, made, reduced.dtype)


def var(
    fusion: Fusion,
    operand: Val,
    dims: Dims = None,
    correction: PythonNumber | Val = 1,
    keepdim: bool = False,
) -> TensorView:
    """The variance over `dims`, with max(count - correction, 0) as the denominator."""
    tensor = as_tensor(fusion, operand, "var")
    is_half = tensor.dtype in REDUCED_FLOATING
    ready = cast_tensor(fusion, tensor, DataType.Float) if is_half else tensor
    variance, _ = var_mean(fusion, ready, dims, correction, keepdim)
    return cast_tensor(fusion, variance, tensor.dtype) if is_half else variance


def var_mean(
    fusion: Fusion,
    operand: Val,
    dims: Dims = None,
    correction: PythonNumber | Val = 1,
    keepdim: bool = False,
) -> tuple[TensorView, TensorView]:
    """(variance, mean) over `dims`.  DefinitionError for half precision: cast it to Float first."""
    tensor = _floating_tensor(fusion, "var_mean", operand)
    reduced = normalised_dims("var_mean", tensor, dims)
    mean, squares, _ = welford(fusion, tensor, reduced if reduced else None)
    denominator = _degrees_of_freedom(fusion, tensor, reduced, correction)
    variance = as_tensor(fusion, pointwise(fusion, "div", squares, denominator), "var_mean")
    if keepdim:
        mean = restored(fusion, mean, reduced, tensor.ndim)
        variance = restored(fusion, variance, reduced, tensor.ndim)
    return variance, mean


def _floating_tensor(fusion: Fusion, op: str, operand: Val) -> TensorView:
    tensor = as_tensor(fusion, operand, op)
    is_wide = is_floating(tensor.dtype) and tensor.dtype not in REDUCED_FLOATING
    if not is_wide and not is_complex(tensor.dtype):
        hint = "cast it to Float first"
        raise DefinitionError(expected(op, "a tensor of Float or Double", tensor.dtype, hint))
    return tensor


def _degrees_of_freedom(
    fusion: Fusion, tensor: TensorView, dims: Sequence[int], correction: PythonNumber | Val
) -> Val:
    """max(count - correction, 0), as a number if it is known."""
    count = reduced_element_count(fusion, tensor, dims)
    if isinstance(count, int) and not isinstance(correction, (Val, complex)):
        zero_or_more = count - correction if count > correction else 0
        return fusion.new_scalar(DataType.Double, constant=float(zero_or_more))
    difference = pointwise(fusion, "sub", count, correction)
    return pointwise(fusion, "maximum", difference, 0)


def reduced_element_count(fusion: Fusion, tensor: TensorView, dims: Sequence[int]) -> int | Val:
    """How many elements are reduced into one."""
    known = 1
    count: Val | None = None
    for dim in dims:
        factor = size(fusion, tensor, dim)
        if factor.constant is not None:
            known *= int(factor.constant.real)
        else:
            count = factor if count is None else pointwise(fusion, "mul", count, factor)
    if count is None:
        return known
    return count if known == 1 else pointwise(fusion, "mul", count, known)


def _expansion(fusion: Fusion, tensor: TensorView, dims: Sequence[int]) -> int | Val | None:
    """How often the reduced elements repeat because of expanded axes; None if they don't."""
    expanded = [dim for dim in dims if tensor.axes[dim].is_expanded]
    return reduced_element_count(fusion, tensor, expanded) if expanded else None


def _without_broadcasts(
    fusion: Fusion, tensor: TensorView, dims: Sequence[int]
) -> tuple[TensorView, list[int]]:
    """The tensor without the broadcast axes among `dims`, and the remaining `dims`."""
    gone = [dim for dim in dims if tensor.axes[dim].is_broadcast]
    kept = [dim for dim in range(tensor.ndim) if dim not in gone]
    rest = [kept.index(dim) for dim in dims if dim not in gone]
    return (squeeze(fusion, tensor, gone, squeeze_expanded=True) if gone else tensor), rest


def _reduced_axes(fusion: Fusion, tensor: TensorView, dims: Sequence[int]) -> list[IterDomain]:
    return [
        fusion.ids.new(axis.extent, IterType.REDUCTION) if i in dims else copy_axis(fusion, axis)
        for i, axis in enumerate(tensor.axes)
    ]


def _reduction(fusion: Fusion, op: str, tensor: TensorView, dims: Sequence[int]) -> TensorView:
    domain = plain_domain(_reduced_axes(fusion, tensor, dims))
    output = fusion.new_tensor(domain, tensor.dtype)
    fusion.add_expr(ReductionOp((tensor,), (output,), op))
    return output


def _welford(
    fusion: Fusion, tensor: TensorView, dims: Sequence[int]
) -> tuple[TensorView, TensorView, TensorView]:
    if not dims:
        mean = copy(fusion, tensor)
        deviation = as_tensor(fusion, pointwise(fusion, "sub", tensor, tensor), "welford")
        # A count of one for each element, as a tensor: it is 1 whatever the comparison gives.
        ones = pointwise(fusion, "where", pointwise(fusion, "isnan", tensor), 1, 1)
        return mean, deviation, as_tensor(fusion, ones, "welford")
    mean, squares, count = (
        fusion.new_tensor(plain_domain(_reduced_axes(fusion, tensor, dims)), dtype)
        for dtype in (tensor.dtype, tensor.dtype, DataType.Int)
    )
    fusion.add_expr(WelfordOp((tensor,), (mean, squares, count)))
    return mean, squares, count


def restored(fusion: Fusion, tensor: TensorView, dims: Sequence[int], rank: int) -> TensorView:
    """Inserts axes of size 1 where `dims` were reduced."""
    if not dims:
        return tensor
    flags = tuple(dim in dims for dim in range(rank))
    kept = iter(tensor.axes)
    axes = [fusion.ids.broadcast() if flag else copy_axis(fusion, next(kept)) for flag in flags]
    output = new_tensor(fusion, axes, tensor.dtype)
    fusion.add_expr(BroadcastOp((tensor,), (output,), flags))
    return output
