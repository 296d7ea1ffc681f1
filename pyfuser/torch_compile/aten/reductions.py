"""Reductions, softmax and its gradients.

Half-precision types are accumulated in Float and not rounded before an output; integers and Bool
sum in Int. Element counts come from the sizes of the operand, so a mean contains no number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ...dtypes import DataType
from .pointwise import truth
from .region_builder import Call, meta_of
from .term import Term
from .translation import Build, Table, Translation

aten = torch.ops.aten


def dims_of(dims: Any) -> Sequence[int] | None:
    """The `dim` argument of aten: None and an empty list are all."""
    if isinstance(dims, int):
        return [dims]
    return list(dims) if dims else None


def _sum(call: Call, x: Any, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> Term:
    return call.held(x, call.dtype).sum(dims_of(dims), keepdim)


def _sum_all(call: Call, x: Any, dtype: Any = None) -> Term:
    return _sum(call, x)


def _mean(call: Call, x: Any, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> Term:
    return call.held(x, call.dtype).mean(dims_of(dims), keepdim)


def _mean_all(call: Call, x: Any, dtype: Any = None) -> Term:
    return _mean(call, x)


def _prod(call: Call, x: Any, dim: int, keepdim: bool = False, dtype: Any = None) -> Term:
    return call.held(x, call.dtype).reduced("prod", [dim], keepdim)


def _prod_all(call: Call, x: Any, dtype: Any = None) -> Term:
    return call.held(x, call.dtype).reduced("prod", None)


def _extremum(row: str) -> Build:
    def build(call: Call, x: Any, dims: Any = None, keepdim: bool = False) -> Term:
        return call.held(x).reduced(row, dims_of(dims), keepdim)

    return build


def _truths(row: str) -> Build:
    """any is the maximum of the truth values, all the minimum."""

    def build(call: Call, x: Any, dims: Any = None, keepdim: bool = False) -> Term:
        return truth(call, x).reduced(row, dims_of(dims), keepdim)

    return build


def _correction(correction: Any) -> Any:
    return 1 if correction is None else correction


def _moments(call: Call, x: Any, dims: Any, correction: Any, keepdim: bool) -> tuple[Term, Term]:
    return call.held(x).moments(dims_of(dims), _correction(correction), keepdim)


def _var(call: Call, x: Any, dims: Any, correction: Any, keepdim: bool) -> Term:
    return _moments(call, x, dims, correction, keepdim)[0]


def _deviation(call: Call, x: Any, dims: Any, correction: Any, keepdim: bool) -> tuple[Term, Term]:
    """(standard deviation, mean), from moments in Double: a variance that is too large or
    small for Float may have a root that isn't.  Eager computes in Double as well."""
    wide = call.held(x).cast(DataType.Double)
    variance, mean = wide.moments(dims_of(dims), _correction(correction), keepdim)
    return variance.op("sqrt").cast(call.dtype), mean.cast(call.dtype)


def _std(call: Call, x: Any, dims: Any, correction: Any, keepdim: bool) -> Term:
    return _deviation(call, x, dims, correction, keepdim)[0]


def _var_mean(call: Call, x: Any, dims: Any, correction: Any, keepdim: bool) -> tuple[Term, Term]:
    return _moments(call, x, dims, correction, keepdim)


def _logsumexp(call: Call, x: Any, dims: Any, keepdim: bool = False) -> Term:
    term, chosen = call.held(x, call.dtype), dims_of(dims)
    highest = term.reduced("max", chosen, keepdim=True)
    # An infinite maximum would give inf - inf.
    shift = highest.op("abs").equals(math.inf).choose(0.0, highest)
    total = (term - shift).op("exp").sum(chosen, keepdim)
    if not keepdim:
        flat = term.reduced("max", chosen)
        shift = flat.op("abs").equals(math.inf).choose(0.0, flat)
    return total.op("log") + shift


def _vector_norm(
    call: Call, x: Any, order: Any, dims: Any, keepdim: bool = False, dtype: Any = None
) -> Term:
    term, chosen = call.held(x, call.dtype), dims_of(dims)
    if order == 2:
        return (term * term).sum(chosen, keepdim).op("sqrt")
    if order == 0:
        counted = term.differs(0).cast(call.dtype)
        return counted.sum(chosen, keepdim)
    size = term.op("abs")
    if order == 1:
        return size.sum(chosen, keepdim)
    if abs(order) == math.inf:
        return size.reduced("max" if order > 0 else "min", chosen, keepdim)
    powers = size.op("pow", call.constant(float(order)))
    return powers.sum(chosen, keepdim).op("pow", call.constant(1.0 / order))


def _count_nonzero(call: Call, x: Any, dims: Any = None) -> Term:
    return truth(call, x).cast(DataType.Int).sum(dims_of(dims))


