"""Convolutions, pooling and bilinear upsampling of contiguous images in channels-last memory.

    Before:  convolution(x, weight)
    After:   clone(convolution(clone(x, channels_last), clone(weight, channels_last)), contiguous)

The library's loops are vectorised over channels that are next to each other.  The copies are parts
of the kernels around the call: the one before it writes the images as they are wanted, the one
after it reads them so, and the rest of the graph has eager's strides.  With gradients, what lies
between the calls gets the format, too (graph_passes/image_formats.py).

Measured on a Granite Rapids with oneDNN, two threads, part of the time of contiguous images: 3x3
convolutions 0.2 to 0.9 (8 images of 64 channels, 56 x 56, bfloat16: 5.8 ms and 0.9 ms), 1x1 and
depthwise ones down to 0.1; pooling 0.04 to 0.8; bilinear upsampling 0.1 to 0.3; gradients of
convolutions 0.3 to 0.9.  A weight is copied at every call, so each of its elements must be used
often.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._prims_common import suggest_memory_format

from ...devices.library_dtypes import has_onednn
from ..sizes import hints

aten = torch.ops.aten

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# For fewer, the copies take as long as the call; torch computes some small convolutions without
# oneDNN.
_LEAST_ELEMENTS = 1 << 13
# Of images that are pooled or upsampled.  Measured on a Zen 4, two threads, without the copies,
# part of the time of contiguous images of 2, 3, 4, 6, 8, 16 channels: averages of 7x7 3.1, 2.1,
# 1.5, 1.1, 0.8, 0.4; bilinear upsampling 4.7, 3.0, 1.1, 0.9, 0.6, 0.4.
_LEAST_CHANNELS = 8
# Of all images together, for a copy of the weight.  Measured on a Granite Rapids, float32, weights
# of 0.15 to 2.4 million elements: 49 places take twice the time, 256 1.1 to 1.4 times, 392 and 1024
# the same, without the copies of images from one format to the other.
_LEAST_PLACES = 1 << 9


def _elements(x: Tensor) -> int:
    return prod(hints(x.shape))


def _pays(images: Sequence[Tensor]) -> bool:
    """True if all are contiguous images, and large enough together."""
    largest = max(images, key=_elements)
    if any(x.dim() != 4 or x.device.type != "cpu" for x in images) or largest.dtype not in _DTYPES:
        return False
    if torch.channels_last in map(suggest_memory_format, images):
        return False
    return not is_ambiguous(largest) and sum(map(_elements, images)) >= _LEAST_ELEMENTS


def _channels(x: Tensor) -> int:
    return hints(x.shape[1:2])[0]


def is_ambiguous(images: Tensor) -> bool:
    """True if contiguous images have the same elements in the same places in either format."""
    _, channels, height, width = hints(images.shape)
    return channels == 1 or height * width == 1


def _contiguous(result: Any) -> Any:
    """A copy of a result that is a tensor of images, unless this is contiguous already."""
    if not isinstance(result, Tensor) or result.dim() != 4 or is_ambiguous(result):
        return result
    return result.clone(memory_format=torch.contiguous_format)


def _pays_for_weight(x: Tensor, weight: Tensor) -> bool:
    """True if the images are worth a copy of the weight, and oneDNN can compute the convolution."""
    places = _elements(x) // max(_channels(x), 1)
    return has_onednn() and (is_ambiguous(weight) or places >= _LEAST_PLACES)


def in_channels_last(
    op: OpOverload, images: Sequence[int], weight: int | None = None
) -> Callable[..., Any]:
    """A decomposition of an op whose arguments at these places are images, and maybe a weight."""

    def decomposed(*arguments: Any, **keywords: Any) -> Any:
        places = list(images) if weight is None else [*images, weight]
        if max(places) >= len(arguments) or not _pays([arguments[each] for each in places]):
            return NotImplemented
        image = arguments[images[-1]]
        if weight is None and _channels(image) < _LEAST_CHANNELS:
            return NotImplemented
        if weight is not None and not _pays_for_weight(image, arguments[weight]):
            return NotImplemented
        copied = list(arguments)
        for each in places:
            if not is_ambiguous(arguments[each]):
                copied[each] = arguments[each].clone(memory_format=torch.channels_last)
        found = op(*copied, **keywords)
        return tuple(map(_contiguous, found)) if isinstance(found, tuple) else _contiguous(found)

    return decomposed


_IMAGES: dict[OpOverload, tuple[int, ...]] = {
    aten.max_pool2d_with_indices.default: (0,),
    aten.max_pool2d_with_indices_backward.default: (0, 1, 7),
    aten.avg_pool2d.default: (0,),
    aten.avg_pool2d_backward.default: (0, 1),
    aten._adaptive_avg_pool2d.default: (0,),
    aten._adaptive_avg_pool2d_backward.default: (0, 1),
    aten.adaptive_max_pool2d.default: (0,),
    aten.adaptive_max_pool2d_backward.default: (0, 1, 2),
    aten.upsample_bilinear2d.default: (0,),
    aten.upsample_bilinear2d_backward.default: (0,),
}
DECOMPOSITIONS: dict[OpOverload, Callable[..., Any]] = {
    op: in_channels_last(op, images) for op, images in _IMAGES.items()
} | {
    aten.convolution.default: in_channels_last(aten.convolution.default, (0,), 1),
    aten.convolution_backward.default: in_channels_last(
        aten.convolution_backward.default, (0, 1), 2
    ),
}
