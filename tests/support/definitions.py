"""Definitions that several tests run."""

from __future__ import annotations

from typing import Any

from pyfuser import DataType, FusionDefinition, ParallelType


def float_tensor(fd: FusionDefinition, rank: int, contiguity: Any = False) -> Any:
    """An input of symbolic sizes."""
    return fd.define_tensor([-1] * rank, contiguity=contiguity, dtype=DataType.Float)


def affine(scale: float, rank: int = 2) -> FusionDefinition:
    """x * scale + 1."""
    with FusionDefinition() as fd:
        x = float_tensor(fd, rank, True)
        fd.add_output(fd.ops.add(fd.ops.mul(x, scale), 1.0))
    return fd


def blocks_of_64_threads() -> FusionDefinition:
    """(x + y) * 3 of matrices, scheduled by hand."""
    with FusionDefinition() as fd:
        x, y = (float_tensor(fd, 2, True) for _ in "xy")
        z = fd.ops.mul(fd.ops.add(x, y), 3.0)
        fd.add_output(z)
        z.merge(0)
        z.split(0, 64)
        fd.sched.transform_like(z)
        z.axis(0).parallelize(ParallelType.grid_x)
        z.axis(1).parallelize(ParallelType.block_x)
        fd.sched.parallelize_like(z)
        fd.sched.inline_most()
    return fd
