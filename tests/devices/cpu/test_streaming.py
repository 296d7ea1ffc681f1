"""Stores past the caches, of a processor without caches: no address may be one they can't take."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pyfuser import DataType, FusionDefinition
from pyfuser.devices.cpu.host import host
from pyfuser.devices.cpu.target import CpuTarget
from pyfuser.dtypes import to_torch
from pyfuser.frontend.executors import stage_texts
from tests.support.targets import PRETENDED, WIDE, Pretend

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.bool)


@pytest.fixture
def uncached(pretend: Pretend) -> None:
    """Every output counts as larger than the caches."""
    pretend(replace(host(), l3_bytes=0))


def numbers(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """Small whole numbers."""
    return torch.arange(rows * columns).view(rows, columns).remainder(97).to(dtype)


def beginning_at(offset: int, like: Tensor) -> Tensor:
    """Zeros of the same shape, so many elements behind where memory was allocated."""
    return like.new_zeros(like.numel() + offset)[offset:].view(like.shape)


@pytest.mark.usefixtures("uncached")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("offset", [0, 1, 4, 8, 16])
def test_the_caller_s_memory_begins_anywhere(dtype: torch.dtype, offset: int) -> None:
    x = numbers(64, 96, dtype)
    transposed, copied = beginning_at(offset, x.t()), beginning_at(offset, x)

    @torch.compile(backend="pyfuser")
    def update(transposed: Tensor, copied: Tensor, x: Tensor) -> None:
        transposed.copy_(x.t())
        copied.copy_(x ^ x if x.dtype is torch.bool else x + x)

    update(transposed, copied, x)
    assert torch.equal(transposed, x.t())
    assert torch.equal(copied, x ^ x if dtype is torch.bool else x + x)


@pytest.mark.usefixtures("uncached", "poison")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(64, 128), (128, 80), (61, 67), (16, 1), (130, 33)], ids=str)
def test_rows_that_end_within_a_cache_line(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    x = numbers(*shape, dtype)
    made = torch.compile(lambda x: x.t().contiguous(), backend="pyfuser")(x)
    assert torch.equal(made, x.t())


def test_vectors_of_a_cache_line_are_stored_one_after_the_other(pretend: Pretend) -> None:
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1, -1], dtype=DataType.Float) for _ in range(2))
        fd.add_output(fd.ops.add(x, y))
    pretend(PRETENDED.processor)
    text = stage_texts(fd.fusion, [torch.randn(80, 96), torch.randn(96, 80).t()])["asm"]
    stores = re.findall(r"vmovntps\s+%ymm\d+, (-?\d*)(\(.*\))", text)
    assert len(stores) == 16
    for (first, row), (second, again) in zip(stores[::2], stores[1::2], strict=True):
        assert row == again and int(second or 0) == int(first or 0) + 32


@pytest.mark.usefixtures("uncached", "poison")
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8], ids=str
)
@pytest.mark.parametrize("columns", [1, 8, 31, 40, 48, 63, 72, 100, 104])
def test_rows_that_end_anywhere_are_stored_past_the_caches(
    dtype: torch.dtype, columns: int
) -> None:
    x, weight = numbers(37, columns, dtype), numbers(1, columns, dtype)
    update = torch.compile(lambda x, weight, into: into.copy_(x ^ weight), backend="pyfuser")
    if dtype.is_floating_point:
        update = torch.compile(lambda x, weight, into: into.copy_(x - weight), backend="pyfuser")
    expected = x - weight if dtype.is_floating_point else x ^ weight
    for width in (columns, columns + 8, 128):
        around = torch.full((37, width), 77).to(dtype)
        update(x, weight, around[:, :columns])
        assert torch.equal(around[:, :columns], expected)
        assert (around[:, columns:] == 77).all()


NUMBERS = (
    DataType.Float, DataType.Double, DataType.BFloat16, DataType.Half, DataType.Int, DataType.Int32,
)  # fmt: skip


@pytest.mark.parametrize("target", [PRETENDED, WIDE], ids=["256", "512"])
@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_the_machine_code_has_the_stores(
    pretend: Pretend, dtype: DataType, target: CpuTarget
) -> None:
    """LLVM drops the hint, silently, where it has no instruction for a type."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True, dtype=dtype)
        fd.add_output(fd.ops.cast(fd.ops.add(x, x), dtype))
    pretend(replace(target.processor, l3_bytes=0))
    texts = stage_texts(fd.fusion, [torch.zeros(4096, dtype=to_torch(dtype))])
    hints = len(re.findall(r"store .*!nontemporal", texts["llvm"]))
    assert hints > 0 and texts["asm"].count("vmovnt") >= hints


