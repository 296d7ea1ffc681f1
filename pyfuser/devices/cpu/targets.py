"""The targets of this folder by name; another device's name imports nothing."""

from __future__ import annotations

from ...target.target import Target


def default_target() -> Target:
    """This processor."""
    from .host import host
    from .target import CpuTarget

    return CpuTarget(host())


def target_of(name: str) -> Target | None:
    """`cpu` is this processor."""
    return default_target() if name == "cpu" else None
