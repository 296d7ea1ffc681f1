"""Average pooling over small windows: the sum of shifted views, which fuses with its neighbours.

    Before:  avg_pool2d(x, [2, 2], [2, 2])
    After:   (x[..., 0::2, 0::2] + x[..., 0::2, 1::2] + x[..., 1::2, 0::2] + x[..., 1::2, 1::2]) / 4

The result is contiguous, or channels-last if the image's strides say so, as in eager.

Measured against torch's own, forward, one thread: 2x2 windows 5 times as fast.  The backward, large
windows, unknown sizes and `ceil_mode` are torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._prims_common import suggest_memory_format

from .widening import widened

aten = torch.ops.aten

_MOST_WINDOWS = 16  # with more, torch's loop over the window is as good


def _pair(values: Sequence[int]) -> tuple[int, int]:
    return values[0], values[-1]


def _counts(size: Any, kernel: int, stride: int, padding: int, x: Tensor) -> Tensor:
    """How many elements of the image each window has along one axis."""
    results = (size + 2 * padding - kernel) // stride + 1
    start = torch.arange(results, dtype=torch.float32, device=x.device) * stride - padding
    return (start + kernel).clamp(max=size) - start.clamp(min=0)


def _avg_pool2d(
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor | Any:
    kernel, pad = _pair(kernel_size), _pair(padding)
    step = _pair(stride) if stride else kernel
    sizes = x.shape[-2:]
    is_known = all(isinstance(n, int) for n in (*sizes, *kernel, *step, *pad))
    if not is_known or ceil_mode or not x.is_floating_point() or not x.numel():
        return NotImplemented
    is_small = kernel[0] * kernel[1] <= _MOST_WINDOWS
    if not is_small or min(step) < 1 or 2 * pad[0] > kernel[0] or 2 * pad[1] > kernel[1]:
        return NotImplemented
    axes = tuple(zip(sizes, kernel, step, pad, strict=True))
    results = [(n + 2 * p - k) // s + 1 for n, k, s, p in axes]
    if min(results) < 1:
        return NotImplemented
    padded = aten.constant_pad_nd(x, [pad[1], pad[1], pad[0], pad[0]], 0.0) if any(pad) else x
    total: Any = 0
    for i in range(kernel[0]):
        rows = padded[..., i : i + (results[0] - 1) * step[0] + 1 : step[0], :]
        for j in range(kernel[1]):
            total = total + widened(rows[..., j : j + (results[1] - 1) * step[1] + 1 : step[1]])
    divisor: Any = divisor_override or kernel[0] * kernel[1]
    if not divisor_override and not count_include_pad and any(pad):
        down, across = (_counts(n, k, s, p, x) for n, k, s, p in axes)
        divisor = down[:, None] * across
    mean = (total / divisor).to(x.dtype)
    return mean.contiguous(memory_format=suggest_memory_format(x))


DECOMPOSITIONS: dict[OpOverload, Callable[..., Any]] = {aten.avg_pool2d.default: _avg_pool2d}
