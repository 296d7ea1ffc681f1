"""Sums of rows that are zero except at one position become that element, and no others do."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.ir.exprs import ReductionOp
from pyfuser.ir.vals import TensorView
from pyfuser.preseg import run

Build = Callable[[FusionDefinition, TensorView, TensorView, TensorView], TensorView]


def minus_one(
    fd: FusionDefinition, hot: TensorView, own: TensorView, other: TensorView
) -> TensorView:
    return fd.ops.where(hot, -1.0, 0.0)


def own_value(
    fd: FusionDefinition, hot: TensorView, own: TensorView, other: TensorView
) -> TensorView:
    return fd.ops.where(hot, own, 0.0)


def scaled(fd: FusionDefinition, hot: TensorView, own: TensorView, other: TensorView) -> TensorView:
    return fd.ops.mul(fd.ops.where(hot, -2.0, 0.0), own)


def cast_and_scaled(
    fd: FusionDefinition, hot: TensorView, own: TensorView, other: TensorView
) -> TensorView:
    return fd.ops.mul(own, fd.ops.cast(hot, DataType.Float))


def zero_of_bfloat16(
    fd: FusionDefinition, hot: TensorView, own: TensorView, other: TensorView
) -> TensorView:
    half = fd.ops.cast(fd.ops.where(hot, own, -0.0), DataType.BFloat16)
    return fd.ops.cast(half, DataType.Float)


def scaled_twice(
    fd: FusionDefinition, hot: TensorView, own: TensorView, other: TensorView
) -> TensorView:
    return fd.ops.mul(fd.ops.mul(fd.ops.cast(hot, DataType.Float), 0.3), own)


def rounded(
    fd: FusionDefinition, hot: TensorView, own: TensorView, other: TensorView
) -> TensorView:
    """A constant is rounded where it becomes an element, and stays so in a wider dtype."""
    half = fd.ops.where(hot, fd.ops.full([], 0.1, DataType.BFloat16), 0.0)
    return fd.ops.mul(fd.ops.cast(half, DataType.Double), fd.ops.cast(own, DataType.Double))


def how_many(
    fd: FusionDefinition, hot: TensorView, own: TensorView, other: TensorView
) -> TensorView:
    return fd.ops.cast(hot, DataType.Int)


def smoothed(
    fd: FusionDefinition, hot: TensorView, own: TensorView, other: TensorView
) -> TensorView:
    """The other positions aren't zero."""
    return fd.ops.where(hot, 0.9, 0.1)


def of_the_row(
    fd: FusionDefinition, hot: TensorView, own: TensorView, other: TensorView
) -> TensorView:
    """The value differs along the row."""
    return fd.ops.where(hot, other, 0.0)


def inverted(
    fd: FusionDefinition, hot: TensorView, own: TensorView, other: TensorView
) -> TensorView:
    return fd.ops.where(hot, 0.0, own)


REPLACED = (
    minus_one,
    own_value,
    scaled,
    cast_and_scaled,
    zero_of_bfloat16,
    scaled_twice,
    rounded,
    how_many,
)
KEPT = (smoothed, of_the_row, inverted)


def definition(build: Build, rank: int = 2, dim: int = 1) -> FusionDefinition:
    """Sums along `dim` of rows made of a comparison, a value of the row and values along it."""
    flags = [d == dim for d in range(rank)]
    rows = [-1] * (rank - 1)
    with FusionDefinition() as fd:
        target = fd.define_tensor(rows, [True] * (rank - 1), DataType.Int)
        own = fd.define_tensor(rows, [True] * (rank - 1), DataType.Float)
        other = fd.define_tensor([-1] * rank, [True] * rank, DataType.Float)
        positions = fd.ops.iota(fd.ops.size(other, dim), 0, 1, DataType.Int)
        line = fd.ops.broadcast(positions, [not flag for flag in flags])
        hot = fd.ops.eq(line, fd.ops.broadcast(target, flags))
        row = build(fd, hot, fd.ops.broadcast(own, flags), other)
        fd.add_output(fd.ops.sum(row, dim))
        fd.add_output(row)
    return fd


def is_reduced(fd: FusionDefinition) -> bool:
    return any(isinstance(expr, ReductionOp) for expr in run(fd.fusion.definition).exprs)


@pytest.mark.parametrize("build", REPLACED, ids=lambda build: build.__name__)
def test_no_pass_over_the_row(build: Build) -> None:
    assert not is_reduced(definition(build))


@pytest.mark.parametrize("build", KEPT, ids=lambda build: build.__name__)
def test_other_rows_are_added_up(build: Build) -> None:
    assert is_reduced(definition(build))


@pytest.mark.parametrize("build", REPLACED + KEPT, ids=lambda build: build.__name__)
@pytest.mark.parametrize("length", [0, 1, 2, 7, 64])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_sums(build: Build, length: int, dim: int) -> None:
    """Positions outside the row, and values that are infinite, NaN or -0."""
    shape = [2, 12]
    target = torch.tensor([-(2**63), -64, -1, 0, 1, 2, 6, 7, 63, 64, 2**62, 2**63 - 1])
    special = torch.tensor([math.inf, -math.inf, math.nan, -0.0, 1.5, 2.0, -3.0, 4.0])
    targets = target.expand(shape).contiguous()
    own = special[torch.arange(24) % 7].reshape(shape)
    other = torch.randn([*shape[:dim], length, *shape[dim:]])
    total, row = definition(build, 3, dim).execute([targets, own, other])
    expected = row.sum(dim)
    torch.testing.assert_close(total, expected, rtol=0, atol=1e-5, equal_nan=True)
    if build in REPLACED and total.is_floating_point():
        assert torch.equal(total.signbit() | total.isnan(), expected.signbit() | expected.isnan())


def test_two_rows_compared_apart() -> None:
    """A product of two comparisons with different numbers isn't one position."""
    with FusionDefinition() as fd:
        a, b = (fd.define_tensor([-1], [True], DataType.Int) for _ in range(2))
        line = fd.ops.broadcast(fd.ops.iota(9, 0, 1, DataType.Int), [True, False])
        hots = [fd.ops.eq(line, fd.ops.broadcast(each, [False, True])) for each in (a, b)]
        both = fd.ops.mul(*(fd.ops.cast(hot, DataType.Float) for hot in hots))
        fd.add_output(fd.ops.sum(both, 1))
    assert is_reduced(fd)
    (total,) = fd.execute([torch.tensor([1, 2, 9]), torch.tensor([1, 3, 9])])
    assert total.tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("is_copied", [False, True])
def test_a_long_chain_is_followed_without_recursion(is_copied: bool) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], [True, True], DataType.Float)
        for _ in range(3000):
            x = fd.ops.set(x) if is_copied else fd.ops.mul(x, 1.5)
        fd.add_output(fd.ops.sum(x, 1))
    assert is_reduced(fd)
