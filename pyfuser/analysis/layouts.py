"""Layout classes of input tensors: the facts about sizes and strides that specialise a kernel.

A layout is the order of the axes in memory and, for each axis, whether it is contiguous with what
is inside it (True), strided (False), or has stride 0, as a broadcast does (None).  Sizes aren't
part of it, so a new shape with the same layout runs the same kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..ir.fusion import Fusion
from ..ir.strides import contiguity_flags, memory_order
from ..ir.vals import TensorView
from ..ops.metadata import TensorLike, TensorMetadata

Layout = tuple[tuple[int, ...], tuple[bool | None, ...]]


def dense_layout(rank: int) -> Layout:
    """The layout of a contiguous tensor, whatever strides its axes of size 1 have."""
    return tuple(range(rank)), (True,) * rank


def tensor_layout(value: TensorView, tensor: torch.Tensor | TensorMetadata) -> Layout:
    """The layout of a tensor as an input `value` of a definition.

    An axis that the definition declares expanded counts as one element, so a dense tensor isn't
    contiguous around it.
    """
    if tensor.is_contiguous() and not value.has_expanded_axis:
        return dense_layout(tensor.dim())
    sizes = [
        1 if axis.is_expanded else size for axis, size in zip(value.axes, tensor.shape, strict=True)
    ]
    return layout_of(sizes, tensor.stride())


def input_layouts(fusion: Fusion, inputs: Sequence[object]) -> list[Layout]:
    """The layouts of the tensors among the inputs of a call."""
    return [
        tensor_layout(value, given)
        for value, given in zip(fusion.inputs, inputs, strict=True)
        if isinstance(value, TensorView) and isinstance(given, TensorLike)
    ]


def layout_of(sizes: Sequence[int], strides: Sequence[int]) -> Layout:
    """(axes, outermost in memory first; contiguity of each)."""
    order = memory_order(sizes, strides)
    flags = contiguity_flags(sizes, strides, order)
    return tuple(order), tuple(
        True if sizes[d] == 1 else flag for d, flag in zip(order, flags, strict=True)
    )


def specialise(fusion: Fusion, layouts: Sequence[Layout]) -> Fusion:
    """A copy whose input tensors have these layouts, in the order of `fusion.input_tensors`."""
    copy, _ = fusion.clone()
    for tensor, (order, contiguity) in zip(copy.input_tensors, layouts, strict=True):
        set_layout(tensor, order, contiguity)
    return copy


def set_layout(tensor: TensorView, order: Sequence[int], contiguity: Sequence[bool | None]) -> None:
    """Gives an input tensor the allocation domain of a layout; broadcasts stay broadcasts."""
    axes = tensor.axes
    domain = tensor.domain
    domain.allocation = None if list(order) == sorted(order) else [axes[d] for d in order]
    domain.contiguity = [
        None if axes[d].is_broadcast else flag for d, flag in zip(order, contiguity, strict=True)
    ]
