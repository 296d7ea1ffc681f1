"""The windows of images as columns (`unfold` of torch.nn): a view of overlapping windows.

    Before:  im2col(x, [3, 3], [1, 1], [1, 1], [2, 2])
    After:   p = constant_pad_nd(x, [1, 1, 1, 1]); w = p.unfold(2, 3, 2).unfold(3, 3, 2)
             w.permute(0, 1, 4, 5, 2, 3).reshape(n, c * 9, h * w)

What reads the columns reads the windows: they are stored only where a call of a library wants them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

aten = torch.ops.aten


def _columns(
    x: Tensor,
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    step: Sequence[int],
) -> Tensor | Any:
    if x.dim() != 4 or not all(isinstance(size, int) and size > 0 for size in x.shape):
        return NotImplemented
    windows = x
    if any(padding):
        windows = aten.constant_pad_nd(x, [padding[1], padding[1], padding[0], padding[0]])
    for axis in range(2):
        span = dilation[axis] * (kernel[axis] - 1) + 1
        windows = windows.unfold(2 + axis, span, step[axis])[..., :: dilation[axis]]
    columns = windows.permute(0, 1, 4, 5, 2, 3).clone(memory_format=torch.contiguous_format)
    images, channels, *sizes, height, width = columns.shape
    return columns.view(images, channels * sizes[0] * sizes[1], height * width)


DECOMPOSITIONS: dict[OpOverload, Callable[..., Any]] = {aten.im2col.default: _columns}
