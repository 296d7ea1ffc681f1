"""Interning: one object for equal keys, also if threads make it at the same time."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from ..locks import ForkSafeLock

_Made = TypeVar("_Made")


class Interned:
    """The objects that live, by key.

    What compares by identity relies on there being one object for each key, in all threads.
    """

    def __init__(self) -> None:
        self._objects: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
        self._lock = ForkSafeLock()
        self.get = self._objects.get

    def keep(self, key: Hashable, made: _Made) -> _Made:
        """`made`, or what another thread has made for the key since it was found missing."""
        with self._lock:
            found: _Made = self._objects.setdefault(key, made)
            return found
