"""Which expressions may refuse values, and the error for the first value they refuse.

Built on the table: lowering and the passes call `may_refuse`; the evaluator calls `check_op` and
`check_index` on the tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..dtypes import DataType, to_torch
from ..errors import expected
from ..ir.exprs import Expr, GatherOp, IndexedWrite, PointwiseOp
from ..ir.vals import Scalar, TensorView
from .dtype_rules import Resolution
from .op import Number, Op
from .pointwise import resolve_expr
from .table import OPS, refused
from .value_checks import ZERO_DIVISION, index_error


def may_refuse(expr: Expr) -> bool:
    """True if the values of an expression's operands may make it raise."""
    if isinstance(expr, GatherOp | IndexedWrite):
        return True
    if not isinstance(expr, PointwiseOp) or not isinstance(expr.output, TensorView):
        return False
    check = OPS[expr.op].check
    if check is None or not check.applies(resolve_expr(expr).compute[-1]):
        return False
    divisor = expr.inputs[-1]
    is_known = check is ZERO_DIVISION and isinstance(divisor, Scalar) and bool(divisor.constant)
    return not is_known


def check_op(op: Op, operands: Sequence[torch.Tensor], resolution: Resolution) -> None:
    """Raises torch's error for the first elements that a row's check refuses."""
    check = op.check
    if check is None or not check.applies(resolution.compute[-1]):
        return

    def emit(
        row: Op, values: tuple[torch.Tensor, ...], compute: DataType, result: DataType
    ) -> torch.Tensor:
        return row.reference(*values)

    def constant(number: Number, dtype: DataType) -> torch.Tensor:
        return torch.tensor(number, dtype=to_torch(dtype), device=operands[0].device)

    bad = refused(op, operands, resolution, emit, constant)
    if not bool(bad.any()):
        return
    shape = sum(operands[1:], operands[0]).shape
    place = int(bad.expand(shape).flatten().to(torch.uint8).argmax())
    raise check.error(op.name, tuple(x.expand(shape).flatten()[place].item() for x in operands))


def check_index(expr: GatherOp | IndexedWrite, index: torch.Tensor, size: int) -> torch.Tensor:
    """The index counted from the front; raises torch's error for the first one out of range."""
    lowest = -size if expr.wraps else 0
    bad = (index < lowest) | (index >= size)
    if bool(bad.any()):
        place = int(bad.flatten().to(torch.uint8).argmax())
        rank = expr.tensor_inputs[0].ndim
        raise index_error(expr.op, int(index.flatten()[place]), expr.dim, size, rank)
    return torch.where(index < 0, index + size, index) if expr.wraps else index


def check_shorter(expr: IndexedWrite, base: Sequence[int], values: Sequence[int]) -> None:
    """Raises torch's error if there are more values than the base has elements beside the index."""
    for dim, axis in enumerate(expr.base_axes):
        if axis is not None and values[axis] > base[dim]:
            what = f"an index of at most {base[dim]} in dimension {dim}"
            raise RuntimeError(expected(expr.op, what, values[axis]))
