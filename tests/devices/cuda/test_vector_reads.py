"""Slices, pads, concatenations and gathers along contiguous rows read vectors of 16 bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.devices.cuda.emulator.counters import Profile
from pyfuser.devices.cuda.emulator.runtime import emulated
from pyfuser.dtypes import to_torch
from pyfuser.ops.evaluator import evaluate
from tests.cuda.host_compiler import requires_host_compiler

pytestmark = requires_host_compiler

Define = Callable[[FusionDefinition, Sequence[Any]], Any]


def rope(fd: FusionDefinition, tensors: Sequence[Any]) -> Any:
    x, cos, sin = tensors
    rows, length = fd.ops.size(x, 0), fd.ops.size(x, 1)
    half = fd.ops.div(length, 2)
    first = fd.ops.slice(x, [0, 0], [rows, half])
    second = fd.ops.slice(x, [0, half], [rows, length])
    turned = fd.ops.cat([fd.ops.neg(second), first], 1)
    return fd.ops.add(fd.ops.mul(x, cos), fd.ops.mul(turned, sin))


def halves_exchanged(fd: FusionDefinition, tensors: Sequence[Any]) -> Any:
    (x,) = tensors
    rows, length = fd.ops.size(x, 0), fd.ops.size(x, 1)
    half = fd.ops.div(length, 2)
    first = fd.ops.slice(x, [0, 0], [rows, half])
    second = fd.ops.slice(x, [0, half], [rows, length])
    return fd.ops.cat([second, first], 1)


def wide_rows(fd: FusionDefinition, tensors: Sequence[Any]) -> Any:
    return fd.ops.mul(fd.ops.cat(list(tensors), 1), 2.0)


def rows_below_each_other(fd: FusionDefinition, tensors: Sequence[Any]) -> Any:
    return fd.ops.mul(fd.ops.cat(list(tensors), 0), 2.0)


def rows_above_and_below(fd: FusionDefinition, tensors: Sequence[Any]) -> Any:
    return fd.ops.mul(fd.ops.pad(tensors[0], [0, 0, 2, 3]), 2.0)


def margins(fd: FusionDefinition, tensors: Sequence[Any]) -> Any:
    return fd.ops.neg(fd.ops.pad(tensors[0], [8, 16]))


def embedding(fd: FusionDefinition, tensors: Sequence[Any]) -> Any:
    table, index = tensors
    return fd.ops.mul(fd.ops.index_select(table, index, 0), 2.0)


def normalised_embedding(fd: FusionDefinition, tensors: Sequence[Any]) -> Any:
    table, index = tensors
    x = fd.ops.index_select(table, index, 0)
    squares = fd.ops.sum(fd.ops.mul(x, x), [1], keepdim=True)
    return fd.ops.mul(x, fd.ops.rsqrt(squares))


def inputs_of(define: Define, rows: int, columns: int) -> list[torch.Tensor]:
    make = torch.randn
    match define.__name__:
        case "rope":
            return [make(rows, columns), make(rows, columns), make(rows, columns)]
        case "wide_rows":
            return [make(rows, columns), make(rows, 2 * columns)]
        case "rows_below_each_other":
            return [make(rows, columns), make(rows + 3, columns)]
        case "embedding" | "normalised_embedding":
            return [make(50, columns), torch.randint(0, 50, (rows,))]
        case _:
            return [make(rows, columns)]


def run(define: Define, inputs: Sequence[torch.Tensor], profile: Profile | None = None) -> None:
    """Executes a definition for the inputs; its results are right."""
    with FusionDefinition() as fd:
        fd.add_output(define(fd, [fd.from_pytorch(each) for each in inputs]))
    want = evaluate(fd.fusion.graph.definition, inputs)
    with emulated(profile=profile):
        got = fd.execute(list(inputs))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


# The least sectors per request: 16 of float32 vectors, unless a row has an index, which is a
# request for one sector, or the last block of a row is nearly empty.
DEFINITIONS = {
    rope: 16,
    halves_exchanged: 16,
    wide_rows: 16,
    rows_below_each_other: 14,
    rows_above_and_below: 14,
    margins: 13,
    embedding: 11,
    normalised_embedding: 11,
}


@pytest.mark.parametrize("define", DEFINITIONS, ids=lambda each: each.__name__)
def test_reads_of_aligned_rows_are_vectors(define):
    profile = Profile()
    run(define, inputs_of(define, 256, 512), profile)
    assert profile.total.sectors_per_request >= DEFINITIONS[define]
    assert profile.total.cached_overhead <= 1.05


@pytest.mark.parametrize("dtype", [DataType.BFloat16, DataType.Half], ids=lambda each: each.name)
def test_a_transposed_tile_of_half_precision_moves_whole_sectors(dtype):
    """A warp reads or writes 32 elements of a row, two sectors; no banks conflict."""
    x, profile = torch.randn(256, 192).to(to_torch(dtype)), Profile()
    with FusionDefinition() as fd:
        negated = fd.ops.neg(fd.ops.permute(fd.from_pytorch(x), [1, 0]))
        fd.add_output(fd.ops.cast(negated, dtype))
    with emulated(profile=profile):
        (got,) = fd.execute([x])
    assert torch.equal(got, -x.t())
    assert profile.total.sectors_per_request == 2
    assert profile.total.overhead == 1
    assert profile.total.bank_conflicts == 0


@pytest.mark.parametrize("shape", [(7, 24), (5, 22), (3, 130), (33, 7), (1, 64)], ids=str)
@pytest.mark.parametrize("define", DEFINITIONS, ids=lambda each: each.__name__)
def test_reads_of_other_rows_are_right(define, shape):
    run(define, inputs_of(define, *shape))


@pytest.mark.parametrize("define", DEFINITIONS, ids=lambda each: each.__name__)
def test_reads_of_misaligned_views_are_right(define):
    inputs = []
    for each in inputs_of(define, 9, 32):
        memory = torch.empty(each.numel() + 1, dtype=each.dtype)
        inputs.append(memory[1:].view(each.shape).copy_(each))
    run(define, inputs)


@pytest.mark.parametrize("define", DEFINITIONS, ids=lambda each: each.__name__)
def test_reads_of_rows_with_gaps_are_right(define):
    inputs = []
    for each in inputs_of(define, 9, 32):
        gaps = torch.empty(*each.shape[:-1], each.shape[-1] + 3, dtype=each.dtype)
        inputs.append(gaps[..., : each.shape[-1]].copy_(each))
    run(define, inputs)


def test_one_kernel_serves_sizes_with_the_same_remainders():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        fd.add_output(halves_exchanged(fd, [x]))
    with emulated() as runtime:
        for columns in (64, 72, 80):
            x = torch.randn(6, columns)
            (got,) = fd.execute([x])
            assert torch.equal(got, torch.cat([x[:, columns // 2 :], x[:, : columns // 2]], 1))
    assert len({kernel.code.text for kernel in runtime.kernels}) <= 2


def test_rows_that_an_index_chooses_are_read_once_for_all_passes():
    """Their sum and the result of each element take them from registers."""
    profile = Profile()
    run(normalised_embedding, inputs_of(normalised_embedding, 256, 512), profile)
    rows, indices = 256 * 512 * 4, 256 * 8
    assert 32 * profile.total.read_sectors <= rows + 32 * indices
