"""Composite builders: operations that are written with other operations.

None of them has an expression of its own, so they fuse like what they are made of: `triu` is a
comparison of two iotas and a selection, `embedding_fwd` with a largest norm is a gather, a norm of
its rows and a product.
"""

from __future__ import annotations

import math

from ..dtypes import DataType, compute_dtype, is_integer
from ..errors import ArgumentTypeError, DefinitionError, expected
from ..ir.fusion import Fusion
from ..ir.vals import Scalar, TensorView, Val
from .gather_builders import embedding_rows
from .pointwise import Argument, as_tensor, as_val, cast_tensor, constant, pointwise
from .reduction_builders import reduce
from .shape_builders import broadcast, iota, size


def triu(fusion: Fusion, arg: Val, diagonal: Argument = 0) -> TensorView:
    """[..., n, m] -> the same, with 0 below the diagonal; diagonal 1 is the one above the main."""
    tensor = as_tensor(fusion, arg, "triu")
    if tensor.ndim < 2:
        raise DefinitionError(expected("triu", "a tensor of rank 2 or more", tensor.ndim))
    offset = as_val(fusion, diagonal, "triu")
    if isinstance(offset, TensorView) or not is_integer(offset.dtype):
        raise ArgumentTypeError(expected("triu", "an integer diagonal", offset))
    rank = tensor.ndim
    positions = []
    for dim in (rank - 2, rank - 1):
        along = iota(fusion, size(fusion, tensor, dim))
        positions.append(broadcast(fusion, along, [d != dim for d in range(rank)]))
    row, column = positions
    is_kept = pointwise(fusion, "ge", column, pointwise(fusion, "add", row, offset))
    zero = False if tensor.dtype is DataType.Bool else 0
    return _tensor(pointwise(fusion, "where", is_kept, tensor, zero))


def embedding_fwd(
    fusion: Fusion,
    operand: Val,
    weight: Val,
    padding_idx: Argument | None = None,
    max_norm: Argument | None = None,
    norm_type: Argument | None = None,
    scale_grad_by_freq: Argument | None = None,
    sparse: Argument | None = None,
) -> TensorView:
    """The rows of a weight selected by the operand, an index of any rank.

    Rows whose norm (`norm_type`, 2 by default) is above `max_norm` are scaled down to it.  Unlike
    torch's, the weight itself isn't changed.  The other arguments concern only gradients.
    """
    rows = embedding_rows(fusion, operand, weight)
    if max_norm is None:
        return rows
    if rows.dtype not in (DataType.Float, DataType.Double, DataType.Half, DataType.BFloat16):
        raise DefinitionError(expected("embedding_fwd", "a floating weight", rows.dtype))
    compute = compute_dtype(rows.dtype)
    wide = rows if rows.dtype is compute else cast_tensor(fusion, rows, compute)
    norm = _norm(fusion, wide, 2.0 if norm_type is None else norm_type)
    # As torch does: the small number keeps the quotient finite.
    scale = pointwise(fusion, "div", max_norm, pointwise(fusion, "add", norm, 1e-7))
    is_long = pointwise(fusion, "gt", norm, max_norm)
    one = constant(fusion, 1.0, DataType.Double)
    scaled = pointwise(fusion, "mul", wide, pointwise(fusion, "where", is_long, scale, one))
    return cast_tensor(fusion, _tensor(scaled), rows.dtype)


def _norm(fusion: Fusion, rows: TensorView, order: Argument) -> Val:
    """The norm of this order over the last dimension, which is kept."""
    number = order.constant if isinstance(order, Scalar) else order
    last = rows.ndim - 1
    if number == 2:
        squares = pointwise(fusion, "mul", rows, rows)
        return pointwise(fusion, "sqrt", reduce(fusion, "sum", squares, [last], True))
    magnitudes = pointwise(fusion, "abs", rows)
    if number in (math.inf, 1):
        return reduce(fusion, "max" if number == math.inf else "sum", magnitudes, [last], True)
    power = as_val(fusion, order, "embedding_fwd")
    powers = pointwise(fusion, "pow", magnitudes, power)
    total = reduce(fusion, "sum", powers, [last], True)
    return pointwise(fusion, "pow", total, pointwise(fusion, "reciprocal", power))


def _tensor(value: Val) -> TensorView:
    assert isinstance(value, TensorView)
    return value
