"""What kernels can compute, by dtype and by the op table: the part that most targets share."""

from __future__ import annotations

from ..dtypes import KERNEL_DTYPES
from ..ir.exprs import Expr, PointwiseOp
from ..ops.table import OPS


def unsupported(expr: Expr) -> str | None:
    """Why no kernel can compute an expression (a dtype, an op without a spelling), or None."""
    for tensor in (*expr.tensor_inputs, *expr.tensor_outputs):
        if tensor.dtype not in KERNEL_DTYPES:
            return f"T{tensor.name} has {tensor.dtype}, which kernels don't compute"
    if isinstance(expr, PointwiseOp) and (expr.op not in OPS or not OPS[expr.op].in_kernels):
        return f"kernels don't compute {expr.op}"
    return None
