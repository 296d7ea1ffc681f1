"""Scaled products: matrix products whose operands have scales, written with other operations.

The operands are multiplied by their scales in Float, which fuses with what is before the product;
factors, bias and the conversion of the result fuse with what is after it.  Scales of blocks, and
results that are quantised again, need matrix instructions that only some GPUs have.
"""

from __future__ import annotations

from collections.abc import Callable

from ..dtypes import DataType
from ..errors import UnsupportedError, expected, unsupported
from ..ir.fusion import Fusion
from ..ir.scalars import ONE
from ..ir.vals import TensorView, Val
from .library_builders import grouped_product, matmul
from .pointwise import Argument, as_tensor, cast_tensor, pointwise

Scaled = tuple[TensorView, TensorView | None, TensorView | None]

_NEEDS = "scales of blocks need 4-bit or 8-bit matrix instructions (NVIDIA sm_100)"


def scaled_mm(
    fusion: Fusion,
    mat1: Val,
    mat2: Val,
    scale1: Val,
    scale2: Val,
    alpha: Argument | None = None,
    bias: Val | None = None,
    beta: Argument | None = None,
    dtype: DataType = DataType.BFloat16,
    output_block_scale_size: int = 0,
    output_block_scale_dtype: DataType = DataType.BFloat16,
    output_gamma: bool = False,
) -> Scaled:
    """(alpha * (mat1 * scale1) @ (mat2 * scale2) + beta * bias, None, None), in `dtype`."""
    _require_plain("scaled_mm", output_block_scale_size, output_gamma)
    operands = _scaled_operands(fusion, "scaled_mm", (mat1, scale1), (mat2, scale2))
    product = matmul(fusion, *operands)
    return _result(fusion, product, alpha, bias, beta, dtype), None, None


def grouped_mm(
    fusion: Fusion,
    mat1: Val,
    mat2: Val,
    offsets: Val,
    scale1: Val | None = None,
    scale2: Val | None = None,
    alpha: Argument | None = None,
    bias: Val | None = None,
    beta: Argument | None = None,
    dtype: DataType = DataType.BFloat16,
    output_block_scale_size: int = 0,
    output_block_scale_dtype: DataType = DataType.BFloat16,
    output_gamma: bool = False,
) -> TensorView | Scaled:
    """A product for each group; with scales, what `scaled_mm` returns.

    Groups of two matrices of rank 2 are parts of what is summed; scales of rank 3 are then those of
    each group.
    """
    if scale1 is None or scale2 is None:
        return grouped_product(fusion, mat1, mat2, offsets)
    _require_plain("grouped_mm", output_block_scale_size, output_gamma)
    first, second, left, right = (
        as_tensor(fusion, each, "grouped_mm") for each in (mat1, mat2, scale1, scale2)
    )
    if first.ndim == second.ndim == 2 and left.ndim == right.ndim == 3:
        for factor, summed in ((left, -1), (right, -2)):
            _check_scale("grouped_mm", factor, summed, is_of_rows=True)
        first, second = (cast_tensor(fusion, m, DataType.Float) for m in (first, second))
        made: Val = grouped_product(fusion, first, second, offsets)
        for factor in (left, right):
            made = pointwise(fusion, "mul", made, factor)
        product = as_tensor(fusion, made, "grouped_mm")
    else:
        operands = _scaled_operands(fusion, "grouped_mm", (first, left), (second, right))
        product = grouped_product(fusion, *operands, offsets)
    return _result(fusion, product, alpha, bias, beta, dtype), None, None


def _require_plain(op: str, block_size: int, has_gamma: bool) -> None:
    if block_size or has_gamma:
        what = "a result without scales on this device"
        raise UnsupportedError(expected(op, what, "one that is quantised", _NEEDS))


def _scaled_operands(
    fusion: Fusion, op: str, first: tuple[Val, Val], second: tuple[Val, Val]
) -> tuple[TensorView, TensorView]:
    """Both operands in Float, multiplied by their scales."""
    return _scaled(fusion, op, *first, -1), _scaled(fusion, op, *second, -2)


def _scaled(fusion: Fusion, op: str, operand: Val, scale: Val, summed: int) -> TensorView:
    """operand * scale in Float; a scale has one element along the dimension that is summed."""
    tensor, factor = as_tensor(fusion, operand, op), as_tensor(fusion, scale, op)
    _check_scale(op, factor, summed, is_of_rows=factor.ndim == tensor.ndim)
    wide = cast_tensor(fusion, tensor, DataType.Float)
    return as_tensor(fusion, pointwise(fusion, "mul", wide, factor), op)


def _check_scale(op: str, factor: TensorView, summed: int, *, is_of_rows: bool) -> None:
    """UnsupportedError for scales of blocks of what is summed."""
    is_whole = all(axis.size is ONE for axis in factor.axes)
    if not is_whole and not (is_of_rows and factor.axes[summed].size is ONE):
        shape = [str(axis.size) for axis in factor.axes]
        what = f"a scale of the tensor, or with size 1 in dimension {summed}, on this device"
        raise UnsupportedError(expected(op, what, f"[{', '.join(shape)}]", _NEEDS))


def _result(
    fusion: Fusion,
    product: TensorView,
    alpha: Argument | None,
    bias: Val | None,
    beta: Argument | None,
    dtype: DataType,
) -> TensorView:
    """alpha * product + beta * bias in a dtype."""
    made: Val = product
    if alpha is not None:
        made = pointwise(fusion, "mul", made, alpha)
    if bias is not None:
        added: Val = bias if beta is None else pointwise(fusion, "mul", bias, beta)
        made = pointwise(fusion, "add", made, added)
    return cast_tensor(fusion, as_tensor(fusion, made, "scaled_mm"), dtype)


# What no device that pyfuser runs on can compute, and what it needs.
_DEVICE_ONLY = {
    "cutlass_nvfp4_grouped_mm": "4-bit matrix instructions (NVIDIA sm_100) and CUTLASS",
    "nv_block_quantize": "4-bit floats (NVIDIA sm_100)",
    "nv_grouped_block_quantize": "4-bit floats (NVIDIA sm_100)",
    "preprocess_grouped_matmul_input_sf": "the scale layout of 4-bit products (NVIDIA sm_100)",
}


def _needing(name: str, needs: str) -> Callable[..., TensorView]:
    def refuse(fusion: Fusion, *arguments: object, **keywords: object) -> TensorView:
        raise UnsupportedError(unsupported(name, needs))

    refuse.__doc__ = f"Not supported on this device: needs {needs}."
    return refuse


DEVICE_ONLY: dict[str, Callable[..., TensorView]] = {
    name: _needing(name, needs) for name, needs in _DEVICE_ONLY.items()
}