@pytest.mark.usefixtures("uncached")
def test_rows_that_don_t_follow_each_other_are_fetched_ahead(pretend: Pretend) -> None:
    """Heads of 70 elements: the same part of the row 16 positions later, as far as that is."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1, -1, -1], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.neg(fd.ops.permute(x, [0, 2, 1, 3])))
    fd.validate([torch.randn(4, 128, 6, 70)])
    pretend(replace(host(), cpu_name="x86-64-v4", features="", vector_bits=512, l3_bytes=0))
    text = stage_texts(fd.fusion, [torch.randn(4, 128, 6, 70)])["llvm"]
    assert "call void @llvm.prefetch" in text
    assert not re.search(r"getelementptr i8, ptr %\w+, i64 4096", text)


def test_a_cache_line_isn_t_stored_both_ways(pretend: Pretend) -> None:
    """The last vectors of a row share a line with the first of the next."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.BFloat16)
        weight = fd.define_tensor([-1], contiguity=True, dtype=DataType.BFloat16)
        fd.add_output(fd.ops.cast(fd.ops.mul(x, weight), DataType.BFloat16))
    pretend(replace(host(), l3_bytes=0))
    inputs = [torch.randn(64, 48).bfloat16(), torch.randn(48).bfloat16()]
    text = stage_texts(fd.fusion, inputs)["llvm"]
    blocks = text.split(":\n")
    assert sum("!nontemporal" in block for block in blocks) == 2  # of the loop and of a row's end
    fd.validate(inputs)


@pytest.mark.parametrize(("columns", "lanes"), [(1024, 32), (1000, 8), (1001, 32)])
def test_vectors_that_are_computed_together_are_stored_past_the_caches(
    pretend: Pretend, columns: int, lanes: int
) -> None:
    """Rows end with a step, if they end with a vector; both lines of 32 elements are fetched."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        weight = fd.define_tensor([-1], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.exp(fd.ops.mul(x, weight)))
    pretend(replace(PRETENDED.processor, l3_bytes=0))
    text = stage_texts(fd.fusion, [torch.randn(64, columns), torch.randn(columns)])["llvm"]
    assert re.search(rf"store <{lanes} x float> .*, align \d+, !nontemporal", text)
    calls, loads = text.count("call void @llvm.prefetch"), text.count(f"= load <{lanes} x float>")
    assert calls == loads * max(lanes * 4 // 64, 1)


@pytest.mark.usefixtures("uncached", "poison")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("columns", [17, 31, 40, 48, 63, 72, 100, 104, 128, 150])
def test_rows_of_functions_end_anywhere(dtype: torch.dtype, columns: int) -> None:
    """Several vectors are computed together on some machines."""
    x, weight = numbers(37, columns, dtype) / 97, numbers(1, columns, dtype) / 97
    update = torch.compile(
        lambda x, weight, into: into.copy_((x - weight).exp()), backend="pyfuser"
    )
    for width in (columns, columns + 8, 256):
        around = torch.full((37, width), 77).to(dtype)
        update(x, weight, around[:, :columns])
        torch.testing.assert_close(around[:, :columns], (x - weight).exp())
        assert (around[:, columns:] == 77).all()
