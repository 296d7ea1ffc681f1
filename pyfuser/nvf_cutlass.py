"""The interface's matrix products with 4-bit and 8-bit block-scaled operands.

They are matrix instructions of Blackwell GPUs.  No device of pyfuser has kernels for them, so every
function raises UnsupportedError; the names are here so that programs can import them.
"""

from __future__ import annotations

from typing import NoReturn

from .errors import UnsupportedError, expected

_NEEDED = "an NVIDIA GPU with block-scaled matrix instructions (sm_100) and kernels for it"


def _refuse(name: str) -> NoReturn:
    hint = "compute it with torch"
    raise UnsupportedError(f"not supported on this device: {expected(name, _NEEDED, 'none', hint)}")


def mxfp8_scaled_mm(*operands: object, **options: object) -> NoReturn:
    """A product of 8-bit operands with a scale per 32 elements."""
    _refuse("mxfp8_scaled_mm")


def nvfp4_scaled_mm(*operands: object, **options: object) -> NoReturn:
    """A product of 4-bit operands with a scale per 16 elements."""
    _refuse("nvfp4_scaled_mm")


def nvfp4_scaled_mm_blockscale(*operands: object, **options: object) -> NoReturn:
    """`nvfp4_scaled_mm` with a quantised result."""
    _refuse("nvfp4_scaled_mm_blockscale")


def grouped_mm(*operands: object, **options: object) -> NoReturn:
    """Products of groups of rows with one matrix each."""
    _refuse("grouped_mm")


def nvfp4_scaled_grouped_mm(*operands: object, **options: object) -> NoReturn:
    """`grouped_mm` of 4-bit operands with a scale per 16 elements."""
    _refuse("nvfp4_scaled_grouped_mm")
