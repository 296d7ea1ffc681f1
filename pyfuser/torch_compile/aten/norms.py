"""Normalisations and their gradients: layer, RMS and batch norm, kept whole in the graph.

Statistics are computed in the held dtype (Float for half precision) from the operand's own sizes.
With xhat = (x - mean) * rstd over n elements and g the gradient times the weight, the gradient of
the input is rstd * (g - mean(g) - xhat * mean(g * xhat)); those of weight and bias are sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from ...dtypes import DataType
from .region_builder import Call, meta_of
from .sizes import size_key
from .term import Term
from .translation import Build, Table, Translation

aten = torch.ops.aten

Several = tuple[Term | None, ...]


def _held(call: Call, argument: Any) -> Term:
    """An operand in the dtype in which the result is computed."""
    return call.held(argument, call.dtype)


def _scaled(call: Call, term: Term, weight: Any, bias: Any, missing: Sequence[bool]) -> Term:
    """term * weight + bias; `missing` says which axes of the term the two lack."""
    if weight is not None:
        term = term * _held(call, weight).with_new_axes(missing)
    if bias is not None:
        term = term + _held(call, bias).with_new_axes(missing)
    return term


def _inner_and_outer(x: Any, normalized_shape: Sequence[Any]) -> tuple[list[int], list[int]]:
    rank = meta_of(x).dim()
    outer = rank - len(normalized_shape)
    return list(range(outer, rank)), list(range(outer))


def _layer_norm(
    call: Call, x: Any, inner_shape: Any, weight: Any, bias: Any, eps: float
) -> Several:
    inner, _ = _inner_and_outer(x, inner_shape)
    term = _held(call, x)
    variance, mean = term.moments(inner, keepdim=True)
    rstd = (variance + eps).op("rsqrt")
    return _scaled(call, (term - mean) * rstd, weight, bias, ()), mean, rstd


def _centred(call: Call, slope: Term, xhat: Term, dims: Sequence[int]) -> Term:
    """slope - mean(slope) - xhat * mean(slope * xhat)."""
    along = (slope * xhat).mean(dims)
    across = slope.mean(dims)
    flags = [dim in dims for dim in range(slope.tensor.ndim)]
    return slope - across.with_new_axes(flags) - xhat * along.with_new_axes(flags)


def _layer_norm_backward(
    call: Call,
    grad: Any,
    x: Any,
    inner_shape: Any,
    mean: Any,
    rstd: Any,
    weight: Any,
    bias: Any,
    mask: Sequence[bool],
) -> Several:
    inner, outer = _inner_and_outer(x, inner_shape)
    scale = call.held(rstd)
    dtype = scale.dtype
    slope = call.held(grad, dtype)
    xhat = (call.held(x, dtype) - call.held(mean)) * scale
    of_input = of_weight = of_bias = None
    if mask[0]:
        weighted = slope if weight is None else slope * call.held(weight, dtype)
        of_input = _centred(call, weighted, xhat, inner) * scale
    if mask[1]:
        of_weight = (slope * xhat).sum(outer)
    if mask[2]:
        of_bias = slope.sum(outer)
    return of_input, of_weight, of_bias


def _rms_norm(call: Call, x: Any, inner_shape: Any, weight: Any, eps: float | None) -> Several:
    inner, _ = _inner_and_outer(x, inner_shape)
    term = _held(call, x)
    epsilon = torch.finfo(meta_of(x).dtype).eps if eps is None else eps
    flags = [dim in inner for dim in range(term.tensor.ndim)]
    rstd = ((term * term).mean(inner) + epsilon).op("rsqrt").with_new_axes(flags)
    return _scaled(call, term * rstd, weight, None, ()), rstd


def _rms_norm_backward(
    call: Call, grad: Any, x: Any, inner_shape: Any, rstd: Any, weight: Any, mask: Sequence[bool]
) -> Several:
    inner, outer = _inner_and_outer(x, inner_shape)
    scale = call.held(rstd)
    slope, term = call.held(grad, scale.dtype), call.held(x, scale.dtype)
    xhat = term * scale
    of_input = of_weight = None
    if mask[0]:
        weighted = slope if weight is None else slope * call.held(weight, scale.dtype)
        flags = [dim in inner for dim in range(term.tensor.ndim)]
        along = (weighted * xhat).mean(inner).with_new_axes(flags)
        of_input = (weighted - xhat * along) * scale
    if mask[1]:
        of_weight = (slope * xhat).sum(outer)
    return of_input, of_weight


def _channel_flags(rank: int) -> list[bool]:
    return [dim != 1 for dim in range(rank)]


def _empty(call: Call, index: int) -> Term | None:
    """A tensor without elements: what torch has for statistics that an inference doesn't save."""
    meta = call.meta[index]
    if [size_key(size) for size in meta.shape] != [0]:
        return None
    return call.filled([0], 0, meta.dtype)


