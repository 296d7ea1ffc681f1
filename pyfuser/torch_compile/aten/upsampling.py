"""Upsampling by repetition, an expanded view, and downsampling by steps: both fuse.

    Before:  upsample_nearest2d(x, [2 * h, 2 * w])
    After:   x[:, :, :, None, :, None].expand(n, c, h, 2, w, 2).reshape(n, c, 2 * h, 2 * w)

    Before:  upsample_nearest2d(x, [h // 4, w // 2])
    After:   x[:, :, ::4, ::2].contiguous()

For factors that are powers of two, with which eager's rounded positions are exact.  The backward
adds the elements of a window; eager's does, too, but rounds every partial sum of a half-precision
gradient.  Channels-last images are left to torch, which moves all channels of a pixel at once: a
kernel took 2.5 times as long, and 0.7 of the time with a ReLU fused into it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from .true_metadata import has_channels_last_order
from .widening import widened

aten = torch.ops.aten

_MOST_REPEATS = 16  # elements of a window


def _factors(
    sizes: Sequence[Any], results: Sequence[Any], scales: Sequence[float | None]
) -> list[int] | None:
    """How often elements are repeated along each axis; None if torch repeats some more often."""
    factors = []
    for size, result, scale in zip(sizes, results, scales, strict=True):
        if not isinstance(size, int) or not isinstance(result, int) or size < 1 or result % size:
            return None
        factor = result // size
        if factor & (factor - 1) or (scale is not None and scale != factor):
            return None
        factors.append(factor)
    return factors if 1 < math.prod(factors) <= _MOST_REPEATS else None


def _nearest(
    takes_middle: bool, x: Tensor, output_size: Sequence[Any], *scales: float | None
) -> Tensor | Any:
    """The nearest elements; of those that a step is over, the middle one or the first."""
    given = scales or [None] * (x.dim() - 2)
    if not x.numel() or has_channels_last_order(x):
        return NotImplemented
    steps = _factors(output_size, x.shape[2:], [scale and 1 / scale for scale in given])
    if steps is not None:
        return _in_steps(x, [(step // 2 if takes_middle else 0, step) for step in steps])
    factors = _factors(x.shape[2:], output_size, given)
    if factors is None:
        return NotImplemented
    repeated, sizes = x, list(x.shape)
    for axis, factor in reversed(list(enumerate(factors, 3))):
        repeated = repeated.unsqueeze(axis)
        sizes.insert(axis, factor)
    whole = repeated.expand(sizes).clone(memory_format=torch.contiguous_format)
    return whole.view([*x.shape[:2], *output_size])


def _in_steps(x: Tensor, steps: Sequence[tuple[int, int]]) -> Tensor:
    """One element of each step along each axis, from the first one that is taken on."""
    for axis, (first, step) in enumerate(steps, 2):
        x = aten.slice.Tensor(x, axis, first, None, step)
    return x.clone(memory_format=torch.contiguous_format)


def _nearest_backward(
    gradient: Tensor, output_size: Sequence[Any], input_size: Sequence[Any], *scales: float | None
) -> Tensor | Any:
    sizes = input_size[2:]
    factors = _factors(sizes, output_size, scales or [None] * len(sizes))
    if factors is None or not gradient.numel() or has_channels_last_order(gradient):
        return NotImplemented
    parts = [gradient]
    for axis, factor in enumerate(factors, 2):
        parts = [
            aten.slice.Tensor(part, axis, first, None, factor)
            for part in parts
            for first in range(factor)
        ]
    total: Any = sum(map(widened, parts))
    image: Tensor = total.to(gradient.dtype)
    return image.contiguous()


DECOMPOSITIONS: dict[OpOverload, Callable[..., Any]] = {
    aten.upsample_nearest1d.default: functools.partial(_nearest, False),
    aten.upsample_nearest2d.default: functools.partial(_nearest, False),
    aten.upsample_nearest3d.default: functools.partial(_nearest, False),
    aten._upsample_nearest_exact1d.default: functools.partial(_nearest, True),
    aten._upsample_nearest_exact2d.default: functools.partial(_nearest, True),
    aten._upsample_nearest_exact3d.default: functools.partial(_nearest, True),
    aten.upsample_nearest1d_backward.default: _nearest_backward,
    aten.upsample_nearest2d_backward.default: _nearest_backward,
    aten.upsample_nearest3d_backward.default: _nearest_backward,
    aten._upsample_nearest_exact1d_backward.default: _nearest_backward,
    aten._upsample_nearest_exact2d_backward.default: _nearest_backward,
    aten._upsample_nearest_exact3d_backward.default: _nearest_backward,
}
