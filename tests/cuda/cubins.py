"""Kernels' texts through NVRTC, which needs no GPU."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from pyfuser.devices.cuda import nvrtc
from pyfuser.devices.cuda.device_helpers import with_device_helpers

requires_nvrtc = pytest.mark.skipif(not nvrtc.is_available(), reason="NVRTC isn't installed")


def require_cubin(texts: Iterable[str], architecture: str) -> None:
    """Asserts that kernels compile together to machine code for an architecture."""
    cubin = nvrtc.compile_to_cubin(with_device_helpers("\n".join(texts)), architecture)
    assert cubin.startswith(b"\x7fELF")
