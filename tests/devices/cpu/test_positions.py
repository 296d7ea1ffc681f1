"""Positions along a vector are compared with a row's number in 32 bits, whatever the number is."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.compiler import stages
from tests.support.targets import WIDE

pytestmark = pytest.mark.usefixtures("poison")

COMPARISONS = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
INT64 = torch.iinfo(torch.int64)
NUMBERS = [INT64.min, INT64.min + 1, -(2**32), -17, -1, 0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 99]
NUMBERS += [2**31, 2**32, 2**32 + 3, INT64.max - 1, INT64.max]


def definition(name: str, columns: int, *, is_first: bool) -> FusionDefinition:
    """One where the comparison of a column's position with a row's number holds, else zero."""
    with FusionDefinition() as fd:
        x: Any = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        row: Any = fd.define_tensor([-1, 1], contiguity=[True, None], dtype=DataType.Int)
        place = fd.ops.broadcast(fd.ops.iota(columns), [True, False])
        operands = (place, row) if is_first else (row, place)
        fd.add_output(fd.ops.where(getattr(fd.ops, name)(*operands), x, 0.0))
    return fd


@pytest.mark.parametrize("is_first", [True, False], ids=["position first", "position last"])
@pytest.mark.parametrize("name", COMPARISONS)
def test_all_numbers(name: str, is_first: bool) -> None:
    compare: Callable[[Any, Any], Any] = COMPARISONS[name]
    row = torch.tensor(NUMBERS)[:, None]
    for columns in (1, 5, 16, 17, 33, 100):
        place = torch.arange(columns)
        holds = compare(place, row) if is_first else compare(row, place)
        fd = definition(name, columns, is_first=is_first)
        (got,) = fd.execute([torch.ones(len(NUMBERS), columns), row])
        assert torch.equal(got, holds.float()), columns


def test_no_vector_of_64_bits() -> None:
    fusion = definition("eq", 64, is_first=True).fusion.definition
    layouts = [((0, 1), (True, True)), ((0, 1), (True, False))]
    text = stages(fusion, {"i0": 40, "i1": 64, "i2": 40}, layouts, WIDE)["llvm"]
    assert "icmp eq <16 x i32>" in text and "icmp eq <16 x i64>" not in text
