"""What the tests of hand-written schedules share: parallel types, sizes, and how they are run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pyfuser import DataType, FusionDefinition, ParallelType
from pyfuser.interface import compiled_kernel_count

GRID_X, GRID_Y = ParallelType.grid_x, ParallelType.grid_y
BLOCK_X, BLOCK_Y = ParallelType.block_x, ParallelType.block_y
UNROLL, UNSWITCH = ParallelType.unroll, ParallelType.unswitch
VECTORIZE, SERIAL = ParallelType.vectorize, ParallelType.serial

PAIRS = [(3, 5), (1, 1), (37, 129), (64, 128), (2, 1000), (0, 7)]
MATRICES = [((a, b),) for a, b in PAIRS]


def float_matrix(fd: FusionDefinition) -> Any:
    return fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)


def parallelize(tensor: Any, kinds: Sequence[ParallelType]) -> None:
    for axis, kind in enumerate(kinds):
        tensor.axis(axis).parallelize(kind)


def run(fd: FusionDefinition, shapes: Sequence[Sequence[tuple[int, ...]]]) -> None:
    """One kernel for all shapes; its outputs equal the evaluator's within rounding."""
    torch.manual_seed(0)
    before = compiled_kernel_count()
    for number, inputs in enumerate(shapes):
        fd.manual_validate([torch.randn(shape) for shape in inputs])
        if number == 0:
            before = compiled_kernel_count()
    assert compiled_kernel_count() == before
    (program,) = fd.ke._kernel.executor.programs.values()
    assert len(program.parts) == 1


def kernel_of(fd: FusionDefinition) -> str:
    text: str = fd.fusion.print_kernel()
    return text
