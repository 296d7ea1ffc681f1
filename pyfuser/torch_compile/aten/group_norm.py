"""Group norm and its gradient as plain operations on [N, group, C // group, H * W].

The change of shape is a view outside the kernel, so everything between is one kernel, including the
weight and the bias as [group, C // group, 1]. Statistics of half-precision inputs are in float32.
An input that isn't contiguous stays whole, because it would have to be copied first.  A
half-precision input with parameters of float32 is widened, because torch traces its statistics in
half precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from .true_metadata import is_mixed
from .widening import widened

aten = torch.ops.aten

_INNER = (2, 3)


def _per_channel(parameter: torch.Tensor, group: int, width: Any) -> torch.Tensor:
    return parameter.view(group, width, 1)


def native_group_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    n: Any,
    c: Any,
    hxw: Any,
    group: int,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | Any:
    """(result, mean, 1 / standard deviation), the two of shape [N, group]."""
    if not x.is_contiguous() or x.numel() == 0:
        if not is_mixed(x, weight):
            return NotImplemented
        whole = aten.native_group_norm.default
        wide, mean, rstd = whole(x.float(), weight, bias, n, c, hxw, group, eps)
        return wide.to(x.dtype), mean, rstd
    width = c // group
    grouped = widened(x.view(n, group, width, hxw))
    variance, mean = torch.var_mean(grouped, _INNER, correction=0, keepdim=True)
    rstd = (variance + eps).rsqrt()
    result = (grouped - mean) * rstd
    if weight is not None:
        result = result * _per_channel(weight, group, width)
    if bias is not None:
        result = result + _per_channel(bias, group, width)
    # With parameters of float32, eager keeps the statistics of half precision in float32.
    kept = x.dtype if weight is None else weight.dtype
    statistics = (t.squeeze(_INNER).to(kept) for t in (mean, rstd))
    return result.to(x.dtype).view(x.shape), *statistics


def native_group_norm_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    n: Any,
    c: Any,
    hxw: Any,
    group: int,
    mask: Sequence[bool],
) -> tuple[torch.Tensor | None, ...] | Any:
    """The gradients of the input, the weight and the bias that `mask` selects."""
    if not x.is_contiguous() or not grad.is_contiguous() or x.numel() == 0:
        if not is_mixed(x, weight):
            return NotImplemented
        rest = (mean, rstd, weight, n, c, hxw, group, mask)
        whole = aten.native_group_norm_backward.default
        wide, *of_parameters = whole(grad.float(), x.float(), *rest)
        return None if wide is None else wide.to(x.dtype), *of_parameters
    shape, width = (n, group, c // group, hxw), c // group
    slope, grouped = widened(grad.view(shape)), widened(x.view(shape))
    scale = widened(rstd).unsqueeze(-1).unsqueeze(-1)
    xhat = (grouped - widened(mean).unsqueeze(-1).unsqueeze(-1)) * scale
    of_input = of_weight = of_bias = None
    parameter = x.dtype if weight is None else weight.dtype
    if mask[0]:
        weighted = slope if weight is None else slope * _per_channel(widened(weight), group, width)
        across = weighted.mean(_INNER, keepdim=True)
        along = (weighted * xhat).mean(_INNER, keepdim=True)
        of_input = ((weighted - across - xhat * along) * scale).to(x.dtype).view(x.shape)
    if mask[1]:
        of_weight = (slope * xhat).sum((0, 3)).to(parameter).view(c)
    if mask[2]:
        of_bias = slope.sum((0, 3)).to(parameter).view(c)
    return of_input, of_weight, of_bias


DECOMPOSITIONS: dict[OpOverload, Callable[..., Any]] = {
    aten.native_group_norm.default: native_group_norm,
    aten.native_group_norm_backward.default: native_group_norm_backward,
}