def _softmax(call: Call, x: Any, dim: int, half_to_float: bool) -> Term:
    term = call.held(x, call.dtype)
    exponentials = (term - term.reduced("max", [dim], keepdim=True)).op("exp")
    return exponentials / exponentials.sum([dim], keepdim=True)


def _safe_softmax(call: Call, x: Any, dim: int, dtype: Any = None) -> Term:
    """A fully masked row, all minus infinity, gives zeros."""
    term = call.held(x, call.dtype)
    highest = term.reduced("max", [dim], keepdim=True)
    exponentials = (term - highest).op("exp")
    result = exponentials / exponentials.sum([dim], keepdim=True)
    return highest.equals(-math.inf).choose(0.0, result)


def _log_softmax(call: Call, x: Any, dim: int, half_to_float: bool) -> Term:
    term = call.held(x, call.dtype)
    shifted = term - term.reduced("max", [dim], keepdim=True)
    return shifted - shifted.op("exp").sum([dim], keepdim=True).op("log")


def _softmax_backward(call: Call, grad: Any, y: Any, dim: int, input_dtype: Any) -> Term:
    slope, term = call.held(grad), call.held(y)
    return (slope - (slope * term).sum([dim], keepdim=True)) * term


def _log_softmax_backward(call: Call, grad: Any, y: Any, dim: int, input_dtype: Any) -> Term:
    slope, term = call.held(grad), call.held(y)
    return slope - term.op("exp") * slope.sum([dim], keepdim=True)


def _some_elements(node: Any, x: Any, dims: Any = None, *rest: Any) -> str | None:
    """A greatest element needs elements: torch raises if there are none."""
    shape = meta_of(x).shape
    empty = any(isinstance(size, int) and size == 0 for size in shape)
    return "no elements" if empty else None


def _float_input(node: Any, x: Any, *rest: Any) -> str | None:
    dtype = meta_of(x).dtype
    return None if dtype.is_floating_point else f"an operand of {dtype}"


def _known_correction(
    node: Any, x: Any, dims: Any, correction: Any, keepdim: bool = False
) -> str | None:
    if not isinstance(_correction(correction), (int, float)):
        return "a correction that changes"
    return _float_input(node, x)


def _known_order(node: Any, x: Any, order: Any, *rest: Any) -> str | None:
    """A norm's order decides what is computed; dynamic shapes may make it symbolic."""
    return _float_input(node, x) if isinstance(order, (int, float)) else "a symbolic order"


def _row(
    build: Build, keeps_values: bool = False, check: Any = None, exact: tuple[int, ...] = ()
) -> Translation:
    return Translation(build, "reduction", check, keeps_values, exact)


TRANSLATIONS: Table = {
    aten.sum.dim_IntList: _row(_sum),
    aten.sum.default: _row(_sum_all),
    aten.mean.dim: _row(_mean),
    aten.mean.default: _row(_mean_all),
    aten.prod.dim_int: _row(_prod),
    aten.prod.default: _row(_prod_all),
    aten.amax.default: _row(_extremum("max"), True, _some_elements),
    aten.amin.default: _row(_extremum("min"), True, _some_elements),
    aten.max.default: _row(_extremum("max"), True, _some_elements),
    aten.min.default: _row(_extremum("min"), True, _some_elements),
    aten.any.default: _row(_truths("max"), exact=(0,)),
    aten.any.dim: _row(_truths("max"), exact=(0,)),
    aten.any.dims: _row(_truths("max"), exact=(0,)),
    aten.all.default: _row(_truths("min"), exact=(0,)),
    aten.all.dim: _row(_truths("min"), exact=(0,)),
    aten.all.dims: _row(_truths("min"), exact=(0,)),
    aten.var.correction: _row(_var, check=_known_correction),
    aten.std.correction: _row(_std, check=_known_correction),
    aten.var_mean.correction: _row(_var_mean, check=_known_correction),
    aten.std_mean.correction: _row(_deviation, check=_known_correction),
    aten.logsumexp.default: _row(_logsumexp, check=_some_elements),
    aten.linalg_vector_norm.default: _row(_vector_norm, check=_known_order),
    aten.count_nonzero.default: _row(_count_nonzero, exact=(0,)),
    aten.count_nonzero.dim_IntList: _row(_count_nonzero, exact=(0,)),
    aten._softmax.default: _row(_softmax, check=_some_elements),
    aten._safe_softmax.default: _row(_safe_softmax, check=_some_elements),
    aten._log_softmax.default: _row(_log_softmax, check=_some_elements),
    aten._softmax_backward_data.default: _row(_softmax_backward),
    aten._log_softmax_backward_data.default: _row(_log_softmax_backward),
}
