"""The last vectors of rows: only the row's elements are read and written, whatever its length."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.compiler import stages
from pyfuser.dtypes import from_torch
from pyfuser.target.target import Target
from tests.support.targets import PRETENDED, WIDE

pytestmark = pytest.mark.usefixtures("poison")

LENGTHS = (1, 2, 3, 5, 7, 8, 9, 15, 17, 31, 33, 63, 65, 129)
DTYPES = (
    torch.float32, torch.float64, torch.bfloat16, torch.float16,
    torch.int64, torch.int8, torch.bool,
)  # fmt: skip


def numbers(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Small whole numbers."""
    return torch.arange(rows * columns).view(rows, columns).remainder(5).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_beside_a_row_stays(dtype: torch.dtype) -> None:
    """Rows of a wider tensor are updated in place."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=[False, True], dtype=from_torch(dtype))
        fd.add_output(fd.ops.where(fd.ops.eq(x, 1), fd.ops.cast(0, from_torch(dtype)), x), x)
    for columns in LENGTHS:
        wide = numbers(6, columns + 5, dtype)
        want = wide.clone()
        want[:, :columns][want[:, :columns] == 1] = 0
        fd.execute([wide[:, :columns]])
        assert torch.equal(wide, want), columns


@pytest.mark.parametrize("dtype", DTYPES[:4], ids=str)
def test_norms_of_rows(dtype: torch.dtype) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=[False, True], dtype=from_torch(dtype))
        wide = fd.ops.cast(x, DataType.Float if dtype.itemsize < 8 else DataType.Double)
        centred = fd.ops.sub(wide, fd.ops.max(wide, [1], True))
        fd.add_output(fd.ops.cast(centred, from_torch(dtype)))
    for columns in LENGTHS:
        x = numbers(6, columns + 5, dtype)[:, :columns]
        (got,) = fd.execute([x])
        assert torch.equal(got, x - x.amax(1, keepdim=True))


def llvm(target: Target) -> str:
    with FusionDefinition() as fd:
        x: Any = fd.define_tensor([-1, -1], contiguity=[False, True], dtype=DataType.Float)
        fd.add_output(fd.ops.sub(x, fd.ops.sum(x, [1], True)))
    layout = ((0, 1), (False, True))
    return stages(fd.fusion.definition, {"i0": 64, "i1": 63}, [layout], target)["llvm"]


def test_masks_are_compared_in_as_many_bits_as_elements_have() -> None:
    text = llvm(PRETENDED)
    assert "icmp slt <8 x i32>" in text and "icmp slt <8 x i64>" not in text


def test_only_processors_with_masks_store_by_them() -> None:
    """Others store the first lanes in parts: eight, four, two, one."""
    narrow, wide = llvm(PRETENDED), llvm(WIDE)
    assert "llvm.masked.store" in wide and "llvm.masked.store" not in narrow
    for part in ("<8 x float>", "<4 x float>", "<2 x float>"):
        assert f"store {part}" in narrow
