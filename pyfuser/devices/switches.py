"""Switches fusing off and on, by device type, for new definitions and for compiled ones.

`can_fuse_on` is called when something is compiled.  Anything compiled earlier is told of a change:
executors that `watch` drop their plans, and the function of a compiled graph looks into the set
returned by `switched_off`, which is non-empty while its device is off.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Protocol
from weakref import WeakSet

from ..locks import ForkSafeLock
from . import registry
from .registry import has_runtime


class Watcher(Protocol):
    """An object whose state is valid only until a switch changes."""

    def forget_plans(self) -> None:
        """Called after each change."""


_overrides: dict[str, bool] = {}
_off: dict[str, set[str]] = {}
_watchers: WeakSet[Watcher] = WeakSet()
_lock = ForkSafeLock()
_changes = 0


def can_fuse_on(device_type: str) -> bool:
    """True if there is a device for tensors of this type and it isn't switched off."""
    override = _overrides.get(device_type)
    if override is not None:
        return override
    return has_runtime(device_type)


def switched_off(device_type: str) -> AbstractSet[str]:
    """A set that contains the device type while it is switched off, and is empty otherwise."""
    with _lock:
        return _off.setdefault(device_type, set())


def override_can_fuse_on(device_type: str, value: bool | None) -> None:
    """Switches fusing on a device on or off; None restores the default."""
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
    forget_plans()


def forget_plans() -> None:
    """Makes all watchers decide again, after a change of anything that their plans depend on."""
    global _changes
    with _lock:
        _changes += 1
        watchers = list(_watchers)
    for watcher in watchers:
        watcher.forget_plans()


def register_runtime(device_type: str, runtime: registry.RuntimeOf | None) -> None:
    """Makes another runtime run the tensors of a device type from now on; None undoes it."""
    registry.register_runtime(device_type, runtime)
    forget_plans()


def watch(watcher: Watcher) -> None:
    """Registers a watcher for every change, as long as it lives."""
    with _lock:
        _watchers.add(watcher)


def change_count() -> int:
    """The number of changes so far: anything made while it changed may be out of date."""
    return _changes
