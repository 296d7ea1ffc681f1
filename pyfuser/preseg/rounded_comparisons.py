"""Rounded comparisons: a number that is rounded to half precision, and compared with a constant.

Rounding keeps the order of numbers, so the rounded number is at most a constant if the number is at
most the largest one that rounds so; no rounding is needed.  Masks and losses in bfloat16 compare
what is kept in float beside: the rounding would be for the comparison only.  Runs after
cast_chains, which leaves only conversions that round.

Before:
    T1_l_float[iS1{i0}] = neg(T0_g_float[iS0{i0}])
    T2_l___bfloat[iS2{i0}] = cast(T1_l_float[iS1{i0}])
    T3_l_float[iS3{i0}] = cast(T2_l___bfloat[iS2{i0}])
    T4_g_bool[iS4{i0}] = lt(T3_l_float[iS3{i0}], 1.0)
After:
    T1_l_float[iS1{i0}] = neg(T0_g_float[iS0{i0}])
    T2_l___bfloat[iS2{i0}] = cast(T1_l_float[iS1{i0}])
    T3_l_float[iS3{i0}] = cast(T2_l___bfloat[iS2{i0}])
    T4_g_bool[iS4{i0}] = le(T1_l_float[iS1{i0}], 0.9980468153953552)
"""

from __future__ import annotations

import functools
import math

import torch

from ..dtypes import DataType, to_torch
from ..ir.exprs import Expr, PointwiseOp
from ..ir.fusion import Fusion
from ..ir.vals import Scalar
from .rewriting import Rewriter, is_cast, rewrite
from .roundings import rounded_value

_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def rounded_comparisons(fusion: Fusion) -> Fusion:
    """Compares numbers before they are rounded."""
    return rewrite(fusion, _rule)


def _rule(rewriter: Rewriter, expr: Expr) -> None:
    if isinstance(expr, PointwiseOp) and expr.op in _MIRRORED:
        _compare_unrounded(rewriter, expr)
    rewriter.emit(expr)


def _compare_unrounded(rewriter: Rewriter, expr: PointwiseOp) -> None:
    op, (number, constant) = expr.op, expr.inputs
    if isinstance(number, Scalar):
        op, number, constant = _MIRRORED[op], constant, number
    value = constant.constant if isinstance(constant, Scalar) else None
    source = rounded_value(number)
    if source is None or number.expr is None or not isinstance(value, int | float):
        return
    rounded = number.expr.inputs[0]
    # Another kernel reads less if it has the rounded tensor.
    if rewriter.is_output(rounded) or not all(map(is_cast, rounded.uses_list)):
        return
    bound = largest_rounded_below(float(value), rounded.dtype, op in ("le", "gt"))
    if bound is not None:
        limit = rewriter.fusion.new_scalar(DataType.Float, constant=bound)
        expr.op = "le" if op in ("lt", "le") else "gt"
        expr.inputs = (source, limit)


@functools.lru_cache(maxsize=1024)
def largest_rounded_below(constant: float, dtype: DataType, or_equal: bool) -> float | None:
    """The largest float that, rounded to a half-precision dtype, is below the constant, or equal.

    None if there is none.  The constant is one of float, as kernels compare them.
    """
    limit = torch.tensor(constant, dtype=torch.float32)

    def is_below(place: int) -> bool:
        rounded = _float_at(place).to(to_torch(dtype)).float()
        return bool(rounded <= limit if or_equal else rounded < limit)

    low, high = -_INFINITE, _INFINITE  # the places of the infinities
    if math.isnan(constant) or not is_below(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if is_below(middle) else (low, middle - 1)
    return float(_float_at(low))


_INFINITE = 0x7F800000  # the bits of infinity


def _float_at(place: int) -> torch.Tensor:
    """The float that is so many places from zero in the order of floats."""
    bits = torch.tensor(abs(place), dtype=torch.int32).view(torch.float32)
    return bits if place >= 0 else -bits
