"""Locks that a forked child can take though another thread of its parent held them.

A fork copies only the thread that calls it: a lock that another thread held would stay locked in
the child for ever.  It happens to the workers of a DataLoader that start while a model compiles in
the background.  What a lock guards may be half-done in the child, so every change under one must
leave what it guards usable at each of its steps.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref


class ForkSafeLock:
    """A reentrant lock, for `with`, that is open in a forked child."""

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()

    def open_after_fork(self) -> None:
        """In a forked child: the thread that held the lock, if any, isn't there."""
        self._lock = threading.RLock()


_locks: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for lock in list(_locks):
        lock.open_after_fork()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork_in_child)
