"""Facts of the op table about expressions: the cost of recomputing them, and whether one may."""

from __future__ import annotations

from ..dtypes import size_in_bytes
from ..ir.exprs import (
    BroadcastOp,
    ExpandOp,
    Expr,
    FullOp,
    IotaOp,
    LibraryOp,
    PointwiseOp,
    RandomOp,
    SqueezeOp,
)
from ..ops.library_ops import LIBRARY_OPS
from ..ops.table import OPS


def is_expensive(expr: Expr) -> bool:
    """True for operations on elements whose result is better kept than recomputed."""
    if isinstance(expr, RandomOp):
        return True
    return isinstance(expr, PointwiseOp) and OPS[expr.op].is_expensive


def is_root(expr: Expr) -> bool:
    """True for square roots, which are cheap next to a read from memory but not next to a cache."""
    return isinstance(expr, PointwiseOp) and expr.op in ("sqrt", "rsqrt")


def is_repeatable(expr: Expr) -> bool:
    """False for a cut, of which each one counts, and for what draws its own numbers."""
    if isinstance(expr, LibraryOp):
        return LIBRARY_OPS[expr.op].is_repeatable
    return not is_cut(expr)


def is_copy(expr: Expr | None) -> bool:
    """True if elements are moved unchanged, whatever their dtype, to memory of their own."""
    return isinstance(expr, PointwiseOp) and OPS[expr.op].is_copy


def is_narrowing(expr: Expr) -> bool:
    """True for a conversion to a smaller dtype: its result takes less memory than its operand."""
    is_cast = isinstance(expr, PointwiseOp) and expr.op == "cast"
    return is_cast and size_in_bytes(expr.output.dtype) < size_in_bytes(expr.inputs[0].dtype)


def is_cut(expr: Expr) -> bool:
    """True if the readers of the result must be in another kernel than its operands."""
    return isinstance(expr, PointwiseOp) and OPS[expr.op].is_cut


def recomputation_cost(expr: Expr) -> int | None:
    """The cost of recomputing an expression, in additions per element; None if too expensive."""
    match expr:
        case BroadcastOp() | ExpandOp() | SqueezeOp() | FullOp() | IotaOp():
            return 0
        case PointwiseOp():
            row = OPS[expr.op]
            return None if row.is_cut or row.is_expensive else row.cost
        case _:
            return None
