"""Widens half-precision tensors to the dtype of kernels' computations, for the decompositions."""

from __future__ import annotations

import torch

from ...dtypes import REDUCED_FLOATING, compute_dtype, from_torch, to_torch

_HALVES = tuple(map(to_torch, REDUCED_FLOATING))


def is_half(x: torch.Tensor) -> bool:
    """True for float16 and bfloat16."""
    return x.dtype in _HALVES


def widened(x: torch.Tensor) -> torch.Tensor:
    """A half-precision tensor in float32; any other unchanged."""
    return x.to(to_torch(compute_dtype(from_torch(x.dtype)))) if is_half(x) else x
