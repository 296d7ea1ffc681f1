"""What lowering needs to know of a device, so that it never has to name one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceTraits:
    """`threads_are_hardware`: block axes are threads that run at once, with registers of their own
    and barriers between them; otherwise they are loops (vectorised where innermost), a tensor
    computed outside of such a loop has one element a lane, and no barrier is needed.
    """

    threads_are_hardware: bool
