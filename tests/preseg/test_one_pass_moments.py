"""Moments in one pass: what is recognised, and what it becomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.ir.exprs import ReductionOp, WelfordOp
from pyfuser.ir.fusion import Fusion
from pyfuser.ir.verify import verify_fusion
from pyfuser.ops.evaluator import evaluate
from pyfuser.preseg.one_pass_moments import moments, one_pass_moments
from pyfuser.preseg.pipeline import run as simplify


def simplified(
    build: Callable[..., Any], shape: tuple[int, ...] = (-1, -1), dtype: DataType = DataType.Float
) -> Fusion:
    with FusionDefinition() as fd:
        x = fd.define_tensor(list(shape), contiguity=True, dtype=dtype)
        for output in build(fd.ops, x):
            fd.add_output(output)
    return simplify(fd.fusion.definition)


def normalised(ops: Any, x: Any, dims: tuple[int, ...] = (0,)) -> Any:
    variance, mean = ops.var_mean(x, list(dims), 0, True)
    return [ops.mul(ops.sub(x, mean), ops.rsqrt(ops.add(variance, 1e-5)))]


def by_hand(ops: Any, x: Any, divisor: float, along: int = 0) -> Any:
    """The sum of squared deviations from the mean of columns, if `divisor` is how many rows are."""
    mean = ops.div(ops.sum(x, [0], keepdim=True), divisor)
    centred = ops.sub(x, mean)
    return [ops.sum(ops.mul(centred, centred), [along])]


def across(ops: Any, x: Any) -> Any:
    """The deviations of rows from the means of columns: they have as many elements."""
    mean = ops.div(ops.sum(x, [0]), 60.0)
    centred = ops.sub(x, ops.broadcast(mean, [False, True]))
    return [ops.sum(ops.mul(centred, centred), [0])]


@pytest.mark.parametrize("shape", [(-1, -1), (64, 96), (-1, 96)], ids=str)
@pytest.mark.parametrize("dims", [(0,), (1,), (0, 1)], ids=str)
def test_moments_become_one_welford(shape: tuple[int, ...], dims: tuple[int, ...]) -> None:
    fusion = simplified(lambda ops, x: normalised(ops, x, dims), shape)
    (found,) = moments(fusion)
    assert found.of is fusion.inputs[0] and found.dims == list(dims)
    before = str(fusion)
    after = one_pass_moments(fusion, {found.squares.name})
    verify_fusion(after)
    assert [type(e) for e in after.exprs if isinstance(e, WelfordOp | ReductionOp)] == [WelfordOp]
    assert str(fusion) == before, "a copy is rewritten"
    assert not moments(after)


def test_what_is_not_named_stays() -> None:
    fusion = simplified(normalised)
    assert not any(isinstance(e, WelfordOp) for e in one_pass_moments(fusion, ()).exprs)


def test_an_output_becomes_a_copy() -> None:
    fusion = simplified(lambda ops, x: ops.var_mean(x, [1], 0, False), (64, 96))
    (found,) = moments(fusion)
    after = one_pass_moments(fusion, {found.squares.name})
    verify_fusion(after)
    assert [t.name for t in after.outputs] == [t.name for t in fusion.outputs]


def test_half_precision_is_widened_before() -> None:
    def build(ops: Any, x: Any) -> Any:
        return normalised(ops, ops.cast(x, DataType.Float))

    assert len(moments(simplified(build, dtype=DataType.BFloat16))) == 1


@pytest.mark.parametrize(
    ("build", "count"),
    [
        (lambda ops, x: by_hand(ops, x, 60.0), 1),
        (lambda ops, x: by_hand(ops, x, 64.0), 0),
        (lambda ops, x: by_hand(ops, x, 60.0, along=1), 0),
        (lambda ops, x: [*by_hand(ops, x, 60.0), ops.sum(x, [0])], 0),
        (lambda ops, x: [ops.sum(ops.mul(x, x), [0])], 0),
        (across, 0),
    ],
    ids=["moments", "another divisor", "other axes", "the sum is read", "no mean", "across"],
)
def test_only_moments_are_recognised(build: Callable[..., Any], count: int) -> None:
    fusion = simplified(build, (60, 60))
    found = moments(fusion)
    assert len(found) == count
    after = one_pass_moments(fusion, {each.squares.name for each in found})
    verify_fusion(after)
    x = torch.randn(60, 60) + 3
    for got, wanted in zip(evaluate(after, [x]), evaluate(fusion, [x]), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
