"""Identities: operations with a constant whose result is exactly their other operand.

x * 1 and x / 1 for every type; x + 0 and x - 0 for integers only (-0.0 + 0 is 0.0); a negation
undone by another; magnitudes of unsigned integers.  Runs after cast_chains, so that the operand has
its final type, and before common_subexpressions, which then sees one value instead of two.

Before:
    T1_l_float[iS1{i0}] = mul(T0_g_float[iS0{i0}], 1.0)
    T2_g_float[iS2{i0}] = exp(T1_l_float[iS1{i0}])
After:
    T2_g_float[iS2{i0}] = exp(T0_g_float[iS0{i0}])
"""

from __future__ import annotations

from ..dtypes import is_integer, is_unsigned
from ..ir.exprs import Expr, PointwiseOp
from ..ir.fusion import Fusion
from ..ir.vals import TensorView, Val
from .rewriting import Rewriter, is_constant, rewrite, same_shape


def identities(fusion: Fusion) -> Fusion:
    """Replaces results by the operand they equal."""
    return rewrite(fusion, _rule)


def _rule(rewriter: Rewriter, expr: Expr) -> None:
    same = _equal_operand(expr) if isinstance(expr, PointwiseOp) else None
    output = expr.output
    if (
        isinstance(same, TensorView)
        and isinstance(output, TensorView)
        and same.dtype is output.dtype
        and same_shape(same, output)
        and output.domain.allocation is None
    ):
        rewriter.replace(output, same)
    else:
        rewriter.emit(expr)


def _equal_operand(expr: PointwiseOp) -> Val | None:
    """The operand that equals the result in elements, shape and dtype."""
    match expr.op, expr.inputs:
        case ("mul" | "div", (x, one)) if is_constant(one, 1):
            return x
        case ("mul", (one, x)) if is_constant(one, 1):
            return x
        case ("add" | "sub", (x, zero)) if is_constant(zero, 0) and is_integer(x.dtype):
            return x
        case ("add", (zero, x)) if is_constant(zero, 0) and is_integer(x.dtype):
            return x
        case ("neg", (x,)) if isinstance(x.expr, PointwiseOp) and x.expr.op == "neg":
            return x.expr.inputs[0]
        case (("abs" | "relu"), (x,)) if is_unsigned(x.dtype):
            return x
    return None
