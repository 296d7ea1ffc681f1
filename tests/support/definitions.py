"""Definitions that several tests run."""

from __future__ import annotations

from typing import Any

from pyfuser import DataType, FusionDefinition


def float_tensor(fd: FusionDefinition, rank: int, contiguity: Any = False) -> Any:
    """An input of symbolic sizes."""
    return fd.define_tensor([-1] * rank, contiguity=contiguity, dtype=DataType.Float)


def affine(scale: float, rank: int = 2) -> FusionDefinition:
    """x * scale + 1."""
    with FusionDefinition() as fd:
        x = float_tensor(fd, rank, True)
        fd.add_output(fd.ops.add(fd.ops.mul(x, scale), 1.0))
    return fd
