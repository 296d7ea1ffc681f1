"""Reads of rows that an index points at fetch the rows of later iterations."""

from __future__ import annotations

import pytest
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.devices.cpu.host import host
from pyfuser.frontend.executors import stage_texts


def rows_definition(table: torch.Tensor, index: torch.Tensor) -> FusionDefinition:
    with FusionDefinition() as fd:
        rows = fd.ops.index_select(fd.from_pytorch(table), fd.from_pytorch(index), 0)
        fd.add_output(fd.ops.add(rows, fd.define_scalar(1.0, DataType.Float)))
    return fd


@pytest.mark.parametrize("columns", [1, 8, 33, 64, 70000])
@pytest.mark.parametrize("count", [0, 1, 7, 9, 40])
def test_any_number_of_rows(count: int, columns: int) -> None:
    table = torch.randn(11, columns)
    index = torch.arange(count) * 7 % 11
    (made,) = rows_definition(table, index).execute([table, index])
    assert torch.equal(made, table[index] + 1)


def test_odd_memory() -> None:
    index = torch.arange(64)[::3] % 5
    tables = [torch.randn(1, 40).expand(5, 40), torch.randn(5, 80)[:, 3:43], torch.randn(40, 5).t()]
    for table in tables:
        (made,) = rows_definition(table, index).execute([table, index])
        assert torch.equal(made, table[index] + 1)


def test_indices_of_two_axes() -> None:
    table = torch.randn(50, 24)
    index = (torch.arange(60) * 11 % 50).reshape(6, 10)

    def program(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(index, table) * 2

    compiled = torch.compile(program, backend="pyfuser")
    for each in (index, index.t(), index[:, ::3], index[:0], index[:, :1]):
        assert torch.equal(compiled(table, each), program(table, each))


def test_later_rows_are_fetched_by_the_line() -> None:
    """Rows may begin anywhere, so one fetch for each line of the unrolled vectors is enough."""
    table, index = torch.randn(64, 64), torch.arange(64)
    text = stage_texts(rows_definition(table, index).fusion, [table, index])["llvm"]
    fetches = text.count("call void @llvm.prefetch")
    loads = text.count("load <")
    vectors_of_line = 512 // host().vector_bits
    assert 0 < fetches <= max(loads // vectors_of_line, 1)
