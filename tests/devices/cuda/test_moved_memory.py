"""Vectors, tiles and kept rows of the automatic schedules on a GPU: right at all sizes.

How little they move is in test_memory_bars.py.  A definition is run at several sizes, so that one
plan serves them, and its kernels are run by the emulator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.ops.evaluator import evaluate
from tests.cuda.harness import requires_host_compiler
from tests.cuda.runtime import EmulatedRuntime, emulated

pytestmark = requires_host_compiler

Define = Callable[[FusionDefinition], None]

DTYPES = {
    DataType.Float: torch.float32,
    DataType.Half: torch.float16,
    DataType.BFloat16: torch.bfloat16,
    DataType.Double: torch.float64,
    DataType.Int: torch.int64,
    DataType.Bool: torch.bool,
    DataType.Float8_e4m3fn: torch.float8_e4m3fn,
}


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedRuntime]:
    """CPU tensors are run by CUDA kernels, and nothing falls back."""
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    with emulated() as found:
        yield found


def values(shape: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small integers, which every dtype holds."""
    return torch.randint(0, 2 if dtype is torch.bool else 5, tuple(shape)).to(dtype)


def agree(fd: FusionDefinition, inputs: list[torch.Tensor]) -> None:
    """The kernels' results are the evaluator's."""
    want = evaluate(fd.fusion.graph.definition, [each.clone() for each in inputs])
    for a, b in zip(fd.execute(inputs), want, strict=True):
        wide = torch.float64 if a.is_floating_point() else a.dtype
        torch.testing.assert_close(a.to(wide), b.to(wide), rtol=2e-4, atol=2e-4)


# -- tiles


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_transposes_of_every_width(dtype: DataType) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=dtype)
        fd.add_output(fd.ops.set(fd.ops.permute(x, [1, 0])))
    for shape in ((33, 70), (16, 16), (64, 97), (1, 40), (0, 20), (7, 300)):
        agree(fd, [values(shape, DTYPES[dtype])])


@pytest.mark.parametrize("order", [(0, 2, 1), (2, 1, 0), (1, 2, 0), (2, 0, 1), (1, 0, 2)], ids=str)
def test_axes_in_every_order(order: tuple[int, ...]) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1] * 3, contiguity=True)
        y = fd.define_tensor([-1] * 3, contiguity=True)
        total = fd.ops.add(fd.ops.permute(x, list(order)), fd.ops.mul(y, 2.0))
        fd.add_output(fd.ops.relu(total))
    for shape in ((3, 40, 50), (20, 5, 33), (17, 64, 2), (1, 1, 1)):
        agree(fd, [values(shape), values([shape[axis] for axis in order])])


def test_a_tile_of_merged_rows_beside_a_bias_and_a_strided_input(runtime: EmulatedRuntime) -> None:
    """Channels move to the end: rows of 7 times 9 pixels form one range."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1] * 4, contiguity=True, dtype=DataType.BFloat16)
        y = fd.define_tensor([-1] * 4, contiguity=False)
        bias = fd.define_tensor([-1], contiguity=True)
        moved = fd.ops.add(fd.ops.permute(x, [0, 2, 3, 1]), y)
        both = fd.ops.add(moved, fd.ops.broadcast(bias, [True, True, True, False]))
        fd.add_output(both)
        fd.add_output(fd.ops.cast(fd.ops.neg(both), DataType.BFloat16))
    for channels in (40, 17, 3):
        strided = values((2, 7, 9, 2 * channels))[..., ::2]
        agree(fd, [values((2, channels, 7, 9), torch.bfloat16), strided, values([channels])])
    assert "__shared__" in runtime.kernels[0].code.text


def test_a_transposed_input_that_is_updated() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        y = fd.define_tensor([-1, -1], contiguity=True)
        total = fd.ops.add(x, fd.ops.permute(y, [1, 0]))
        fd.add_output(total, x)
        fd.add_output(fd.ops.permute(total, [1, 0]))
    x, y = values((40, 50)), values((50, 40))
    expected = x + y.t()
    (transposed,) = fd.execute([x, y])
    assert torch.equal(x, expected)
    assert torch.equal(transposed, expected.t())
