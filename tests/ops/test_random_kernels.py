"""Kernels of random numbers: a number depends on its place, and on nothing else.

Layouts, cuts, schedules, threads and emulated CUDA give the reference's bits; dropout is one
kernel.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition, ParallelType
from pyfuser.analysis.layouts import layout_of
from pyfuser.compiler import stages
from pyfuser.devices.cuda.emulator.runtime import emulated
from pyfuser.kernel_builds import compiled_kernel_count
from pyfuser.ops import random_numbers
from pyfuser.target.target import Target
from tests.cuda.cubins import require_cubin, requires_nvrtc
from tests.cuda.host_compiler import requires_host_compiler
from tests.ops.random_reference import (
    DISTRIBUTIONS,
    DTYPES,
    OFFSET,
    SEED,
    defined,
    expected,
)
from tests.support.targets import PRETENDED, SM_90, WIDE

pytestmark = pytest.mark.usefixtures("poison")


SHAPES = ([], [0], [1], [7], [4096], [3, 0], [37, 129], [16, 64], [5, 1, 33], [2, 3, 4, 5])


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_kernels_have_the_reference_s_bits(distribution: str, dtype: DataType) -> None:
    for shape in SHAPES:
        (got,) = defined(distribution, shape, dtype).execute([SEED, OFFSET])
        assert torch.equal(got, expected(distribution, shape, dtype)), shape


@requires_host_compiler
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_emulated_cuda_has_the_same_bits(dtype: DataType) -> None:
    with emulated() as runtime:
        for distribution in DISTRIBUTIONS:
            (got,) = defined(distribution, [37, 129], dtype).execute([SEED, OFFSET])
            assert torch.equal(got, expected(distribution, [37, 129], dtype))
        assert runtime.kernels


def permuted(ops: Any, x: Any) -> Any:
    return ops.set(ops.permute(x, [1, 0]))


def column_major(ops: Any, x: Any) -> Any:
    return ops.stride_order(x, [0, 1])


def after_a_cut(ops: Any, x: Any) -> Any:
    return ops.segment_set(ops.neg(ops.segment_set(x)))


def of_a_part(ops: Any, x: Any) -> Any:
    return ops.slice(x, [3, 1], [20, 30])


def reshaped(ops: Any, x: Any) -> Any:
    return ops.reshape(x, [129, 37])


@pytest.mark.parametrize(
    ("finish", "wanted"),
    [
        (permuted, lambda x: x.t()),
        (column_major, lambda x: x),
        (after_a_cut, lambda x: -x),
        (of_a_part, lambda x: x[3:20, 1:30]),
        (reshaped, lambda x: x.reshape(129, 37)),
    ],
    ids=lambda each: each.__name__,
)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_layouts_and_cuts_do_not_change_numbers(
    distribution: str, finish: Callable[..., Any], wanted: Callable[..., Any]
) -> None:
    fd = defined(distribution, [37, 129], finish=finish)
    want = wanted(expected(distribution, [37, 129], DataType.Float))
    assert torch.equal(fd.execute([SEED, OFFSET])[0], want)


@pytest.mark.parametrize("columns", [1, 7, 65, 66, 67, 100])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_numbers_that_are_reduced_and_used_again(
    distribution: str, dtype: DataType, columns: int
) -> None:
    """A row's first number is any of those of a call."""

    def with_maximum(ops: Any, x: Any) -> Any:
        return ops.where(ops.lt(x, ops.max(x, [-1], keepdim=True)), x, 2.0)

    x = expected(distribution, [33, columns], dtype)
    fd = defined(distribution, [33, columns], dtype, finish=with_maximum)
    want = torch.where(x < x.amax(-1, keepdim=True), x, 2.0)
    assert torch.equal(fd.execute([SEED, OFFSET])[0].to(want.dtype), want)


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "strided"])
def test_one_definition_for_all_sizes_and_layouts_of_its_input(layout: str) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=layout == "contiguous", dtype=DataType.Float)
        y = fd.ops.uniform(0, 1, fd.ops.shape(x), rng_seed=SEED, rng_offset=OFFSET)
        fd.add_output(fd.ops.add(x, y))
        fd.add_output(fd.ops.sum(y, [0]))
    for rows, columns in ((64, 64), (1, 7), (7, 1), (1, 1), (33, 127), (0, 3), (400, 300)):
        x = torch.randn(rows, columns)
        if layout == "transposed":
            x = x.t().contiguous().t()
        elif layout == "strided":
            x = torch.stack([x, x], -1)[..., 0]
        want = expected("uniform", [rows, columns], DataType.Float)
        got, total = fd.execute([x])
        assert torch.equal(got, x + want)
        torch.testing.assert_close(total, want.sum(0))


