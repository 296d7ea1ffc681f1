"""The device-side prelude: CUDA C++ text that every generated kernel may use.

A generated kernel's text + the `.cuh` files -> the self-contained text that a compiler gets.  The
kernel that people read stays short, and the compiler's messages keep the kernel's own line
numbers.  Invariant: the prelude is the same for all kernels, so it can be part of a cache key.
"""

from __future__ import annotations

import functools
from importlib import resources

from ...dtypes import DataType, beyond_range

KERNEL_FILE_NAME = "kernel.cu"

_FILES = ("device_helpers.cuh", "random_numbers.cuh")


@functools.cache
def device_helpers() -> str:
    """The text of the prelude."""
    files = resources.files(__package__)
    text = "".join((files / name).read_text(encoding="utf-8") for name in _FILES)
    beyond = beyond_range(DataType.Float8_e4m3fn)
    return f"#define FLOAT8_E4M3FN_BEYOND {beyond}u\n{text}"


def with_device_helpers(kernel_text: str) -> str:
    """`kernel_text` after the prelude; line numbers count from the start of `kernel_text`."""
    prelude = device_helpers()
    return f'#line 1 "device_helpers.cuh"\n{prelude}#line 1 "{KERNEL_FILE_NAME}"\n{kernel_text}'
