"""Pairs of bfloat16 vectors: where loops use them, and that no result shows the lanes' order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pyfuser import DataType, FusionDefinition, ParallelType
from pyfuser.devices.cpu.host import host
from pyfuser.devices.cpu.processor import Processor
from pyfuser.frontend.executors import stage_texts
from tests.support.compiled import strict as strict
from tests.support.long_cases import pairwise
from tests.support.targets import PRETENDED, Pretend

pytestmark = pytest.mark.usefixtures("poison")

AVX2 = replace(host(), cpu_name="x86-64-v3", features="", vector_bits=256, has_fma=True)


def scaled(fd: FusionDefinition, dtypes: list[DataType]) -> None:
    x, weight, bias = (fd.define_tensor([-1], contiguity=True, dtype=d) for d in dtypes[:3])
    fd.add_output(fd.ops.cast(fd.ops.add(fd.ops.mul(x, weight), bias), dtypes[3]))


def centred(fd: FusionDefinition, dtypes: list[DataType]) -> None:
    x = fd.define_tensor([-1, -1], contiguity=True, dtype=dtypes[0])
    total = fd.ops.sum(fd.ops.cast(x, DataType.Float), [1], True)
    fd.add_output(fd.ops.cast(fd.ops.sub(x, total), dtypes[3]))


def columns(fd: FusionDefinition, dtypes: list[DataType]) -> None:
    x = fd.define_tensor([-1, -1], contiguity=True, dtype=dtypes[0])
    fd.add_output(fd.ops.cast(fd.ops.sum(fd.ops.cast(x, DataType.Float), [0]), dtypes[3]))


def counted(fd: FusionDefinition, dtypes: list[DataType]) -> None:
    x = fd.define_tensor([-1, -1], contiguity=True, dtype=dtypes[0])
    numbers = fd.ops.iota(fd.ops.size(x, 1), 0, 1, DataType.Float)
    added = fd.ops.add(x, fd.ops.broadcast(numbers, [True, False]))
    fd.add_output(fd.ops.cast(added, dtypes[3]))


def random(fd: FusionDefinition, dtypes: list[DataType]) -> None:
    x = fd.define_tensor([-1, -1], contiguity=True, dtype=dtypes[0])
    fd.add_output(fd.ops.cast(fd.ops.mul(x, fd.ops.rand_like(x)), dtypes[3]))


HALF, SINGLE = DataType.BFloat16, DataType.Float


@pytest.mark.parametrize(
    ("define", "dtypes", "loads"),
    [
        pytest.param(scaled, [HALF] * 4, True, id="pointwise"),
        pytest.param(centred, [HALF] * 4, True, id="row"),
        pytest.param(scaled, [HALF, SINGLE, HALF, HALF], False, id="a float operand"),
        pytest.param(scaled, [HALF, HALF, HALF, SINGLE], False, id="a float result"),
        pytest.param(centred, [DataType.Half] * 4, False, id="float16"),
        pytest.param(columns, [HALF] * 4, False, id="sums of columns"),
        pytest.param(counted, [HALF] * 4, False, id="numbers of places"),
        pytest.param(random, [HALF] * 4, False, id="random numbers"),
    ],
)
def test_loops_with_pairs(
    pretend: Pretend, define: Callable[..., None], dtypes: list[DataType], loads: bool
) -> None:
    with FusionDefinition() as fd:
        define(fd, dtypes)
    pretend(PRETENDED.processor)
    inputs = []
    for tensor in fd.fusion.inputs():
        dtype = {HALF: torch.bfloat16, SINGLE: torch.float32}.get(tensor.dtype(), torch.float16)
        shape = (4096,) if define is scaled else (64, 512)
        inputs.append(torch.randn(shape).to(dtype))
    text = stage_texts(fd.fusion, inputs)["llvm"]
    assert ("load <8 x i32>" in text) == loads
    if define is not random:
        fd.validate(inputs)


SHAPES = [(3, 31), (1, 129), (0, 64), (7, 100), (5, 16), (4, 48), (33, 256), (2, 1000)]
FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "scaled": lambda x, w: x * w - 3,
    "copied": lambda x, w: (x.clone(), x + 0),
    "row sum": lambda x, w: x - x.sum(-1, keepdim=True),
    "whole sum": lambda x, w: (x + w).sum(),
    "largest": lambda x, w: (x.max(-1), (x * w).argmin(-1)),
    "column sum": lambda x, w: (x * w).sum(0),
    "moved": lambda x, w: x.roll(1, -1) + x.flip(-1),
    "slices": lambda x, w: x[:, 1:] * x[:, :-1],
    "counted": lambda x, w: x + torch.arange(x.shape[-1]),
    "mixed": lambda x, w: (x * w.float(), x + w),
    "expanded": lambda x, w: x[:, :1].expand_as(x) * w,
    "transposed": lambda x, w: x.t() + w.unsqueeze(-1),
    "selected": lambda x, w: torch.where(x > 0, x, w),
    "running": lambda x, w: x.cumsum(-1) + w,
    "written": lambda x, w: x.clone().mul_(2).add_(w)[:, 1:].neg_(),
    "norm": lambda x, w: F.layer_norm(x.float(), x.shape[-1:]).to(x.dtype) if x.numel() else x,
}


@pytest.mark.parametrize(
    ("name", "processor", "caches", "shape"),
    pairwise(
        FUNCTIONS,
        [pytest.param(host(), id="host"), pytest.param(AVX2, id="avx2")],
        [pytest.param(True, id="cached"), pytest.param(False, id="uncached")],
        SHAPES,
        count=16,
    ),
)
def test_results(
    pretend: Pretend, name: str, processor: Processor, caches: bool, shape: tuple[int, int]
) -> None:
    """Of small whole numbers: their results are exact. Rows are whole pairs, and have ends."""
    pretend(processor if caches else replace(processor, l3_bytes=0))
    function = FUNCTIONS[name]
    compiled = torch.compile(function, backend="pyfuser", dynamic=True)
    rows, length = shape
    x = (torch.arange(rows * length).view(shape) * 7 % 5 - 2).bfloat16()
    w = (torch.arange(length) % 3 - 1).bfloat16()
    if rows and name != "norm":
        x[0, length // 2] = float("inf")
    for given in (x, torch.cat([x, x], 1)[:, 1 : 1 + length]):
        got, wanted = compiled(given, w), function(given, w)
        torch.testing.assert_close(got, wanted, equal_nan=True, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16], ids=str)
def test_every_nan_stays_one(pretend: Pretend, dtype: torch.dtype) -> None:
    """Those of float32 and float16 have bits that a rounding to bfloat16 could carry out of."""
    pretend(AVX2)
    kind = torch.int32 if dtype is torch.float32 else torch.int16
    bits = torch.arange(80000 if dtype is torch.float32 else 1 << 15).to(kind)
    quiet, largest = 0x7FC0, torch.full((64,), torch.iinfo(kind).max, dtype=kind)
    x = torch.cat([bits, ~bits, bits | quiet, largest]).view(dtype)
    compiled = torch.compile(lambda x: ((x + 1).bfloat16(), (-x).bfloat16()), backend="pyfuser")
    for got, wanted in zip(compiled(x), ((x + 1).bfloat16(), (-x).bfloat16()), strict=True):
        torch.testing.assert_close(got, wanted, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("lanes", [4, 8, 12, 64])
@pytest.mark.parametrize("unroll", [2, 3])
def test_schedules_by_hand(pretend: Pretend, lanes: int, unroll: int) -> None:
    """Twelve lanes, and 64, aren't one vector."""
    pretend(AVX2)
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=HALF)
        result = fd.ops.cast(fd.ops.add(x, x), HALF)
        fd.add_output(result)
        result.split(1, lanes)
        result.split(1, unroll)
        fd.sched.transform_like(result)
        fd.sched.inline_most()
        result.axis(0).parallelize(ParallelType.grid_x)
        result.axis(2).parallelize(ParallelType.unroll)
        result.axis(3).parallelize(ParallelType.block_x)
        fd.sched.parallelize_like(result)
    numbers = (torch.arange(4 * 384).view(4, 384) % 101).bfloat16()
    assert torch.equal(fd.manual_execute([numbers])[0], numbers + numbers)


