"""Short rows, one in each lane: where only the first lanes have one, masks instead of a gather.

Widths that are no multiple of the lanes, vectors with and without fast masks, stores past the
caches; whole numbers, so that results are exact in every dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from pyfuser import DataType, FusionDefinition
from pyfuser.devices.cpu.host import host
from pyfuser.devices.cpu.processor import Processor
from pyfuser.frontend.executors import stage_texts
from tests.support.compiled import strict as strict
from tests.support.long_cases import pairwise
from tests.support.targets import Pretend

from .test_machines import MACHINES

AVX512 = replace(host(), cpu_name="x86-64-v4", features="", vector_bits=512, has_fma=True)

pytestmark = pytest.mark.usefixtures("poison")


def rows_of(x: torch.Tensor, length: int) -> torch.Tensor:
    return x[:, : x.shape[1] // length * length].unflatten(1, (-1, length))


def blocks_of(x: torch.Tensor) -> torch.Tensor:
    rows, columns = (size // 2 * 2 for size in x.shape)
    return x[:rows, :columns].unflatten(1, (-1, 2)).unflatten(0, (-1, 2))


def rotated(x: torch.Tensor) -> torch.Tensor:
    real, imaginary = rows_of(x, 2).unbind(-1)
    return torch.stack([real - imaginary, imaginary + real], -1).flatten(1)


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "upsampled": lambda x: F.interpolate(x[None, None], scale_factor=2)[0, 0] + 1,
    "pairs": lambda x: torch.stack([x * 2, x + 1], -1),
    "triples": lambda x: torch.stack([x, x * 2, x - 1], -1).flatten(1),
    "rotated": rotated,
    "read": lambda x: rows_of(x, 3)[..., 0] - rows_of(x, 3)[..., 2],
    "scaled": lambda x: rows_of(x, 5) * torch.arange(5).to(x.dtype),
    "summed": lambda x: rows_of(x, 3).sum(-1, dtype=x.dtype),
    "longer": lambda x: torch.stack([x - i for i in range(7)], -1),
    "one place": lambda x: rows_of(x, 4)[..., 3] * 2,
    "every second": lambda x: x[:, ::2] * 2,
    "every second from 1": lambda x: x[:, 1::2] - 1,
    "maxima": lambda x: blocks_of(x).amax((1, 3)),
    "maxima of rows": lambda x: rows_of(x, 2).amax(-1) + 1,
    "few rows": lambda x: x[: x.shape[0] // 3 * 3].unflatten(0, (-1, 3)).sum(1, dtype=x.dtype),
}
SHAPES = [(40, 17), (0, 9), (1, 1), (5, 15), (2, 63), (7, 100), (3, 28)]
DTYPES = [torch.bfloat16, torch.float32, torch.uint8]
ON = {"host": host(), "avx2": MACHINES["avx2"], "uncached": replace(host(), l3_bytes=0)}


@pytest.mark.parametrize(
    ("name", "processor", "dtype", "shape"),
    [
        # Torch interpolates neither integers nor nothing.
        *pairwise(["upsampled"], ON, DTYPES[:2], [s for s in SHAPES if s[0]], count=6),
        *pairwise([n for n in FUNCTIONS if n != "upsampled"], ON, DTYPES, SHAPES, count=14),
    ],
)
def test_results(
    pretend: Pretend, name: str, processor: str, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    pretend(ON[processor])
    function = FUNCTIONS[name]
    compiled = torch.compile(function, backend="pyfuser", dynamic=True)
    x = (torch.arange(shape[0] * shape[1]).view(shape) * 7 % 13).to(dtype)
    inside = F.pad(x, (1, 2, 1, 1), value=99)[1:-1, 1:-2]
    for given in (x, inside):
        torch.testing.assert_close(compiled(given), function(given), rtol=0, atol=0)


@pytest.mark.parametrize("length", [2, 3, 7])
@pytest.mark.parametrize(
    ("processor", "dtype"),
    [(MACHINES["avx2"], DataType.Float), (AVX512, DataType.Float), (AVX512, DataType.BFloat16)],
    ids=["avx2", "avx512", "avx512, bfloat16"],
)
def test_no_lane_is_moved_by_itself(
    pretend: Pretend, processor: Processor, dtype: DataType, length: int
) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1, length], contiguity=True, dtype=dtype)
        scale = fd.define_tensor([-1, -1], contiguity=True, dtype=dtype)
        scales = fd.ops.broadcast(scale, [False, False, True])
        fd.add_output(fd.ops.cast(fd.ops.mul(x, scales), dtype))
    pretend(processor)
    inputs = [torch.ones(64, 28, length), torch.ones(64, 28)]
    half = dtype is DataType.BFloat16
    text = stage_texts(fd.fusion, [x.bfloat16() for x in inputs] if half else inputs)["llvm"]
    is_square = length == 7 and processor is not AVX512  # stored by its elements
    assert "masked.load" in text and "masked.gather" not in text
    assert is_square == ("masked.scatter" in text)
