"""A map that keeps, in this process, what compilation makes; caches/ keeps it on disk.

KernelCache is a bounded map for many threads.  The first thread that asks for a key makes the
value; other threads that ask for the same key wait for it, and other keys are unaffected.  A
failure reaches every waiting thread but isn't stored.  The cache is independent of devices: its
user must put everything into a key on which the validity of the value depends (processor,
versions).
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from .errors import InternalError, expected

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

# About 100 KB each with machine code, plans and text: 4096 stay under half a gigabyte.
DEFAULT_CAPACITY = 4096


class _Pending(Generic[Value]):
    """A value that a thread is making; `done` is set once `value` or `error` is set."""

    __slots__ = ("done", "error", "owner", "value")

    def __init__(self) -> None:
        self.done = threading.Event()
        self.owner = threading.get_ident()
        self.value: Value | None = None
        self.error: BaseException | None = None


class KernelCache(Generic[Key, Value]):
    """A bounded, thread-safe map that makes each value once and drops the least recently used."""

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        self.capacity = capacity
        self.hits = 0
        self.misses = 0
        self.created = 0
        self.evictions = 0
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self._pending: dict[Key, _Pending[Value]] = {}
        self._lock = threading.Lock()
        _caches.add(self)

    def values(self) -> list[Value]:
        """The current values, the least recently used first."""
        with self._lock:
            return list(self._values.values())

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: Key) -> bool:
        return key in self._values

    def get_or_create(self, key: Key, factory: Callable[[], Value]) -> Value:
        """The value of `key`; `factory()` makes it, without a lock held, if it is missing.

        Exceptions of `factory` are raised here and in every thread that waited for it; the next
        request tries again.  A request that waited counts as a hit if it got the value.
        """
        while True:
            with self._lock:
                if key in self._values:
                    self.hits += 1
                    self._values.move_to_end(key)
                    return self._values[key]
                pending = self._pending.get(key)
                if pending is None:
                    self.misses += 1
                    pending = self._pending[key] = _Pending()
                    break
            if pending.owner == threading.get_ident():
                raise InternalError(
                    expected("KernelCache", "a factory that doesn't ask for its own key", repr(key))
                )
            pending.done.wait()
            # An interrupt (KeyboardInterrupt, SystemExit) concerns only the thread that got it:
            # waiting threads try again.
            if isinstance(pending.error, Exception):
                raise pending.error
        return self._create(key, pending, factory)

    def clear(self) -> None:
        """Forget all values; the counters stay."""
        with self._lock:
            self._values.clear()

    def _create(self, key: Key, pending: _Pending[Value], factory: Callable[[], Value]) -> Value:
        """Make the value, store it, and wake the waiting threads."""
        try:
            value = factory()
        except BaseException as error:
            pending.error = error
            with self._lock:
                self._pending.pop(key, None)
            pending.done.set()
            raise
        evicted = []
        with self._lock:
            self._pending.pop(key, None)
            self.created += 1
            self._values[key] = value
            while len(self._values) > self.capacity:
                # Kept until the lock is released: dropping a kernel may run code that calls back.
                evicted.append(self._values.popitem(last=False))
                self.evictions += 1
        pending.done.set()
        return value

    def reset_after_fork(self) -> None:
        """In a forked child: the threads that held the lock or were making values are gone."""
        self._lock = threading.Lock()
        self._pending = {}


_caches: weakref.WeakSet[KernelCache[Any, Any]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for cache in list(_caches):
        cache.reset_after_fork()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork_in_child)
