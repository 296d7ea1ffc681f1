"""Cubins: machine code of texts, compiled by several threads and kept between processes.

CUDA C++ text -> (disk cache, or NVRTC) -> the cubin of one architecture.  NVRTC holds neither
Python's lock nor one of its own while it compiles, so threads are enough to compile several kernels
at once.  GPUs of one architecture share a compiler.

Invariant: the key of a cubin in the disk cache has everything that it depends on: the text with its
prelude, the architecture, NVRTC's version and options.
"""

from __future__ import annotations

import functools
import os
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from ...locks import ForkSafeLock
from ..runtime import ObjectCache
from . import nvrtc
from .device_helpers import with_device_helpers

CompileText = Callable[[str, str], bytes]  # (text, architecture) -> cubin

# Cubins have some 20 KB: a second GPU, or a plan that is written again, finds them here.
_MOST_KEPT = 256


class CubinCompiler:
    """Compiles texts for one architecture.

    `version` is what cubins depend on apart from the text: the compiler and its options.
    """

    def __init__(self, architecture: str, compile_text: CompileText, version: str) -> None:
        self.architecture, self.version = architecture, version
        self.cache: ObjectCache | None = None
        self._compile_text = compile_text
        self._cubins: OrderedDict[str, Future[bytes]] = OrderedDict()
        self._lock = ForkSafeLock()

    def start(self, text: str) -> Future[bytes]:
        """Begins compiling a kernel's text in a thread, unless that has been done."""
        with self._lock:
            found = self._cubins.get(text)
            if found is None:
                found = self._cubins[text] = _threads().submit(self._make, text)
            self._cubins.move_to_end(text)
            while len(self._cubins) > _MOST_KEPT:
                self._cubins.popitem(last=False)
            return found

    def cubin(self, text: str) -> bytes:
        """The cubin of a kernel's text.  CompilationError if it doesn't compile."""
        try:
            return self.start(text).result()
        except BaseException:
            with self._lock:  # another request tries again
                self._cubins.pop(text, None)
            raise

    def _make(self, text: str) -> bytes:
        whole, cache = with_device_helpers(text), self.cache
        key = "\n".join((self.version, self.architecture, whole))
        found = None if cache is None else cache.load(key)
        if found is None:
            found = self._compile_text(whole, self.architecture)
            if cache is not None:
                cache.store(key, found)
        return found


@functools.cache
def cubin_compiler(architecture: str) -> CubinCompiler:
    """NVRTC for an architecture; UnsupportedError if it isn't installed."""
    major, minor = nvrtc.version()
    version = " ".join((f"NVRTC {major}.{minor}", *nvrtc.OPTIONS))
    return CubinCompiler(architecture, nvrtc.compile_to_cubin, version)


@functools.cache
def _threads() -> ThreadPoolExecutor:
    """As many threads as this process may use cores.

    There are none in a forked process, which can't use CUDA at all.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return ThreadPoolExecutor(cores or 1, thread_name_prefix="pyfuser NVRTC")
