"""Rows that are put together in a buffer and stored by whole cache lines, wherever they begin."""

from __future__ import annotations

import math
import platform
import re
from dataclasses import replace

import pytest
import torch

from pyfuser import FusionDefinition
from pyfuser.devices.cpu.host import host
from pyfuser.frontend.executors import stage_texts
from tests.support.long_cases import pairwise
from tests.support.targets import Pretend

from .test_machines import MACHINES

pytestmark = [
    pytest.mark.usefixtures("poison"),
    pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="x86 code"),
]

KINDS = ["host", *MACHINES]
DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.int8,
    torch.bool,
    torch.complex64,
    torch.complex128,
)


def transposed(x: torch.Tensor, *order: int) -> torch.Tensor:
    """The axes in this order, also in memory."""
    torch._dynamo.reset()
    return torch.compile(lambda x: x.permute(order).contiguous(), backend="pyfuser")(x)


@pytest.mark.parametrize(
    ("kind", "dtype", "shape", "is_streamed"),
    pairwise(
        KINDS,
        DTYPES,
        [(16, 16), (257, 64), (1023, 67), (33, 520), (1031, 16)],
        [pytest.param(False, id="cached"), pytest.param(True, id="streamed")],
        strength=3,
        count=50,  # all pairs, and many of the threes
    ),
)
def test_rows_of_any_length(
    kind: str, dtype: torch.dtype, shape: tuple[int, int], is_streamed: bool, pretend: Pretend
) -> None:
    machine = MACHINES.get(kind, host())
    pretend(replace(machine, l3_bytes=0) if is_streamed else machine)
    x = torch.arange(shape[0] * shape[1]).remainder(101).view(shape).to(dtype)
    made = transposed(x, 1, 0)
    assert torch.equal(made, x.t()) and made.is_contiguous()


@pytest.mark.parametrize(
    ("few", "sizes", "dtype"),
    pairwise(
        [1, 3, 7, 2, 4],
        [(17, 5), (1, 40), (64, 33), (100, 64)],
        [torch.bfloat16, torch.float32, torch.int8],
    ),
)
def test_a_short_axis_is_read_with_the_next_one(
    few: int, sizes: tuple[int, int], dtype: torch.dtype
) -> None:
    """Rows are one range in the input's memory; in the output's they are far from each other."""
    x = torch.arange(sizes[0] * sizes[1] * few).remainder(101).view(*sizes, few).to(dtype)
    for order in ((2, 1, 0), (1, 2, 0)):
        made = transposed(x, *order)
        assert torch.equal(made, x.permute(order)) and made.is_contiguous()


def test_rows_are_stored_past_the_caches(pretend: Pretend) -> None:
    pretend(replace(host(), l3_bytes=0))
    x = torch.randn(4099, 128)
    with FusionDefinition() as fd:
        y = fd.from_pytorch(x.new_empty(128, 4099))
        fd.add_output(fd.ops.add(fd.ops.permute(fd.from_pytorch(x), [1, 0]), y))
    texts = stage_texts(fd.fusion, [torch.ones(128, 4099), x])
    assert "staged=True" in texts["scheduled"]
    whole_row = re.compile(r"T\d+\[.* \+ threadIdx\.x\] = set\(T\d+\[threadIdx\.x\]\)")
    assert whole_row.search(texts["kernel"]) and "!nontemporal" in texts["llvm"]
    assert "prefetch" in texts["llvm"]  # of x, some rows ahead
    assert torch.equal(fd.execute([torch.ones(128, 4099), x])[0], x.t() + 1)


@pytest.mark.parametrize(
    ("kind", "dtype", "shape"),
    pairwise(
        KINDS,
        [torch.bfloat16, torch.float32, torch.float64, torch.int16],
        [(520, 257), (40, 5, 1030), (1024, 33), (9, 700, 40)],
    ),
)
def test_other_inputs_are_read_along_the_rows(
    kind: str, dtype: torch.dtype, shape: tuple[int, ...], pretend: Pretend
) -> None:
    """Whole and broadcast ones; two results, one of them of another dtype."""
    pretend(replace(MACHINES.get(kind, host()), l3_bytes=0))

    def function(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = x + y.transpose(0, -1)
        return total, (total * z).float()

    x, y = torch.arange(2 * math.prod(shape)).remainder(13).to(dtype).view(2, *shape)
    y = y.transpose(0, -1).contiguous()
    z = torch.arange(shape[-1]).remainder(5).to(dtype)
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="pyfuser", dynamic=True)
    for made, expected in zip(compiled(x, y, z), function(x, y, z), strict=True):
        assert torch.equal(made, expected) and made.stride() == expected.stride()


@pytest.mark.parametrize(
    ("kind", "dtype", "shape"),
    pairwise(
        KINDS,
        [torch.bfloat16, torch.float32, torch.int8],
        [(65, 1100), (17, 3, 1030), (3, 63, 65), (1023, 130), (1025, 40), (129, 64)],
    ),
)
def test_rows_that_follow_each_other_are_joined(
    kind: str, dtype: torch.dtype, shape: tuple[int, ...], pretend: Pretend
) -> None:
    """Results computed square by square, and along rows beside another input."""
    pretend(replace(MACHINES.get(kind, host()), l3_bytes=0))
    x = torch.arange(math.prod(shape)).remainder(7).view(shape).to(dtype)
    bias = torch.arange(shape[-2]).remainder(3).to(dtype)
    y = torch.arange(math.prod(shape)).remainder(5).to(dtype).view(x.mT.shape)

    def function(
        x: torch.Tensor, bias: torch.Tensor, y: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        turned = (x * 2).transpose(-1, -2)
        return (turned + bias).contiguous(), (turned - bias).contiguous(), (turned + y).contiguous()

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="pyfuser", dynamic=True)
    for made, expected in zip(compiled(x, bias, y), function(x, bias, y), strict=True):
        assert torch.equal(made, expected) and made.is_contiguous()
    torch._dynamo.reset()
    alone = torch.compile(lambda x, bias: function(x, bias, y)[:2], backend="pyfuser")
    for made, expected in zip(alone(x, bias), function(x, bias, y), strict=False):
        assert torch.equal(made, expected)


def test_only_the_first_and_the_last_of_joined_rows_store_parts_of_lines(pretend: Pretend) -> None:
    """What is left of a row is kept for the next one."""
    pretend(replace(host(), l3_bytes=0))
    x = torch.randn(65, 1100)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.mul(fd.ops.permute(fd.from_pytorch(x), [1, 0]), 2.0))
    texts = stage_texts(fd.fusion, [x])
    assert "staged=True" in texts["scheduled"]
    kept = re.compile(r"select <\d+ x i1> %v\d+, <\d+ x i32> %v\d+, <\d+ x i32> %v\d+")
    assert kept.search(texts["llvm"])
    assert torch.equal(fd.execute([x])[0], 2 * x.t())


@pytest.mark.skipif(platform.system() != "Linux", reason="maps memory")
def test_rows_beyond_the_input_are_not_touched() -> None:
    """A load by an empty mask in a page that there isn't takes hundreds of cycles."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.mul(fd.ops.permute(x, [1, 0]), 2.0))
    llvm = stage_texts(fd.fusion, [torch.randn(257, 4096)])["llvm"]
    loads = re.findall(r"masked\.load\S+\(ptr (%\w+),", llvm)
    assert loads
    for pointer in loads:
        assert f"{pointer} = select i1" in llvm
