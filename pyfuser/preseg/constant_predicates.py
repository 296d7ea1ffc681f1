"""Constant predicates: those that have the same result for every value of their operand's dtype.

No integer is infinite or NaN, all are finite, and unsigned ones aren't below 0; every real number
is real.  The result becomes a `full`, so no kernel reads the operand for it.  Runs after
cast_chains, so that the operand has its final type.

Before:
    T1_l_bool[iS1{i0}] = isnan(T0_g_int64_t[iS0{i0}])
    T2_g_bool[iS2{i0}] = logical_not(T1_l_bool[iS1{i0}])
After:
    T1_l_bool[iS1{i0}] = full(False)
    T2_g_bool[iS2{i0}] = logical_not(T1_l_bool[iS1{i0}])
"""

from __future__ import annotations

from ..dtypes import is_unsigned
from ..ir.exprs import Expr, PointwiseOp
from ..ir.fusion import Fusion
from ..ir.vals import TensorView
from ..ops.dtype_rules import DtypeRule
from ..ops.op import Number
from ..ops.table import OPS, constant_result
from .rewriting import Rewriter, fill, is_constant, rewrite


def constant_predicates(fusion: Fusion) -> Fusion:
    """Fills instead of comparing where the operand's dtype decides."""
    return rewrite(fusion, _rule)


def _rule(rewriter: Rewriter, expr: Expr) -> None:
    answer = _answer(expr) if isinstance(expr, PointwiseOp) else None
    output = expr.output
    if answer is not None and isinstance(output, TensorView):
        fill(rewriter, output, answer)
    else:
        rewriter.emit(expr)


def _answer(expr: PointwiseOp) -> Number | None:
    """The only result that the predicate can have, if there is just one."""
    match expr.op, expr.inputs:
        case "signbit", (x,) if is_unsigned(x.dtype):
            return False
        case (("lt" | "ge"), (x, zero)) if is_unsigned(x.dtype) and is_constant(zero, 0):
            return expr.op == "ge"
        case (("gt" | "le"), (zero, x)) if is_unsigned(x.dtype) and is_constant(zero, 0):
            return expr.op == "le"
        case name, (x,) if OPS[name].rule is DtypeRule.PREDICATE:
            return constant_result(OPS[name], [x.dtype])
    return None
