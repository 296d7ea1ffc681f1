"""Where the elements of traced tensors lie in memory, by the sizes that they were traced with."""

from __future__ import annotations

import torch

from ..ir import strides
from .sizes import hints


def memory_order(value: torch.Tensor) -> list[int]:
    """The dimensions by their strides, outermost first."""
    return strides.memory_order(hints(value.shape), hints(value.stride()))


def lies_in_order(value: torch.Tensor) -> bool:
    """True if the dimensions are in memory in their own order."""
    return memory_order(value) == list(range(value.dim()))


def is_dense(value: torch.Tensor) -> bool:
    """True if the elements fill their memory: a kernel can write an output with this layout."""
    return strides.is_dense(hints(value.shape), hints(value.stride()), memory_order(value))
