"""Scan builders: cumsum, cumprod, cummax and cummin, one row of the scans each.

The result has axes of its own, with the operand's sizes: an expanded axis has all its elements.
Sums and products of integers and Bool are Int, as torch's; a half-precision result isn't widened.
"""

from __future__ import annotations

from ..dtypes import COMPLEX, DataType, is_integer
from ..errors import DefinitionError, expected
from ..ir.exprs import ScanOp
from ..ir.fusion import Fusion
from ..ir.scalars import ONE
from ..ir.vals import TensorView, Val
from .library_builders import library_dim
from .pointwise import Argument, as_tensor, cast_tensor, new_tensor, pointwise
from .shape_builders import new_axis
from .table import REDUCTIONS, SCANS


def scan(
    op: str,
    fusion: Fusion,
    arg: Val,
    dim: int,
    init: Argument | None = None,
    reverse: bool = False,
) -> TensorView:
    """Each element combined with those before it along `dim`, and with `init`.

    With `reverse`, it is combined with those after it: flip, scan and flip.
    """
    tensor = as_tensor(fusion, arg, op)
    dim = library_dim(op, dim, tensor)
    reduction = REDUCTIONS[SCANS[op].reduction]
    if not reduction.widens and tensor.dtype in COMPLEX:
        raise DefinitionError(expected(op, "real numbers", tensor.dtype))
    is_whole = is_integer(tensor.dtype) or tensor.dtype is DataType.Bool
    dtype = DataType.Int if reduction.widens and is_whole else tensor.dtype
    made = tensor if tensor.dtype is dtype else cast_tensor(fusion, tensor, dtype)
    if tensor.ndim and tensor.axes[dim].size is not ONE:
        made = _scan(fusion, op, made, dim, reverse)
    elif tensor.ndim and op == "cumsum":
        made = _combined(fusion, "add", made, 0)  # torch starts from 0, which makes -0.0 0.0
    elif made is tensor:
        made = cast_tensor(fusion, made, dtype)
    return made if init is None else _combined(fusion, reduction.combine, made, init)


def _scan(fusion: Fusion, op: str, tensor: TensorView, dim: int, reverse: bool) -> TensorView:
    output = new_tensor(fusion, [new_axis(fusion, axis.size) for axis in tensor.axes], tensor.dtype)
    fusion.add_expr(ScanOp((tensor,), (output,), op, dim, reverse))
    return output


def _combined(fusion: Fusion, op: str, tensor: TensorView, value: Argument) -> TensorView:
    """op(tensor, value) in the tensor's dtype."""
    combined = pointwise(fusion, op, tensor, value)
    assert isinstance(combined, TensorView)
    is_same = combined.dtype is tensor.dtype
    return combined if is_same else cast_tensor(fusion, combined, tensor.dtype)