def test_numbers_read_along_two_axes() -> None:
    def symmetric(ops: Any, x: Any) -> Any:
        return ops.add(x, ops.permute(x, [1, 0]))

    x = expected("uniform", [65, 65], DataType.Float)
    (got,) = defined("uniform", [65, 65], finish=symmetric).execute([SEED, OFFSET])
    assert torch.equal(got, x + x.t())


def test_numbers_that_are_broadcast() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        rows = fd.ops.uniform(0, 1, [fd.ops.size(x, 0)], rng_seed=SEED, rng_offset=OFFSET)
        fd.add_output(fd.ops.mul(x, fd.ops.broadcast(rows, [False, True])))
    x, rows_ = torch.randn(37, 65), expected("uniform", [37], DataType.Float)
    assert torch.equal(fd.execute([x])[0], x * rows_[:, None])


def test_each_element_of_an_expanded_tensor_has_its_own_number() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        column = fd.ops.sum(x, [1], keepdim=True)
        fd.add_output(fd.ops.rand_like(fd.ops.expand(column, [-1, 16])))
    (y,) = fd.validate([torch.randn(5, 3)])
    assert y.shape == (5, 16)
    assert y.unique().numel() == y.numel()


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_do_not_change_numbers(threads: int) -> None:
    fd, before = defined("normal", [1000, 1001]), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        (got,) = fd.execute([SEED, OFFSET])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(got, expected("normal", [1000, 1001], DataType.Float))


def rows_of_lanes(fd: FusionDefinition, y: Any) -> None:
    y.split(1, 16)
    y.axis(0).parallelize(ParallelType.grid_x)
    y.axis(2).parallelize(ParallelType.vectorize)


def flat(fd: FusionDefinition, y: Any) -> None:
    y.merge(0, 1)
    y.split(0, 128)
    y.split(1, 8)
    y.axis(0).parallelize(ParallelType.grid_x)
    y.axis(2).parallelize(ParallelType.block_x)


def columns_first(fd: FusionDefinition, y: Any) -> None:
    y.reorder({0: 1, 1: 0})
    y.split(1, 4)
    y.axis(0).parallelize(ParallelType.block_x)


@pytest.mark.parametrize("by_hand", [rows_of_lanes, flat, columns_first])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_schedules_by_hand_do_not_change_numbers(
    distribution: str, by_hand: Callable[..., Any]
) -> None:
    for dtype in DTYPES[:2]:
        with FusionDefinition() as fd:
            seed, offset = fd.define_vector(2)
            make = getattr(fd.ops, distribution)
            y = make(0, 1, [30, 64], rng_seed=seed, rng_offset=offset, dtype=dtype)
            fd.add_output(y)
            by_hand(fd, y)
        (got,) = fd.manual_execute([SEED, OFFSET])
        assert torch.equal(got, expected(distribution, [30, 64], dtype))


def test_new_seeds_compile_nothing() -> None:
    fd = defined("uniform", [64, 65])
    first = fd.execute([1, 2])[0]
    before = compiled_kernel_count()
    others = [fd.execute([seed, offset])[0] for seed, offset in ((2, 2), (1, 3), (-1, -1))]
    assert all(not torch.equal(first, other) for other in others)
    assert torch.equal(first, fd.execute([1, 2])[0])
    assert compiled_kernel_count() == before
    assert len(fd.fec.engine.executor.plans) == 1


def test_constant_seeds_share_a_kernel() -> None:
    def constant(seed: int, offset: int) -> torch.Tensor:
        with FusionDefinition() as fd:
            fd.add_output(fd.ops.normal(0, 1, [19, 3], rng_seed=seed, rng_offset=offset))
        (made,) = fd.execute([])
        assert torch.equal(made, defined("normal", [19, 3]).execute([seed, offset])[0])
        return made

    first, before = constant(1, 2), compiled_kernel_count()
    assert not torch.equal(first, constant(2**62, 2))
    assert not torch.equal(first, constant(1, -3))
    assert compiled_kernel_count() == before


def test_seed_and_offset_may_be_tensors() -> None:
    with FusionDefinition() as fd:
        seed = fd.define_tensor([], contiguity=[], dtype=DataType.Int)
        offset = fd.define_tensor([], contiguity=[], dtype=DataType.Int32)
        fd.add_output(fd.ops.uniform(0, 1, [7, 33], rng_seed=seed, rng_offset=offset))
    for seed_, offset_ in ((SEED, 7), (3, 0)):
        inputs = [torch.tensor(seed_), torch.tensor(offset_, dtype=torch.int32)]
        want = defined("uniform", [7, 33]).execute([seed_, offset_])[0]
        assert torch.equal(fd.execute(inputs)[0], want)


# -- dropout


def dropout(half: bool = False) -> FusionDefinition:
    """x, seed, offset -> x, each element scaled or dropped; the same for a gradient."""
    dtype = DataType.BFloat16 if half else DataType.Float
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=dtype)
        seed, offset = fd.define_vector(2)
        shape = fd.ops.shape(x)
        kept = fd.ops.ge(fd.ops.uniform(0, 1, shape, rng_seed=seed, rng_offset=offset), 0.25)
        y = fd.ops.mul(fd.ops.mul(x, fd.ops.cast(kept, DataType.Float)), 1 / 0.75)
        fd.add_output(fd.ops.cast(y, dtype))
    return fd


