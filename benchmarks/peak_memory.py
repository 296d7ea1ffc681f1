"""The peak memory of a call: the process's resident memory, as the system counts it.

A function -> bytes.  The system's own high-water mark is reset before the call, so everything that
the function allocates counts, from any allocator (torch's, a pool, a library's scratch), but not
what compiling needed earlier.  Run the process with `ENVIRONMENT`; otherwise freed memory stays
with the C library and hides from the next measurement.  Linux only.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

# Every block of 64 KiB or more gets its own mapping, and so leaves the process when freed.
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": str(64 << 10), "MALLOC_TRIM_THRESHOLD_": "0"}
_RESET_PEAK = "5"


def can_measure() -> bool:
    """True if the system has a high-water mark that can be reset."""
    try:
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK, encoding="ascii")
        return "VmHWM" in Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return False


def peak_bytes(call: Callable[[], object], empty_cache: Callable[[], None] | None = None) -> int:
    """Bytes that `call` needs at its peak beyond what the process holds before the call.

    `empty_cache` releases the memory of a pool.  The result of `call` is freed after measuring.
    """
    gc.collect()
    if empty_cache is not None:
        empty_cache()
    ctypes.CDLL(None).malloc_trim(0)
    before = resident_bytes()
    Path("/proc/self/clear_refs").write_text(_RESET_PEAK, encoding="ascii")
    result = call()
    peak = _status("VmHWM") - before
    del result
    return peak


def resident_bytes() -> int:
    """Bytes of memory that the process holds now."""
    return _status("VmRSS")


def _status(name: str) -> int:
    """Bytes that the system reports under `name`."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"peak memory: expected {name} in /proc/self/status, got none")
