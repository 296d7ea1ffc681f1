"""Which dtypes torch's library computes matrix products and convolutions in on this processor.

oneDNN takes bfloat16 on x86-64 processors with AVX-512, float16 on those with AVX512-FP16 or
AMX-FP16, and both on newer ones without AVX-512.  On others torch has plain loops instead, which
take 5 to 60 times as long as the same in float32.  Only a few rows times a matrix that lies
transposed are products as fast as memory allows.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch.utils._python_dispatch import _disable_current_modes

# Measured on a Zen 3, a matrix of 4096x4096: up to so many rows take as long as their conversion
# and product.
_MOST_ROWS_READ_ONCE = 8


@lru_cache
def has_onednn() -> bool:
    """True if the library is oneDNN's for x86-64."""
    return platform.machine() in ("x86_64", "AMD64") and bool(torch._C._has_mkldnn)


def is_read_once(rows: int, steps: Sequence[int]) -> bool:
    """True for so few rows that the library reads the matrix by which it multiplies them once, if
    it adds up neighbours in memory: `steps` are the strides of the two along that dimension.
    """
    return rows <= _MOST_ROWS_READ_ONCE and list(steps) == [1, 1]


@lru_cache
def is_faster_in_float32(dtype: torch.dtype) -> bool:
    """True for half precision in which oneDNN computes nothing here."""
    if not has_onednn() or dtype not in (torch.bfloat16, torch.float16):
        return False
    onednn = torch.ops.mkldnn
    with _disable_current_modes():
        if dtype == torch.bfloat16:
            return not onednn._is_mkldnn_bf16_supported()
        return not onednn._is_mkldnn_fp16_supported()
