"""What kernels can compute, by dtype and by the op table: the part that most targets share."""

from __future__ import annotations

from ..dtypes import KERNEL_DTYPES
from ..ir.exprs import Expr, LibraryOp, PointwiseOp
from ..ops.op import Language
from ..ops.table import OPS


def unsupported(expr: Expr, language: Language) -> str | None:
    """Why no kernel in a language can compute an expression: a dtype, an op without a spelling.

    None if one can.
    """
    if isinstance(expr, LibraryOp):
        return f"{expr.op} is an operation of torch's library"
    for tensor in (*expr.tensor_inputs, *expr.tensor_outputs):
        if tensor.dtype not in KERNEL_DTYPES:
            return f"T{tensor.name} has {tensor.dtype}, which kernels don't compute"
    if not isinstance(expr, PointwiseOp):
        return None
    if expr.op not in OPS or not OPS[expr.op].is_spelled_in(language):
        return f"kernels don't compute {expr.op}"
    return None
