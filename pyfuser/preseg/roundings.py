"""Numbers that are rounded to half precision and converted back, for the passes that avoid it."""

from __future__ import annotations

from ..dtypes import DataType
from ..ir.vals import TensorView, Val
from .rewriting import is_cast

# Rounding to these keeps the order of numbers: what is beyond their range becomes infinite.  The
# 8-bit types have NaN there.
ORDERED = (DataType.Half, DataType.BFloat16)


def rounded_value(value: Val, dtype: DataType | None = None) -> TensorView | None:
    """The float that was rounded to half precision, and is a float again; None for other values.

    With `dtype` only what was rounded to this dtype.
    """
    rounded = _operand_of_cast(value, DataType.Float)
    if rounded is None or rounded.dtype not in ORDERED or dtype not in (None, rounded.dtype):
        return None
    source = _operand_of_cast(rounded, rounded.dtype)
    return source if source is not None and source.dtype is DataType.Float else None


def _operand_of_cast(value: Val, dtype: DataType) -> TensorView | None:
    """What a tensor of a dtype is converted from, if it is a conversion."""
    if value.dtype is not dtype or not is_cast(value.expr):
        return None
    source = value.expr.inputs[0]
    return source if isinstance(source, TensorView) else None
