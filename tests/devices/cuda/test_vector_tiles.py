"""Tiles of vectors: transposed inputs whose rows, and the result's, are whole vectors of 16 bytes.

The target has one multiprocessor, so that small matrices have enough tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition, FusionGuard, SchedulerType
from pyfuser.devices.cuda.emulator.counters import Profile
from pyfuser.devices.cuda.emulator.runtime import SM_90, emulated
from tests.cuda.host_compiler import requires_host_compiler
from tests.support.accuracy import assert_close_to_oracle
from tests.support.long_cases import pairwise

pytestmark = [requires_host_compiler, pytest.mark.usefixtures("poison")]

SMALL_GPU = replace(SM_90, multiprocessors=1)
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.uint8, torch.int32, torch.float64)
# Whole tiles, parts of tiles in both directions, less than one, and rows that have no vectors.
SHAPES = ((128, 256), (272, 144), (144, 400), (16, 1040), (1040, 48), (130, 136), (136, 131))


def run(
    build: Callable[..., Any], inputs: list[torch.Tensor], profile: Profile | None = None
) -> None:
    """Runs a definition on the small GPU; its result is as near to float64's as torch's."""
    with FusionDefinition() as fd:
        given = [fd.from_pytorch(each) for each in inputs]
        result = build(fd, *given)
        for output in result if isinstance(result, list) else [result]:
            fd.add_output(fd.ops.cast(output, given[0].dtype))
    with emulated(SMALL_GPU, profile):
        got = fd.execute(inputs)
    assert_close_to_oracle(fd.fusion.graph.definition, inputs, got)


def made(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(-50, 50, shape).to(dtype)


def transposed(fd: FusionDefinition, x: Any) -> Any:
    return fd.ops.permute(x, [1, 0])


def alone(fd: FusionDefinition, x: Any) -> Any:
    return fd.ops.mul(transposed(fd, x), 2)


def with_itself(fd: FusionDefinition, x: Any) -> Any:
    return fd.ops.sub(x, transposed(fd, x))


def several(fd: FusionDefinition, x: Any, y: Any, rows: Any, columns: Any) -> list[Any]:
    rows = fd.ops.broadcast(rows, [False, True])
    columns = fd.ops.broadcast(columns, [True, False])
    both = fd.ops.add(fd.ops.mul(transposed(fd, x), rows), fd.ops.mul(y, columns))
    return [both, fd.ops.add(transposed(fd, x), columns)]


@pytest.mark.parametrize(
    ("shape", "dtype", "compute"), pairwise(SHAPES, DTYPES, [several, with_itself, alone])
)
def test_tiles_are_transposed(
    shape: tuple[int, int], dtype: torch.dtype, compute: Callable[..., Any]
) -> None:
    m, n = shape
    sizes: dict[Callable[..., Any], list[tuple[int, ...]]] = {
        alone: [(m, n)],
        with_itself: [(n, n)],
        several: [(m, n), (n, m), (n,), (m,)],
    }
    run(compute, [made(size, dtype) for size in sizes[compute]])


def test_memory_is_moved_in_vectors_without_bank_conflicts() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.uint8):
        profile = Profile()
        run(alone, [made((256, 256), dtype)], profile)
        counts = profile.total
        assert counts.sectors_per_request == 16
        assert counts.bank_conflicts == 0
        assert 32 * counts.sectors == counts.bytes_needed


def test_rows_that_are_not_whole_vectors() -> None:
    profile = Profile()
    run(alone, [made((255, 256), torch.bfloat16)], profile)
    assert profile.total.sectors_per_request < 4


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_inputs_that_do_not_begin_with_a_vector(dtype: torch.dtype) -> None:
    """They have a kernel of their own, which reads them element by element."""
    run(alone, [made((256 * 256 + 1,), dtype)[1:].view(256, 256)])
    run(alone, [made((256, 272), dtype)[:, 8:264]])
    run(alone, [made((256, 259), dtype)[:, 1:257]])


def test_outer_axes() -> None:
    """A tile is of the last axis and of the one that the input's memory runs along."""

    def build(fd: FusionDefinition, x: Any, y: Any) -> Any:
        return fd.ops.add(fd.ops.permute(x, [0, 3, 2, 1]), y)

    run(build, [made((2, 64, 3, 72), torch.bfloat16), made((2, 72, 3, 64), torch.bfloat16)])

    def merged(fd: FusionDefinition, x: Any) -> Any:
        return fd.ops.neg(fd.ops.permute(x, [2, 0, 1]))

    run(merged, [made((16, 12, 80), torch.float32)])
    run(merged, [made((3, 16, 80), torch.float32).transpose(0, 1)])


