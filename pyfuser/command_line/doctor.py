"""`doctor`: what pyfuser finds on this machine, what is missing, and how to get it.

Puts versions, processor, threads, bandwidth, cache and optional parts into one table.  Every line
is a `Finding`, so that tests can check it.  Everything that may be missing here is optional for the
CPU, but for llvmlite, without which only GPUs have kernels.
"""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Column, Table

from .. import __version__, options
from ..caches.disk_cache import untrusted
from ..devices.bandwidth import copy_bandwidth
from ..devices.cuda import nvrtc
from ..devices.registry import runtime_of
from ..errors import PyfuserError
from ..frontend.options import DISABLE, ENABLE

# Too big for any cache, but small enough to take a fraction of a second.
_BANDWIDTH_BYTES = 128 << 20
_SHOWN_FEATURES = ("sse4.2", "avx2", "fma", "f16c", "avx512f", "avx512bf16", "avx512fp16", "neon")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked for, what was found, and how to get it if it is missing."""

    what: str
    found: str
    remedy: str = ""


def run() -> int:
    """Prints the findings."""
    found = Column("found", overflow="fold")  # nothing is cut off a name
    table = Table("what", found, "to get it", title="pyfuser doctor")
    for finding in findings():
        mark = "[yellow]" if finding.remedy else ""
        table.add_row(finding.what, f"{mark}{finding.found}", finding.remedy)
    Console().print(table)
    return 0


def findings() -> Iterator[Finding]:
    """Everything known about this machine, measured now."""
    yield from _versions()
    try:
        yield from _processor()
    except ImportError as error:
        yield Finding("llvmlite", f"missing: {error}", "pip install llvmlite; CPUs need it")
    yield Finding(
        "copy bandwidth",
        f"{copy_bandwidth(torch.device('cpu'), _BANDWIDTH_BYTES, 5) / 1e9:.1f} GB/s",
    )
    yield _disk_cache()
    yield _nvrtc()
    yield _gpu()
    yield _compiler()
    yield from _interface_options()


def _interface_options() -> Iterator[Finding]:
    for kind, table in (("enable", ENABLE), ("disable", DISABLE)):
        acting = (f"{name}: {effect}" for name, effect in table.items() if effect)
        yield Finding(f"{kind} options that act", "; ".join(acting))
        ignored = sorted(name for name, effect in table.items() if not effect)
        yield Finding(f"{kind} options without effect", " ".join(ignored))


def _versions() -> Iterator[Finding]:
    yield Finding("pyfuser", __version__)
    yield Finding("Python", platform.python_version())
    yield Finding("torch", torch.__version__)
    for package in ("numpy", "rich"):
        yield Finding(package, importlib.metadata.version(package))


def _processor() -> Iterator[Finding]:
    import llvmlite
    import llvmlite.binding as llvm

    from ..devices.cpu import threads
    from ..devices.cpu.host import host

    major, minor, patch = llvm.llvm_version_info
    yield Finding("llvmlite", f"{llvmlite.__version__} (LLVM {major}.{minor}.{patch})")
    found = host()
    features = " ".join(name for name in _SHOWN_FEATURES if found.has(name))
    yield Finding("processor", f"{found.cpu_name} ({found.architecture}), {found.cores} cores")
    yield Finding("vectors", f"{found.vector_bits} bits; {features or 'the baseline'}")
    sizes = (found.l1_bytes, found.l2_bytes, found.l3_bytes)
    yield Finding("caches", "L1 {}, L2 {}, L3 {}".format(*map(_bytes, sizes)))
    yield Finding("threads", f"{threads.thread_count()} ({threads.runtime_name()})")


def _disk_cache() -> Finding:
    directory = options.cache_directory()
    if directory is None:
        remedy = "unset PYFUSER_DISABLE_CACHE, have a home directory or set PYFUSER_CACHE_DIR"
        return Finding("disk cache", "none", remedy)
    complaint = untrusted(directory)
    if complaint is not None:
        remedy = "a directory that nobody else can write to"
        return Finding("disk cache", f"{directory} isn't used: {complaint}", remedy)
    entries = list(directory.glob("*.kernel")) if directory.is_dir() else []
    size = sum(path.stat().st_size for path in entries)
    return Finding("disk cache", f"{directory}: {len(entries)} kernels, {_bytes(size)}")


def _nvrtc() -> Finding:
    try:
        major, minor = nvrtc.version()
    except PyfuserError:
        return Finding("CUDA compiler", "missing", "pip install 'pyfuser[cuda]'")
    architectures = " ".join(nvrtc.supported_architectures())
    return Finding("CUDA compiler", f"NVRTC {major}.{minor}: {architectures}")


def _gpu() -> Finding:
    """The current GPU; otherwise why kernels can't run on one, and torch computes instead."""
    try:
        target = runtime_of(torch.device("cuda", _current_gpu())).target
    except PyfuserError as error:
        has_cuda = torch.version.cuda is not None
        remedy = "what the message asks for" if has_cuda else "a torch built with CUDA, and a GPU"
        return Finding("NVIDIA GPU", str(error), remedy)
    return Finding("NVIDIA GPU", f"{torch.cuda.get_device_name()}: {target.name}")


def _current_gpu() -> int:
    return torch.cuda.current_device() if torch.cuda.is_available() else 0


def _compiler() -> Finding:
    for name in ("g++", "clang++", "c++"):
        if path := shutil.which(name):
            return Finding("C++ compiler", f"{path} (for Inductor and emulated CUDA only)")
    remedy = "any C++17 compiler; only Inductor and emulated CUDA want one"
    return Finding("C++ compiler", "missing", remedy)


def _bytes(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB" if size >= 1 << 20 else f"{size / (1 << 10):.0f} KiB"
