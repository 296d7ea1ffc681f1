"""The targets of this folder by name; another device's name imports nothing."""

from __future__ import annotations

from ...target.target import Target


def default_target() -> Target:
    """The oldest architecture that NVRTC knows."""
    from .target import CudaTarget

    return CudaTarget()


def target_of(name: str) -> Target | None:
    """`sm_NN` is an architecture."""
    if not name.startswith("sm_"):
        return None
    from .target import CudaTarget

    return CudaTarget.of(name)
