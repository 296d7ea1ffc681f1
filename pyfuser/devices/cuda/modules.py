"""Loaded modules of a GPU, unloaded when nothing can launch their functions any more.

The rule: a module is unloaded when all kernels that have its functions are garbage, and the cache
of the process (kernel_builds.py, thousands of texts) has dropped them, unless one of its functions
was launched while a CUDA graph was captured.  The graph may then launch it at any time, and nothing
tells when the graph is gone, so such a module stays loaded.

The garbage collector may run at any moment, also during a capture, when the driver must not be
called.  So a dropped module only goes on a list, and a later load unloads what is on it, once it is
worth waiting for the GPU: launches of these modules may still be under way.  A load during a
capture unloads nothing, as waiting would end the capture.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from ...locks import ForkSafeLock
from .driver import Driver

# Modules of some 20 KB each that are unloaded together: the GPU is waited for once for all of them.
WORTH_WAITING = 64


class LoadedModule:
    """A module in a GPU's context; `handle` is the driver's."""

    def __init__(self, handle: Any, dropped: list[Any]) -> None:
        self.handle = handle
        self._finalizer = weakref.finalize(self, dropped.append, handle)
        self._finalizer.atexit = False

    def keep(self) -> None:
        """Never unloads it: a CUDA graph has one of its functions."""
        self._finalizer.detach()


class LoadedModules:
    """The modules of one GPU; its context is current whenever a method is called."""

    def __init__(
        self,
        driver: Driver,
        synchronize: Callable[[], None],
        is_capturing: Callable[[], bool],
        free_unused: Callable[[], None],
    ) -> None:
        """`free_unused` gives the driver what torch's allocator keeps for later tensors."""
        self._driver, self._synchronize, self._is_capturing = driver, synchronize, is_capturing
        self._free_unused = free_unused
        self._dropped: list[Any] = []
        self._lock = ForkSafeLock()

    def load(self, cubin: bytes, where: str) -> LoadedModule:
        """The module of a cubin; see Driver.load."""
        if self._is_capturing():
            return LoadedModule(self._driver.load(cubin, where), self._dropped)
        if len(self._dropped) >= WORTH_WAITING:
            self._unload_dropped()
        return LoadedModule(self._driver.load(cubin, where, self._free_unused), self._dropped)

    def _unload_dropped(self) -> None:
        with self._lock:  # threads that load at the same time unload each module once
            dropped = [self._dropped.pop() for _ in range(len(self._dropped))]
        if dropped:
            self._synchronize()
        for handle in dropped:
            self._driver.unload(handle)
