"""Facts of the op table about expressions: the cost of recomputing them, and whether one may."""

from __future__ import annotations

from ..ir.exprs import (
    BroadcastOp,
    ExpandOp,
    Expr,
    FullOp,
    IotaOp,
    LibraryOp,
    PointwiseOp,
    SqueezeOp,
)
from ..ops.library_ops import LIBRARY_OPS
from ..ops.table import OPS


def is_expensive(expr: Expr) -> bool:
    """True for a pointwise operation whose result is better kept than recomputed."""
    return isinstance(expr, PointwiseOp) and OPS[expr.op].is_expensive


def is_repeatable(expr: Expr) -> bool:
    """False for an operation that must be computed once: its numbers are random."""
    if isinstance(expr, LibraryOp):
        return LIBRARY_OPS[expr.op].is_repeatable
    return not isinstance(expr, PointwiseOp) or OPS[expr.op].is_repeatable


def is_copy(expr: Expr) -> bool:
    """True if elements are moved unchanged, whatever their dtype: nothing is computed."""
    return isinstance(expr, PointwiseOp) and OPS[expr.op].is_copy


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
            return row.cost if row.is_repeatable and not row.is_expensive else None
        case _:
            return None
