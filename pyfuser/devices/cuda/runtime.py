"""CUDA tensors: kernels for them are printed and compiled; nothing launches them yet.

`runtime` raises UnsupportedError, so the fallback computes fusions of CUDA tensors with torch.
"""

from __future__ import annotations

import torch

from ...errors import UnsupportedError, expected
from ..runtime import Runtime


def runtime(device: torch.device) -> Runtime:
    """UnsupportedError: kernels for CUDA tensors aren't launched yet."""
    what = "a device that launches kernels"
    raise UnsupportedError(expected("device", what, f"{device}, for which they are only compiled"))