@pytest.mark.parametrize(("dtypes", "pairs"), [([HALF] * 4, True), ([SINGLE] * 3 + [HALF], False)])
def test_pairs_round_without_the_instruction(
    pretend: Pretend, dtypes: list[DataType], pairs: bool
) -> None:
    """What it narrows would be widened again for the words of a pair."""
    pretend(replace(AVX2, cpu_name="znver4", features="+avx512bf16", vector_bits=512))
    with FusionDefinition() as fd:
        scaled(fd, dtypes)
    dtype = torch.bfloat16 if pairs else torch.float32
    text = stage_texts(fd.fusion, [torch.randn(4096).to(dtype) for _ in range(3)])["llvm"]
    assert ("load <16 x i32>" in text) == pairs
    blocks = (part for part in text.split("br label") if "fmul <16 x float>" in part)
    assert ("cvtneps2bf16" in next(blocks)) != pairs  # of a step; what is left makes no pairs


@pytest.mark.parametrize("columns", [32, 36, 64])
def test_a_pair_and_vectors_in_order_of_the_same_row(columns: int) -> None:
    """The sum reads a row of known length as a pair, which has other elements in its lanes than
    what is multiplied by weights in float32."""
    with FusionDefinition() as fd:
        x: Any = fd.define_tensor([-1, columns], contiguity=True, dtype=HALF)
        weight: Any = fd.define_tensor([columns], contiguity=True, dtype=SINGLE)
        wide = fd.ops.cast(x, SINGLE)
        centred = fd.ops.sub(wide, fd.ops.sum(wide, [1], True))
        fd.add_output(fd.ops.mul(centred, fd.ops.broadcast(weight, [True, False])))
    given = torch.arange(5.0 * columns).remainder(7).view(5, columns)
    weights = torch.arange(columns).remainder(5) - 2.0
    (got,) = fd.execute([given.bfloat16(), weights])
    assert torch.equal(got, (given - given.sum(1, keepdim=True)) * weights)
