"""Shared objects of compiled kernels: loaded when they are used, unloaded if there are too many.

A process can have some 65,000 mappings, of which a shared object of instrumented code has ten; a
run of the test-suite launches more kernels than that.
"""

from __future__ import annotations

import _ctypes
import ctypes
import functools
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ....locks import ForkSafeLock

_LIBRARIES = ("libm.so.6", "libgcc_s.so.1", "libstdc++.so.6")
_MOST_LOADED = 1024


class SharedObject:
    """A shared object, whose functions one thread calls at a time: it has one state, and ctypes
    drops the GIL.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, ForkSafeLock()

    @staticmethod
    def of(path: Path) -> SharedObject:
        """That of a file; OSError if it calls a function that doesn't exist."""
        with _lock:
            found = _known.setdefault(path, SharedObject(path))
        with found.functions():
            return found

    @contextmanager
    def functions(self) -> Iterator[ctypes.CDLL]:
        """Its functions, for this thread alone."""
        with self._lock:
            with _lock:
                library = _unused.pop(self, None)
            if library is None:
                library = _loaded(self._path)
            try:
                yield library
            finally:
                with _lock:
                    _unused[self] = library
                    while len(_unused) > _MOST_LOADED:
                        _, oldest = _unused.popitem(last=False)
                        _ctypes.dlclose(oldest._handle)


_known: dict[Path, SharedObject] = {}
_unused: OrderedDict[SharedObject, ctypes.CDLL] = OrderedDict()  # loaded; used last comes last
_lock = ForkSafeLock()


@functools.cache
def _load_libraries() -> None:
    """What shared objects of kernels need, for all that are loaded later."""
    for name in _LIBRARIES:
        ctypes.CDLL(name, ctypes.RTLD_GLOBAL)


def _loaded(path: Path) -> ctypes.CDLL:
    _load_libraries()
    return ctypes.CDLL(str(path))
