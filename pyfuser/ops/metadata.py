"""What is known of a tensor without having it: shape, strides, dtype, device.

Binding and the executor take a `TensorMetadata` wherever they would only ask a tensor for these, so
that programs and kernels can be made before the first call.  It answers like a dense torch.Tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar, overload

import torch


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """Shape and strides (in elements), dtype, device."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    layout: ClassVar[torch.layout] = torch.strided
    is_meta: ClassVar[bool] = False

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
        """The strides, or that of one dimension."""
        return self.strides if dim is None else self.strides[dim]

    def is_neg(self) -> bool:
        """No negation is pending."""
        return False

    def is_conj(self) -> bool:
        """No conjugation is pending."""
        return False


TensorLike = (torch.Tensor, TensorMetadata)
