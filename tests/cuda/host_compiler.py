"""The mark of tests that run kernels in the emulator, which compiles them with g++."""

from __future__ import annotations

import pytest

from pyfuser.devices.cuda.emulator.harness import require_host_compiler
from pyfuser.errors import UnsupportedError


def _is_missing() -> bool:
    try:
        require_host_compiler()
    except UnsupportedError:
        return True
    return False


requires_host_compiler = pytest.mark.skipif(_is_missing(), reason="the emulator needs g++ on Linux")
