"""Rows of many computed parts, such as encodings of positions: a lane for each row.

Up to 16 places of a row are stored together, so longer rows are stored in groups of these.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from pyfuser import DataType, FusionDefinition
from pyfuser.devices.cpu.host import host
from pyfuser.devices.cpu.short_rows import split_evenly
from pyfuser.frontend.executors import stage_texts
from tests.support.compiled import strict as strict
from tests.support.long_cases import pairwise
from tests.support.targets import Pretend

from .test_machines import MACHINES

pytestmark = [
    pytest.mark.usefixtures("poison"),
    pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="x86 code"),
]

KINDS = ["host", *MACHINES]
DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.int8]


def parts(x: Tensor, width: int, count: int) -> Sequence[Tensor]:
    """Parts of so many columns, of which each is computed in its own way."""
    sources = [x[..., :width], x[..., -width:].flip(-1), x[..., 1 : width + 1]]
    return [sources[n % 3] * (n % 5 - 2) + n % 7 for n in range(count)]


def joined(x: Tensor, width: int, count: int) -> Tensor:
    return torch.cat([*parts(x, width, count)], -1)


def joined_twice(x: Tensor, width: int, count: int) -> tuple[Tensor, Tensor]:
    whole = torch.cat([*parts(x, width, count)][::-1], -1)
    return whole, whole + 1


def used_outside(x: Tensor, width: int, count: int) -> tuple[Tensor, Tensor]:
    made = parts(x, width, count)
    return torch.cat([*made], -1), made[1] - made[0]


def padded(x: Tensor, width: int, count: int) -> Tensor:
    return torch.nn.functional.pad(joined(x, width, count), (1, 2), value=3)


def between(x: Tensor, width: int, count: int) -> Tensor:
    """The same numbers in every row between parts of it."""
    made = parts(x, width, count)
    constants = torch.arange(width).to(x.dtype).expand(*x.shape[:-1], width)
    return torch.cat([each for part in made for each in (part, constants)][: count + 1], -1)


def reduced(x: Tensor, width: int, count: int) -> Tensor:
    return joined(x, width, count).amax(-1)


def across(x: Tensor, width: int, count: int) -> Tensor:
    return joined(x, width, count).transpose(-1, -2).contiguous()


FUNCTIONS = [joined, joined_twice, used_outside, padded, between, reduced, across]


@pytest.mark.parametrize(
    ("kind", "function", "dtype", "size", "rows"),
    pairwise(
        KINDS,
        FUNCTIONS,
        DTYPES,
        [(1, 17), (1, 40), (2, 10), (2, 32), (3, 7), (3, 21), (4, 16), (5, 9), (1, 65)],
        [1, 16, 33, 131],
        strength=2,
        count=12,
    ),
)
def test_every_part_is_in_its_place(
    kind: str,
    function: Callable[[Tensor, int, int], Tensor],
    dtype: torch.dtype,
    size: tuple[int, int],
    rows: int,
    pretend: Pretend,
) -> None:
    """Whole numbers, which every dtype holds exactly."""
    pretend(MACHINES.get(kind, host()))
    torch.manual_seed(0)
    compiled = torch.compile(lambda x: function(x, *size), backend="pyfuser", dynamic=False)
    for shape in ((rows, 7), (3, rows, 7)):
        x = torch.randint(-4, 5, shape).to(dtype)
        torch.testing.assert_close(compiled(x), function(x, *size), rtol=0, atol=0)


def test_each_part_is_computed_once() -> None:
    """No lane computes a function for a column and takes another's result."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 3], [True, True], dtype=DataType.Float)
        functions = [fd.ops.sin, fd.ops.cos, fd.ops.exp, fd.ops.tanh] * 3
        fd.add_output(fd.ops.cat([function(x) for function in functions], 1))
    code = stage_texts(fd.fusion, [torch.randn(1000, 3)])["kernel"]
    assert code.count(" = sin(") == code.count(" = exp(") == 2 * 3  # and for the last rows


def test_places_are_split_evenly() -> None:
    assert split_evenly(0, 16, 16) == [range(16)]
    assert split_evenly(0, 0, 16) == []
    assert split_evenly(0, 17, 16) == [range(8), range(8, 17)]
    assert split_evenly(3, 40, 16) == [range(3, 15), range(15, 27), range(27, 40)]
