"""Narrow reads: a computed tensor of which elements are read and then cast down is cast down first.

A read at computed positions that could not be moved to the inputs has to read memory: its source is
stored.  If everything between the source and a cast to a narrower dtype only moves elements, the
source is stored in the narrower one, and half of the bytes are moved; often it is an output anyway.
Rounding an element before it is moved, or after, gives the same.  Runs after the passes that move
reads; a cast that the fusion has already is read, for common_subexpressions would keep an output of
its own beside an earlier one.

Before:
    T1_l_float[iS1{i0}] = exp(T0_g_float[iS0{i0}])
    T3_l_float[iS3{i1}] = gather(T1_l_float[iS1{i0}], T2_g_int64_t[iS2{i1}], (None,), (0,))
    T4_g___half[iS4{i1}] = cast(T3_l_float[iS3{i1}])
After:
    T1_l_float[iS1{i0}] = exp(T0_g_float[iS0{i0}])
    T5_l___half[iS5{i0}] = cast(T1_l_float[iS1{i0}])
    T3_l___half[iS3{i1}] = gather(T5_l___half[iS5{i0}], T2_g_int64_t[iS2{i1}], (None,), (0,))
    T4_g___half[iS4{i1}] = set(T3_l___half[iS3{i1}])
"""

from __future__ import annotations

import torch

from ..analysis.costs import is_cut, is_narrowing
from ..dtypes import DataType, is_floating, to_torch
from ..ir.exprs import Expr, GatherOp, PermuteOp, PointwiseOp, SqueezeOp, WindowOp
from ..ir.fusion import Fusion
from ..ir.vals import Scalar, TensorView, Val
from ..ops.pointwise import copy_axis, new_tensor
from .cast_chains import origin
from .move_windows import constant_like
from .rewriting import Rewriter, has_natural_layout, rewrite


def narrow_reads(fusion: Fusion) -> Fusion:
    """Gives what is moved between a stored tensor and a cast the cast's dtype."""
    casts = {expr: _moved(expr) for expr in fusion.exprs if _is_down_cast(expr)}
    dtypes = {tensor: cast.output.dtype for cast, moved in casts.items() for tensor in moved}
    if not dtypes:
        return fusion
    narrower = _Narrower()

    def rule(rewriter: Rewriter, expr: Expr) -> None:
        output = expr.outputs[0]
        if isinstance(output, TensorView) and output in dtypes:
            narrower.narrow(rewriter, expr, output, dtypes[output])
        elif casts.get(expr):
            rewriter.replace_or_copy(expr.tensor_outputs[0], expr.tensor_inputs[0])
        elif expr not in narrower.emitted:
            rewriter.emit(expr)

    return rewrite(fusion, rule)


class _Narrower:
    """The narrow values of one fusion; `emitted` are casts that come earlier than they did."""

    def __init__(self) -> None:
        self.emitted: set[Expr] = set()
        self._made: dict[tuple[TensorView, DataType], TensorView] = {}

    def narrow(self, rewriter: Rewriter, expr: Expr, output: TensorView, dtype: DataType) -> None:
        """The expression over narrow operands."""
        moved = set(_values(expr))
        expr.inputs = tuple(
            self._value(rewriter, value, dtype) if value in moved else value
            for value in expr.inputs
        )
        output.dtype = dtype
        rewriter.emit(expr)

    def _value(self, rewriter: Rewriter, value: Val, dtype: DataType) -> Val:
        if isinstance(value, Scalar):
            assert isinstance(value.constant, bool | int | float)
            return constant_like(rewriter.fusion, dtype, value.constant)
        assert isinstance(value, TensorView)
        value = origin(value, dtype)
        if value.dtype is dtype:
            return value
        key = (value, dtype)
        if key not in self._made:
            self._made[key] = self._cast(rewriter, value, dtype)
        return self._made[key]

    def _cast(self, rewriter: Rewriter, value: TensorView, dtype: DataType) -> TensorView:
        """The tensor's cast that the fusion has, if any."""
        for reader in value.uses_list:
            if _is_down_cast(reader) and reader.inputs == (value,):
                made = reader.tensor_outputs[0]
                if made.dtype is dtype and has_natural_layout(made):
                    if reader not in rewriter.exprs:
                        rewriter.emit(reader)
                        self.emitted.add(reader)
                    return made
        axes = [copy_axis(rewriter.fusion, axis) for axis in value.axes]
        made = new_tensor(rewriter.fusion, axes, dtype)
        rewriter.emit(PointwiseOp((value,), (made,), "cast"))
        return made


def _is_down_cast(expr: Expr) -> bool:
    is_real = is_narrowing(expr) and isinstance(expr.inputs[0], TensorView)
    return is_real and is_floating(expr.inputs[0].dtype) and is_floating(expr.output.dtype)


def _moved(cast: Expr) -> list[TensorView]:
    """The tensors that a cast and reads of stored tensors only move; none without such a read."""
    found, is_stored = [], False
    waiting = [cast.tensor_inputs[0]]
    while waiting:
        tensor = waiting.pop()
        if not _only_moves(tensor, cast.output.dtype):
            continue
        assert tensor.expr is not None
        found.append(tensor)
        values = [value for value in _values(tensor.expr) if isinstance(value, TensorView)]
        if isinstance(tensor.expr, WindowOp | GatherOp):
            source = tensor.expr.source
            is_stored |= source is not None and source.expr is not None
        waiting += values
    return found if is_stored else []


def _only_moves(tensor: TensorView, dtype: DataType) -> bool:
    """True for a tensor with one reader and the elements of others, or numbers of this dtype.

    A read of a wide input isn't: it would have to be stored, cast, to be read.
    """
    expr = tensor.expr
    if expr is None or len(tensor.uses_list) != 1 or tensor in tensor.fusion.outputs:
        return False
    source = expr.source if isinstance(expr, WindowOp | GatherOp) else None
    if source is not None and source.expr is None and source.dtype is not dtype:
        return False
    values = _values(expr)
    return bool(values) and all(
        _is_exact(value, dtype)
        if isinstance(value, Scalar)
        else value.dtype in (tensor.dtype, dtype)
        for value in values
    )


def _values(expr: Expr) -> tuple[Val, ...]:
    """The operands whose elements an expression moves; none if it computes others."""
    match expr:
        case WindowOp() | PermuteOp() | SqueezeOp():
            return expr.inputs
        case GatherOp():
            return expr.inputs[:1]
        case PointwiseOp(op="where"):
            return expr.inputs[1:]
        case PointwiseOp(op="set") if not is_cut(expr):
            return expr.inputs
        case _:
            return ()


def _is_exact(value: Scalar, dtype: DataType) -> bool:
    """True for a constant that a cast to the dtype doesn't change."""
    constant = value.constant
    if not isinstance(constant, bool | int | float):
        return False
    return bool(torch.tensor(constant, dtype=to_torch(dtype)).item() == constant)
