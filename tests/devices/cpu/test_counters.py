"""Quotients and remainders of loop indices are counted: no iteration of a row's loop divides."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.compiler import stages
from pyfuser.devices.cpu import heuristics
from pyfuser.ir.vals import TensorView
from tests.support.targets import WIDE

pytestmark = pytest.mark.usefixtures("poison")


def definition(*shared: bool) -> FusionDefinition:
    """Sums of rows of products; one factor has an element on each of the `shared` axes."""
    with FusionDefinition() as fd:
        x: Any = fd.define_tensor([-1] * (len(shared) + 1), contiguity=True, dtype=DataType.Float)
        shape = [1 if is_shared else -1 for is_shared in shared]
        y: Any = fd.define_tensor([*shape, -1], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.sum(fd.ops.mul(x, y), [len(shared)]))
    return fd


def inputs(sizes: tuple[int, ...], shared: tuple[bool, ...], columns: int) -> list[torch.Tensor]:
    rows = [1 if is_shared else size for size, is_shared in zip(sizes, shared, strict=True)]
    x = torch.arange(1.0, 1 + torch.Size([*sizes, columns]).numel())
    y = torch.arange(1.0, 1 + torch.Size([*rows, columns]).numel())
    return [x.remainder(7).view(*sizes, columns), y.remainder(5).view(*rows, columns)]


SIZES = ((3, 5, 2, 7, 3), (1, 1, 4, 1, 2), (5, 1, 1, 3, 1), (13, 11, 1, 2, 5), (2, 0, 3, 1, 1))
SHARED = [(True, False), (False, True), (True, False, True), (False, True, False, True, False)]


@pytest.mark.parametrize("shared", SHARED, ids=str)
def test_rows_of_every_task_read_their_own(shared: tuple[bool, ...]) -> None:
    """Threads begin in the middle; axes have one element, or primes of them, or none."""
    fd = definition(*shared)
    for sizes in SIZES:
        for columns in (1, 17, 40):
            x, y = inputs(sizes[: len(shared)], shared, columns)
            (got,) = fd.execute([x, y])
            assert torch.equal(got, (x * y).sum(-1)), (sizes, columns)


@pytest.mark.parametrize("shared", SHARED, ids=str)
def test_rows_of_a_block_read_their_own(
    shared: tuple[bool, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a loop over the rows of a block counts begins where the task's rows begin."""
    monkeypatch.setattr(heuristics, "rows_of_reduction", lambda processor, *_: processor.lanes(4))
    fd = definition(*shared)
    for sizes in (*SIZES, (9, 4, 2, 7, 5)):
        for columns in (1, 17, 40):
            x, y = inputs(sizes[: len(shared)], shared, columns)
            (got,) = fd.execute([x, y])
            assert torch.equal(got, (x * y).sum(-1)), (sizes, columns)


@pytest.mark.parametrize("shared", SHARED, ids=str)
def test_no_row_divides(shared: tuple[bool, ...]) -> None:
    """All divisions come before the loop over the rows."""
    fusion = definition(*shared).fusion.definition
    read = [tensor.axes for tensor in fusion.inputs if isinstance(tensor, TensorView)]
    sizes = {s.name: 40 for axes in read for axis in axes for s in axis.extent.symbols}
    layouts = [(tuple(range(len(axes))), (True,) * len(axes)) for axes in read]
    before, _, loop = stages(fusion, sizes, layouts, WIDE)["llvm"].partition("\nhead")
    division = re.compile(r"[us](div|rem) i64")
    assert division.search(before) and not division.search(loop)
