"""Shared sigmoids: silu(x) is x times sigmoid(x) where that is computed anyway.

The gradient of a silu needs the sigmoid, and the backward pass of a gated unit the silu as well, to
multiply it with the other gradient.  Runs before cats_as_stacks, which asks what the parts of a cat
share.

Before:
    T1_l_float[iS1{i0}] = silu(T0_g_float[iS0{i0}])
    T2_l_float[iS2{i0}] = sigmoid(T0_g_float[iS0{i0}])
    T3_g_float[iS3{i0}] = add(T1_l_float[iS1{i0}], T2_l_float[iS2{i0}])
After:
    T4_l_float[iS4{i0}] = sigmoid(T0_g_float[iS0{i0}])
    T1_l_float[iS1{i0}] = mul(T0_g_float[iS0{i0}], T4_l_float[iS4{i0}])
    T3_g_float[iS3{i0}] = add(T1_l_float[iS1{i0}], T4_l_float[iS4{i0}])
"""

from __future__ import annotations

from ..dtypes import is_complex
from ..ir.exprs import Expr, PointwiseOp
from ..ir.fusion import Fusion
from ..ir.vals import TensorView, Val
from ..ops.pointwise import copy_axis, new_tensor
from .rewriting import Rewriter, rewrite


def shared_sigmoids(fusion: Fusion) -> Fusion:
    """Writes each silu beside a sigmoid of the same tensor as a product."""
    wanted = {expr.inputs[0] for expr in fusion.exprs if _is(expr, "sigmoid")}
    wanted &= {expr.inputs[0] for expr in fusion.exprs if _is(expr, "silu")}
    if not wanted:
        return fusion
    made: dict[Val, TensorView] = {}

    def rule(rewriter: Rewriter, expr: Expr) -> None:
        source = expr.inputs[0] if expr.inputs else None
        if not isinstance(source, TensorView) or source not in wanted:
            rewriter.emit(expr)
        elif _is(expr, "sigmoid"):
            output = expr.tensor_outputs[0]
            if source in made:
                rewriter.replace_or_copy(output, made[source])
                return
            rewriter.emit(expr)
            made[source] = output
        elif _is(expr, "silu"):
            if source not in made:
                axes = [copy_axis(rewriter.fusion, axis) for axis in source.axes]
                made[source] = new_tensor(rewriter.fusion, axes, source.dtype)
                rewriter.emit(PointwiseOp((source,), (made[source],), "sigmoid"))
            rewriter.emit(PointwiseOp((source, made[source]), expr.outputs, "mul"))
        else:
            rewriter.emit(expr)

    return rewrite(fusion, rule)


def _is(expr: Expr, op: str) -> bool:
    """True for this function of real numbers."""
    return isinstance(expr, PointwiseOp) and expr.op == op and not is_complex(expr.output.dtype)
