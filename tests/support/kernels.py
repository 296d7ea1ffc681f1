"""Kernels with their statements, which the launches of a program don't keep."""

from __future__ import annotations

from pyfuser.compiler import Program
from pyfuser.ir.kernel import Kernel
from pyfuser.kernel_builds import lowered
from pyfuser.parts import KernelPart


def lowered_kernels(program: Program) -> list[Kernel]:
    """A program's kernels so far, lowered once more."""
    return [
        lowered(part.scheduler.schedule(part.fusion, made.parameters), program.runtime.target)
        for part in program.parts
        if isinstance(part, KernelPart)
        for made in part.kernels
    ]
