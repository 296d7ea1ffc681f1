"""What is known about a tensor without its data: shape, strides, dtype, device.

Binding and the executor accept a `TensorMetadata` wherever they only need these properties of a
tensor, so programs and kernels can be made before the first call.  It behaves like a dense
torch.Tensor.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import ClassVar, overload

import torch

from ..errors import InputError, expected
from ..ir.strides import is_contiguous


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """Shape and strides (in elements), dtype, device."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    layout: ClassVar[torch.layout] = torch.strided

    @staticmethod
    def of(tensor: torch.Tensor | TensorMetadata) -> TensorMetadata:
        """What is known about a tensor."""
        return TensorMetadata(
            tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device
        )

    def dim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def numel(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @overload
    def stride(self) -> tuple[int, ...]: ...
    @overload
    def stride(self, dim: int) -> int: ...
    def stride(self, dim: int | None = None) -> tuple[int, ...] | int:
        """The strides, or the stride of one dimension."""
        return self.strides if dim is None else self.strides[dim]

    def is_contiguous(self) -> bool:
        """True if the elements are in memory in row-major order, without gaps."""
        return is_contiguous(self.shape, self.strides)

    def is_neg(self) -> bool:
        """False: no negation is pending."""
        return False

    def is_conj(self) -> bool:
        """False: no conjugation is pending."""
        return False


TensorLike = (torch.Tensor, TensorMetadata)


def device_of(inputs: Iterable[object]) -> torch.device:
    """The device that a fusion of these inputs runs on.

    It is the device of the tensors with dimensions; without any, of the first tensor; else torch's
    default.  A tensor without dimensions on the CPU counts as a scalar next to tensors of another
    device.  InputError if the other tensors are on two devices.
    """
    tensors = [value for value in inputs if isinstance(value, TensorLike)]
    if not tensors:
        return torch.get_default_device()
    first = next((tensor for tensor in tensors if not is_cpu_scalar(tensor)), tensors[0])
    chosen = next((tensor for tensor in tensors if tensor.dim()), first).device
    for tensor in tensors:
        if tensor.device != chosen and not is_cpu_scalar(tensor):
            what = f"all tensors on {chosen}"
            raise InputError(expected("execute", what, f"one on {tensor.device}"))
    return chosen


def is_cpu_scalar(tensor: torch.Tensor | TensorMetadata) -> bool:
    """True for a tensor that is a single number in the host's memory."""
    return tensor.device.type == "cpu" and not tensor.dim()


def filled_in(number: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A number of the host's memory on another device, which only writes it there.

    Nothing waits, and it can be captured into a CUDA graph; a copy of the memory would wait for
    what the device is doing.
    """
    return torch.full((), number.item(), dtype=number.dtype, device=device)