def _normalised(call: Call, x: Term, mean: Term, rstd: Term, weight: Any, bias: Any) -> Term:
    flags = _channel_flags(x.tensor.ndim)
    centred = (x - mean.with_new_axes(flags)) * rstd.with_new_axes(flags)
    return _scaled(call, centred, weight, bias, flags)


def _batch_norm_inference(
    call: Call, x: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> Several:
    term = _held(call, x)
    rstd = (call.held(var) + eps).op("rsqrt")
    result = _normalised(call, term, _held(call, mean), rstd.cast(call.dtype), weight, bias)
    saved = (_empty(call, 1) or call.held(mean), _empty(call, 2) or rstd)
    return result, *saved


def _batch_norm(
    call: Call,
    x: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> Several:
    if not training:
        made = _batch_norm_inference(
            call, x, weight, bias, running_mean, running_var, momentum, eps
        )
        return *made, call.held(running_mean), call.held(running_var)
    term = _held(call, x)
    dims = [dim for dim in range(term.tensor.ndim) if dim != 1]
    variance, mean = term.moments(dims)
    rstd = (variance + eps).op("rsqrt")
    result = _normalised(call, term, mean, rstd, weight, bias)
    if running_mean is None:
        return result, mean, rstd
    count = term.count(dims)
    # The running variance is the unbiased one; a single element divides by zero, as eager does.
    total = call.scalar(count, DataType.Double)
    unbiased = variance * (total / (total - 1))
    old_mean, old_var = call.held(running_mean), call.held(running_var)
    new_mean = momentum * mean.cast(old_mean.dtype) + (1 - momentum) * old_mean
    new_var = momentum * unbiased.cast(old_var.dtype) + (1 - momentum) * old_var
    return result, mean, rstd, new_mean, new_var


def _batch_norm_without_statistics(
    call: Call, x: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> Several:
    return _batch_norm(call, x, weight, bias, None, None, True, momentum, eps)


def _batch_norm_backward(
    call: Call,
    grad: Any,
    x: Any,
    weight: Any,
    running_mean: Any,
    running_var: Any,
    saved_mean: Any,
    saved_rstd: Any,
    train: bool,
    eps: float,
    mask: Sequence[bool],
) -> Several:
    dtype = call.dtype
    slope, term = call.held(grad, dtype), call.held(x, dtype)
    if train:
        mean, rstd = call.held(saved_mean, dtype), call.held(saved_rstd, dtype)
    else:
        mean = call.held(running_mean, dtype)
        rstd = (call.held(running_var, dtype) + eps).op("rsqrt")
    flags = _channel_flags(term.tensor.ndim)
    dims = [dim for dim in range(term.tensor.ndim) if dim != 1]
    xhat = (term - mean.with_new_axes(flags)) * rstd.with_new_axes(flags)
    of_input = None
    if mask[0]:
        centred = _centred(call, slope, xhat, dims) if train else slope
        scale = rstd if weight is None else rstd * call.held(weight, dtype)
        of_input = centred * scale.with_new_axes(flags)
    of_weight = (slope * xhat).sum(dims) if mask[1] else None
    of_bias = slope.sum(dims) if mask[2] else None
    return of_input, of_weight, of_bias


def _has_elements(node: Node, *rest: Any) -> str | None:
    """Statistics of nothing are eager's business."""
    for argument in node.all_input_nodes:
        shape = getattr(meta_of(argument), "shape", ())
        if any(isinstance(size, int) and size == 0 for size in shape):
            return "no elements"
    return None


def _changes_nothing(node: Node, *rest: Any) -> str | None:
    """In training this overload updates its statistics in place."""
    x, _, _, running_mean, _, training, *_ = rest
    if training and running_mean is not None:
        return "statistics that are updated in place"
    return _has_elements(node)


def _row(build: Build, check: Any = _has_elements) -> Translation:
    return Translation(build, "reduction", check)


TRANSLATIONS: Table = {
    aten.native_layer_norm.default: _row(_layer_norm),
    aten.native_layer_norm_backward.default: _row(_layer_norm_backward),
    aten._fused_rms_norm.default: _row(_rms_norm),
    aten._fused_rms_norm_backward.default: _row(_rms_norm_backward),
    aten._native_batch_norm_legit_functional.default: _row(_batch_norm),
    aten._native_batch_norm_legit_no_training.default: _row(_batch_norm_inference),
    aten._native_batch_norm_legit.no_stats: _row(_batch_norm_without_statistics),
    aten.native_batch_norm.default: _row(_batch_norm, _changes_nothing),
    aten.native_batch_norm_backward.default: _row(_batch_norm_backward),
}
