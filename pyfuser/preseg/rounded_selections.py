"""Rounded selections: relu, maximum, where and their like round their result, not their operands.

Rounding keeps the order and the sign of numbers, so the relu of a number that is rounded to half
precision is the relu of the number, rounded; where a graph rounds before and after, once is enough.
Only if nothing else reads the result: it has its unrounded value then.  Runs after cast_chains,
which leaves only conversions that round.

Before:
    T1_l_float[iS1{i0}] = neg(T0_g_float[iS0{i0}])
    T2_l___bfloat[iS2{i0}] = cast(T1_l_float[iS1{i0}])
    T3_l_float[iS3{i0}] = cast(T2_l___bfloat[iS2{i0}])
    T4_l_float[iS4{i0}] = relu(T3_l_float[iS3{i0}])
    T5_g___bfloat[iS5{i0}] = cast(T4_l_float[iS4{i0}])
After:
    T1_l_float[iS1{i0}] = neg(T0_g_float[iS0{i0}])
    T2_l___bfloat[iS2{i0}] = cast(T1_l_float[iS1{i0}])
    T3_l_float[iS3{i0}] = cast(T2_l___bfloat[iS2{i0}])
    T4_l_float[iS4{i0}] = relu(T1_l_float[iS1{i0}])
    T5_g___bfloat[iS5{i0}] = cast(T4_l_float[iS4{i0}])
"""

from __future__ import annotations

from typing import TypeGuard

from ..dtypes import DataType
from ..ir.exprs import Expr, PointwiseOp
from ..ir.fusion import Fusion
from ..ir.vals import Val
from ..ops.table import OPS
from .rewriting import Rewriter, is_cast, rewrite
from .roundings import ORDERED, rounded_value


def rounded_selections(fusion: Fusion) -> Fusion:
    """Rounds what is selected, once."""
    return rewrite(fusion, _rule)


def _rule(rewriter: Rewriter, expr: Expr) -> None:
    if is_cast(expr) and expr.output.dtype in ORDERED:
        selected, dtype = expr.inputs[0], expr.output.dtype
        if all(is_cast(r) and r.output.dtype is dtype for r in selected.uses_list):
            _select_unrounded(rewriter, selected, dtype)
    rewriter.emit(expr)


def _select_unrounded(rewriter: Rewriter, selected: Val, dtype: DataType) -> None:
    """Gives a selection, and those that it alone reads, operands that aren't rounded."""
    expr = selected.expr
    is_kept = selected.dtype is not DataType.Float or rewriter.is_output(selected)
    if is_kept or not _is_selection(expr):
        return
    for operand in expr.inputs:
        if operand.uses_list == [expr]:
            _select_unrounded(rewriter, operand, dtype)
    expr.inputs = tuple(rounded_value(operand, dtype) or operand for operand in expr.inputs)


def _is_selection(expr: Expr | None) -> TypeGuard[PointwiseOp]:
    """True if a result grows with each operand or changes its sign, or is one of the operands."""
    return isinstance(expr, PointwiseOp) and (expr.op == "where" or OPS[expr.op].keeps_values)
