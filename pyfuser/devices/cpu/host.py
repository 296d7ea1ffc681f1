"""The processor that this process runs on.

`host()` reads the processor's name and features (from LLVM, which asks the processor itself) and
its caches (from the operating system) once.  The copy bandwidth takes time to measure, so it is
measured on request, never at import.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import re
import sys
from pathlib import Path

import llvmlite.binding as llvm

from .processor import Processor

_SYSFS_CPU = Path("/sys/devices/system/cpu/cpu0")
# Of a third cache, a core has at most this much: others have the rest, on other cores or in other
# virtual machines.  Measured with two cores of an Emerald Rapids, whose cache has 300 MiB, between
# calls of other libraries: stored past the caches, results of 16 MiB take 0.55 to 0.8 of the time,
# two or three results of 6 MiB each 0.65 to 1.  A kernel that reads them next takes as long
# for 12 MiB and more, and up to 1.2 times as long for 8 MiB.  On a Granite Rapids (480 MiB),
# kernels that touch 64 to 96 MiB are as fast as out of cache.
_MOST_L3_OF_CORE = 12 << 20


@functools.cache
def host() -> Processor:
    """The processor of this process, read once."""
    architecture = platform.machine().lower()
    # LLVM doesn't know the features of every processor; an empty text means the baseline.
    features = llvm.get_host_cpu_features()
    present = {name for name, is_present in features.items() if is_present}
    l1, l2, l3, line = _caches()
    cores = _usable_cores()
    return Processor(
        cpu_name=llvm.get_host_cpu_name(),
        features=features.flatten(),
        architecture=architecture,
        vector_bits=_vector_bits(present),
        # Every AArch64 processor has a fused multiply-add; on x86 it is a feature of its own.
        has_fma=architecture in ("aarch64", "arm64") or "fma" in present,
        cores=cores,
        l1_bytes=l1,
        l2_bytes=l2,
        l3_bytes=min(l3, cores * _MOST_L3_OF_CORE),
        cache_line_bytes=line,
    )


def _vector_bits(present: set[str]) -> int:
    """Width of the widest vector registers worth using."""
    # avx512vl/bw/dq came with the first server parts; avx512f alone (Knights Landing) lacks masked
    # byte and word operations, which the tails of half and bool tensors need.
    if {"avx512f", "avx512vl", "avx512bw", "avx512dq"} <= present:
        return 512
    return 256 if "avx2" in present else 128


def _usable_cores() -> int:
    """Cores this process may run on: its affinity, if the system has one."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _caches() -> tuple[int, int, int, int]:
    """(L1 data, L2, L3, line) in bytes; a cautious default for what the system doesn't say."""
    # The defaults are the smallest among x86 and AArch64 server parts of the last ten years: a tile
    # that is too small costs a few per cent, one that is too big falls out of the cache.
    found = {"l1": 32 << 10, "l2": 512 << 10, "l3": 4 << 20, "line": 64}
    found.update(_sysctl_caches() if sys.platform == "darwin" else _sysfs_caches())
    return found["l1"], found["l2"], found["l3"], found["line"]


def _sysfs_caches() -> dict[str, int]:
    """Cache sizes from Linux's sysfs; the L3 is shared, the others belong to core 0."""
    found: dict[str, int] = {}
    for index in sorted((_SYSFS_CPU / "cache").glob("index*")):
        try:
            if (index / "type").read_text().strip() == "Instruction":
                continue
            level = (index / "level").read_text().strip()
            found[f"l{level}"] = _parse_size((index / "size").read_text())
            found["line"] = int((index / "coherency_line_size").read_text())
        except (OSError, ValueError):
            continue  # a container may hide individual files: keep the default
    return found


def _parse_size(text: str) -> int:
    """Bytes of sysfs's `32K` or `2M`; ValueError for anything else."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text.strip())
    if match is None:
        raise ValueError(f"cache size: expected digits with K, M or G, got {text!r}")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]


def _sysctl_caches() -> dict[str, int]:
    """Cache sizes from macOS's sysctl; names with perflevel0 are the fast cores."""
    libc = ctypes.CDLL(None)
    found: dict[str, int] = {}
    for key, names in {
        "l1": ("hw.perflevel0.l1dcachesize", "hw.l1dcachesize"),
        "l2": ("hw.perflevel0.l2cachesize", "hw.l2cachesize"),
        "l3": ("hw.l3cachesize",),
        "line": ("hw.cachelinesize",),
    }.items():
        for name in names:
            value, length = ctypes.c_int64(0), ctypes.c_size_t(8)
            status = libc.sysctlbyname(
                name.encode(),
                ctypes.byref(value),
                ctypes.byref(length),
                None,
                ctypes.c_size_t(0),
            )
            if status == 0 and value.value > 0:
                found[key] = value.value
                break
    return found