def test_sizes_change() -> None:
    """A definition of symbolic sizes: vectors where they fit, single elements where not."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.BFloat16)
        fd.add_output(fd.ops.neg(transposed(fd, x)))
    with emulated(SMALL_GPU):
        for m, n in ((128, 128), (129, 128), (128, 132), (64, 72), (1, 64), (0, 64), (200, 24)):
            x = made((m, n), torch.bfloat16)
            assert torch.equal(fd.execute([x])[0], -x.t())


def test_a_schedule_by_hand_serves_all_sizes() -> None:
    """Its tiles have a thread for each element of a row, whatever the sizes it is asked for."""
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(transposed(fd, fd.define_tensor([-1, -1], contiguity=True))))
    with emulated(SMALL_GPU):
        with FusionGuard(fd.fusion):
            sample = [made((64, 64), torch.float32)]
            params = fd.sched.schedule(fd.fusion, SchedulerType.transpose, sample)
        for shape in ((64, 64), (65, 63), (64, 66), (3, 5), (1, 1)):
            x = made(shape, torch.float32)
            assert torch.equal(fd.manual_execute([x], params)[0], -x.t())


@pytest.mark.parametrize("vector", [1, 2, 4, 8])
def test_the_vector_of_tiles_may_be_edited(vector: int) -> None:
    x = made((64, 64), torch.float32)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(transposed(fd, fd.from_pytorch(x))))
    with emulated(SMALL_GPU):
        with FusionGuard(fd.fusion):
            params = fd.sched.compute_heuristics(fd.fusion, SchedulerType.transpose, [x])
            params.vectorization_factor = vector
            fd.sched.schedule(fd.fusion, SchedulerType.transpose, params)
        assert torch.equal(fd.manual_execute([x], params)[0], -x.t())


@pytest.mark.parametrize(("count", "dtype"), [(16, torch.bool), (32, torch.float64)])
def test_as_many_tiles_as_a_block_has_room_for(count: int, dtype: torch.dtype) -> None:
    """If vectors need too much shared memory, single elements; if they do as well, no tiles."""
    inputs = [made((128, 128), dtype) for _ in range(count)]

    def total(fd: FusionDefinition, *given: Any) -> Any:
        found = transposed(fd, given[0])
        for each in given[1:]:
            found = fd.ops.add(found, transposed(fd, each))
        return found

    run(total, inputs)


@pytest.mark.parametrize("shape", [(1, 64, 32, 32), (1, 48, 16, 24), (1, 1, 64, 96)], ids=str)
def test_an_image_alone_is_transposed_by_a_kernel(shape: tuple[int, ...]) -> None:
    """Its first axis is a broadcast axis of each tensor's own, which no loop of the others has."""
    x, profile = torch.randn(shape), Profile()
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.stride_order(fd.ops.neg(fd.from_pytorch(x)), [3, 0, 2, 1]))
    with emulated(SMALL_GPU, profile):
        (got,) = fd.execute([x])
    assert torch.equal(got, -x) and got.is_contiguous(memory_format=torch.channels_last)
    assert len(profile.launches) == 1
