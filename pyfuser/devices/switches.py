"""Switching fusing off and on, by device type, for what is defined and what was compiled already.

`can_fuse_on` is asked when something is compiled.  What was compiled before hears of a change:
executors that `watch` forget their plans, and the function of a compiled graph looks into the set
that `switched_off` gives it, which has something in it while its device is off.
"""

from __future__ import annotations

import threading
from collections.abc import Set as AbstractSet
from typing import Protocol
from weakref import WeakSet

from . import registry
from .registry import has_runtime


class Watcher(Protocol):
    """Who keeps something that holds only while no switch is changed."""

    def forget_plans(self) -> None:
        """Called after each change."""


_overrides: dict[str, bool] = {}
_off: dict[str, set[str]] = {}
_watchers: WeakSet[Watcher] = WeakSet()
_lock = threading.Lock()
_changes = 0


def can_fuse_on(device_type: str) -> bool:
    """True when there is a device for tensors of this type and nobody has switched it off."""
    override = _overrides.get(device_type)
    if override is not None:
        return override
    return has_runtime(device_type)


def switched_off(device_type: str) -> AbstractSet[str]:
    """A set that holds the device type while that is switched off, and nothing while it isn't."""
    with _lock:
        return _off.setdefault(device_type, set())


def override_can_fuse_on(device_type: str, value: bool | None) -> None:
    """Switches fusing on a device on or off; None gives the decision back."""
    with _lock:
        marks = _off.setdefault(device_type, set())
        if value is None:
            _overrides.pop(device_type, None)
        else:
            _overrides[device_type] = value
        if value is False:
            marks.add(device_type)
        else:
            marks.discard(device_type)
    _changed()


def _changed() -> None:
    """Has all watchers forget what they keep."""
    global _changes
    with _lock:
        _changes += 1
        watchers = list(_watchers)
    for watcher in watchers:
        watcher.forget_plans()


def register_runtime(device_type: str, runtime: registry.RuntimeOf | None) -> None:
    """Has tensors of a device type run by another runtime from now on; None undoes it."""
    registry.register_runtime(device_type, runtime)
    _changed()


def watch(watcher: Watcher) -> None:
    """Has a watcher told of every change, as long as it lives."""
    with _lock:
        _watchers.add(watcher)


def change_count() -> int:
    """Changes so far: what was made across one may be out of date."""
    return _changes
