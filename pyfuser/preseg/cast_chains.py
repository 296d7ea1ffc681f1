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

from ..dtypes import DataType, is_floating
from ..ir.exprs import Expr, PointwiseOp
from ..ir.fusion import Fusion
from ..ir.vals import TensorView
from .rewriting import Rewriter, rewrite

# (largest binary exponent, significant bits, has a sign) of the values that a type holds exactly.
# Sources: IEEE 754 for the floating types; every value of an n-bit integer has at most n bits.
_RANGE = {
    DataType.Bool: (1, 1, False),
    DataType.UInt8: (8, 8, False),
    DataType.Int8: (8, 7, True),
    DataType.Int16: (16, 15, True),
    DataType.Int32: (32, 31, True),
    DataType.Int: (64, 63, True),
    DataType.UInt64: (64, 64, False),
    DataType.Float8_e4m3fn: (9, 4, True),
    DataType.Float8_e5m2: (16, 3, True),
    DataType.Half: (16, 11, True),
    DataType.BFloat16: (128, 8, True),
    DataType.Float: (128, 24, True),
    DataType.Double: (1024, 53, True),
}


def cast_chains(fusion: Fusion) -> Fusion:
    """Drops casts and sets without effect."""
    return rewrite(fusion, _rule)


def holds_every_value(target: DataType, source: DataType) -> bool:
    """True if converting from `source` to `target` loses nothing."""
    if target not in _RANGE or source not in _RANGE:
        return False
    if is_floating(source) and not is_floating(target):
        return False
    (wide, bits, sign), (narrow, source_bits, source_sign) = _RANGE[target], _RANGE[source]
    return wide >= narrow and bits >= source_bits and (sign or not source_sign)


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
    while isinstance(tensor.expr, PointwiseOp) and tensor.expr.op == "cast":
        source = tensor.expr.inputs[0]
        assert isinstance(source, TensorView)
        if not holds_every_value(tensor.dtype, source.dtype):
            break
        # Out of range, the two floating types may convert to an integer differently.
        if is_floating(source.dtype) and not is_floating(target):
            break
        tensor = source
    return tensor