@pytest.mark.parametrize("half", [False, True], ids=["float", "bfloat16"])
def test_dropout_is_one_kernel_and_its_backward_makes_the_mask_again(half: bool) -> None:
    forward, backward = dropout(half), dropout(half)
    x = torch.randn(63, 257).to(torch.bfloat16 if half else torch.float32)
    (y,) = forward.execute([x, 5, 6])
    (gradient,) = backward.execute([torch.ones_like(x), 5, 6])
    mask = expected_mask(x.shape)
    want = (x.float() * mask.float() * (1 / 0.75)).to(x.dtype)
    assert torch.equal(y, want)
    assert torch.equal(gradient != 0, mask)
    assert abs(mask.float().mean() - 0.75) < 0.02
    for fd in (forward, backward):
        parts = fd.fec.engine.executor.resolve([x, 5, 6]).program.parts
        assert [part.segment.scheduler for part in parts] == ["pointwise"]
        assert len(parts[0].segment.outputs) == 1


def expected_mask(shape: Sequence[int]) -> torch.Tensor:
    index = torch.arange(math.prod(shape)).reshape(tuple(shape))
    state = torch.tensor(5), torch.tensor(6)
    return random_numbers.random("uniform", *state, index, DataType.Float) >= 0.25


def test_softmax_with_dropout_is_one_kernel() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        power = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [-1], keepdim=True)))
        weights = fd.ops.div(power, fd.ops.sum(power, [-1], keepdim=True))
        kept = fd.ops.ge(fd.ops.rand_like(weights), 0.1)
        fd.add_output(fd.ops.where(kept, fd.ops.mul(weights, 1 / 0.9), 0.0))
    fd.validate([torch.randn(17, 200)])
    parts = fd.fec.engine.executor.resolve([torch.randn(17, 200)]).program.parts
    assert [part.segment.scheduler for part in parts] == ["inner_persistent"]


@requires_nvrtc
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_kernels_compile_for_gpus(distribution: str) -> None:
    for dtype in DTYPES:
        fusion = defined(distribution, [8], dtype).fusion.definition
        require_cubin([stages(fusion, {}, [], SM_90)["cuda"]], "sm_90")


def test_a_gpus_thread_keeps_the_numbers_of_a_call() -> None:
    """One variable for each seed and type, in which four numbers wait for the next elements."""
    fusion = defined("uniform", [1 << 16], DataType.BFloat16).fusion.definition
    text = stages(fusion, {}, [], SM_90)["cuda"]
    assert text.count("random_numbers<bfloat16> numbers0;") == 1
    assert "numbers0.uniform(" in text and "numbers1" not in text


@pytest.mark.parametrize("target", [PRETENDED, WIDE], ids=["256 bits", "512 bits"])
def test_consecutive_lanes_share_the_words_of_a_call(target: Target) -> None:
    """Four numbers a call: products of a quarter of the lanes, or half for float64."""
    for dtype, shared in ((DataType.Float, 4), (DataType.Double, 2)):
        fusion = defined("uniform", [1 << 16], dtype).fusion.definition
        llvm = stages(fusion, {}, [], target)["llvm"]
        products = set(map(int, re.findall(r"mul <(\d+) x i64>", llvm)))
        results = set(map(int, re.findall(r"sitofp <(\d+) x i\d+>", llvm)))
        assert products == {lanes // shared for lanes in results}


@pytest.mark.parametrize("target", [PRETENDED, WIDE], ids=["256 bits", "512 bits"])
def test_lanes_in_the_middle_of_calls_share_them_too(target: Target) -> None:
    """Rows of any length: half a vector of calls, or with float64 a whole one."""
    for dtype, shared in ((DataType.Float, 2), (DataType.Double, 1)):
        with FusionDefinition() as fd:
            x = fd.define_tensor([-1, -1], contiguity=True, dtype=dtype)
            y = fd.ops.uniform(0, 1, fd.ops.shape(x), rng_seed=SEED, rng_offset=OFFSET, dtype=dtype)
            largest = fd.ops.max(fd.ops.mul(x, y), [1], keepdim=True)
            fd.add_output(fd.ops.sub(y, largest))
        sizes, layout = {"i0": 64, "i1": 1021}, layout_of((64, 1021), (1021, 1))
        llvm = stages(fd.fusion.definition, sizes, [layout], target)["llvm"]
        products = set(map(int, re.findall(r"mul <(\d+) x i64>", llvm)))
        results = set(map(int, re.findall(r"sitofp <(\d+) x i\d+>", llvm)))
        assert products == {lanes // shared for lanes in results}
