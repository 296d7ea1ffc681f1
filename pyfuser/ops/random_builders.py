"""Random builders: uniform, normal, rand_like, randn_like.

Each adds one RandomOp of standard numbers, and the arithmetic that scales them.  Without a seed,
the numbers come from torch's generator: the op takes the fusion's seed, and the fusion's offset
plus the number of such ops before it, so that no two ops have the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..dtypes import REDUCED_FLOATING, DataType, compute_dtype, is_integer
from ..errors import DefinitionError, expected
from ..ir.exprs import RandomOp
from ..ir.fusion import Fusion
from ..ir.scalars import IntExpr
from ..ir.vals import PythonNumber, Scalar, TensorView, Val
from .pointwise import (
    Argument,
    as_tensor,
    as_val,
    cast,
    cast_tensor,
    new_tensor,
    pointwise,
    prepend_axes,
    require_dtype,
    size_of_scalar,
)
from .shape_builders import Shape, new_axis

RANDOM_DTYPES = (DataType.Double, DataType.Float, *REDUCED_FLOATING)


def uniform(
    fusion: Fusion,
    minval: Argument,
    maxval: Argument,
    shape: Shape,
    rng_seed: Argument | None = None,
    rng_offset: Argument | None = None,
    dtype: DataType = DataType.Float,
) -> TensorView:
    """Numbers in [minval, maxval), all of them equally likely."""
    _require_floating("uniform", dtype)
    low, high = (_bound(fusion, "uniform", value) for value in (minval, maxval))
    if low.constant is not None and high.constant is not None:
        _require_order(low.constant, high.constant)
    sizes = [size_of_scalar(fusion, "uniform", entry) for entry in shape]
    state = _state(fusion, "uniform", rng_seed, rng_offset)
    if low.constant == 0 and high.constant == 1:
        return _random(fusion, "uniform", sizes, state, dtype)
    standard = _random(fusion, "uniform", sizes, state, compute_dtype(dtype))
    spread = pointwise(fusion, "mul", standard, pointwise(fusion, "sub", high, low))
    value = _in_dtype(fusion, pointwise(fusion, "add", spread, low), dtype)
    # Rounding may give the upper bound.
    inside = pointwise(fusion, "lt", value, high)
    return _in_dtype(fusion, pointwise(fusion, "where", inside, value, low), dtype)


def normal(
    fusion: Fusion,
    mean: Argument,
    std: Argument,
    shape: Shape,
    rng_seed: Argument | None = None,
    rng_offset: Argument | None = None,
    dtype: DataType = DataType.Float,
) -> TensorView:
    """Normally distributed numbers."""
    _require_floating("normal", dtype)
    centre, scale = (_bound(fusion, "normal", value) for value in (mean, std))
    sizes = [size_of_scalar(fusion, "normal", entry) for entry in shape]
    state = _state(fusion, "normal", rng_seed, rng_offset)
    if centre.constant == 0 and scale.constant == 1:
        return _random(fusion, "normal", sizes, state, dtype)
    standard = _random(fusion, "normal", sizes, state, compute_dtype(dtype))
    scaled = pointwise(fusion, "mul", standard, scale)
    return _in_dtype(fusion, pointwise(fusion, "add", scaled, centre), dtype)


def rand_like(fusion: Fusion, operand: Val) -> TensorView:
    """Numbers in [0, 1) with the tensor's shape and dtype."""
    return _like(fusion, "rand_like", "uniform", operand)


def randn_like(fusion: Fusion, operand: Val) -> TensorView:
    """Standard normal numbers with the tensor's shape and dtype."""
    return _like(fusion, "randn_like", "normal", operand)


def _like(fusion: Fusion, op: str, distribution: str, operand: Val) -> TensorView:
    tensor = as_tensor(fusion, operand, op)
    if tensor.dtype not in RANDOM_DTYPES:
        raise DefinitionError(expected(op, "a floating operand", tensor.dtype))
    sizes = [axis.size for axis in tensor.axes]
    return _random(fusion, distribution, sizes, _state(fusion, op, None, None), tensor.dtype)


def _random(
    fusion: Fusion,
    distribution: str,
    sizes: Sequence[IntExpr],
    state: tuple[Val, Val],
    dtype: DataType,
) -> TensorView:
    output = new_tensor(fusion, [new_axis(fusion, size) for size in sizes], dtype)
    aligned = [
        prepend_axes(fusion, value, len(sizes)) if isinstance(value, TensorView) else value
        for value in state
    ]
    fusion.add_expr(RandomOp(tuple(aligned), (output,), distribution))
    return output


def _state(
    fusion: Fusion, op: str, rng_seed: Argument | None, rng_offset: Argument | None
) -> tuple[Val, Val]:
    """The seed and the offset of an op: those given, or those of the generator."""
    if (rng_seed is None) != (rng_offset is None):
        raise DefinitionError(expected(op, "both rng_seed and rng_offset, or neither", "one"))
    if rng_seed is None or rng_offset is None:
        seed, offset = fusion.add_random_state()
        number = fusion.random_count - 1
        return seed, pointwise(fusion, "add", offset, number) if number else offset
    return _integer(fusion, op, rng_seed), _integer(fusion, op, rng_offset)


def _integer(fusion: Fusion, op: str, given: Argument) -> Val:
    value = as_val(fusion, given, op)
    if not is_integer(value.dtype):
        raise DefinitionError(expected(op, "integers as seed and offset", value.dtype))
    if isinstance(value, TensorView):
        if value.ndim:
            what = "seed and offset to be numbers or tensors without dimensions"
            raise DefinitionError(expected(op, what, f"{value.ndim} dimensions"))
        return value if value.dtype is DataType.Int else cast_tensor(fusion, value, DataType.Int)
    return value if value.dtype is DataType.Int else cast(fusion, value, DataType.Int)


def _bound(fusion: Fusion, op: str, given: Argument) -> Scalar:
    value = as_val(fusion, given, op)
    if not isinstance(value, Scalar):
        raise DefinitionError(expected(op, "scalars as parameters", "a tensor"))
    return value


def _in_dtype(fusion: Fusion, value: Val, dtype: DataType) -> TensorView:
    tensor = as_tensor(fusion, value, "random")
    return tensor if tensor.dtype is dtype else cast_tensor(fusion, tensor, dtype)


def _require_floating(op: str, dtype: DataType) -> None:
    require_dtype(op, dtype)
    if dtype not in RANDOM_DTYPES:
        hint = "Random distributions only create floating point types!"
        raise DefinitionError(expected(op, "Float, Double, Half or BFloat16", dtype, hint))


def _require_order(low: PythonNumber, high: PythonNumber) -> None:
    is_real = not isinstance(low, complex) and not isinstance(high, complex)
    if not is_real or not 0 <= high.real - low.real < math.inf:
        what = "finite bounds, the lower one first"
        raise DefinitionError(expected("uniform", what, f"{low} and {high}"))
