"""Cast chains: drops conversions and copies that change no value.

A conversion to a type that holds every value of its source, followed by another conversion, equals
the second one alone; float -> half -> float rounds and stays.  Copies (`set`) of tensors in their
own layout are dropped, `segment_set` is not.  Runs early: casts and copies would hide equal
expressions from common_subexpressions and broadcast-squeeze pairs from broadcast_squeeze.

Before:
    T1_l_float[iS1{i0}] = cast(T0_g___half[iS0{i0}])
    T2_l_double[iS2{i0}] = cast(T1_l_float[iS1{i0}])
    T3_g_double[iS3{i0}] = neg(T2_l_double[iS2{i0}])
After:
    T1_l_float[iS1{i0}] = cast(T0_g___half[iS0{i0}])
    T2_l_double[iS2{i0}] = cast(T0_g___half[iS0{i0}])
    T3_g_double[iS3{i0}] = neg(T2_l_double[iS2{i0}])
"""

from __future__ import annotations

from ..dtypes import DataType, holds_every_value, is_floating
from ..ir.exprs import Expr, PointwiseOp
from ..ir.fusion import Fusion
from ..ir.vals import TensorView
from .rewriting import Rewriter, is_cast, rewrite


def cast_chains(fusion: Fusion) -> Fusion:
    """Drops casts and sets without effect."""
    return rewrite(fusion, _rule)


def _rule(rewriter: Rewriter, expr: Expr) -> None:
    match expr:
        case PointwiseOp(op="cast" | "set", inputs=(TensorView() as source,)):
            output = expr.tensor_outputs[0]
            if expr.op == "cast":
                source = origin(source, output.dtype)
            if source.dtype is not output.dtype:
                expr.inputs = (source,)
                rewriter.emit(expr)
            else:
                rewriter.replace_or_copy(output, source)
        case _:
            rewriter.emit(expr)


def origin(tensor: TensorView, target: DataType) -> TensorView:
    """The tensor before lossless conversions that make no difference to `target`."""
    while is_cast(tensor.expr):
        source = tensor.expr.inputs[0]
        assert isinstance(source, TensorView)
        if not holds_every_value(tensor.dtype, source.dtype):
            break
        # Out of range, the two floating types may convert to an integer differently.
        if is_floating(source.dtype) and not is_floating(target):
            break
        tensor = source
    return tensor
