"""A maximum or minimum skips NaN where nothing shows it, and every result stays the same."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.ir.fusion import Fusion
from pyfuser.ir.vals import TensorView
from pyfuser.ops.evaluator import evaluate
from pyfuser.ops.table import OPS
from pyfuser.preseg import run
from pyfuser.preseg.nan_skipping_extrema import SPREADING_NAN
from tests.support.special_values import values

Build = Callable[[FusionDefinition, TensorView], list[TensorView]]


def parts(fd: FusionDefinition, x: TensorView, dim: int = 1) -> tuple[TensorView, ...]:
    """The maximum, the exponentials and their sum of a softmax along a dimension."""
    greatest = fd.ops.max(x, dim, True)
    powers = fd.ops.exp(fd.ops.sub(x, greatest))
    return greatest, powers, fd.ops.sum(powers, dim, True)


def softmax(fd: FusionDefinition, x: TensorView) -> list[TensorView]:
    _, powers, total = parts(fd, x)
    return [fd.ops.div(powers, total)]


def softmax_of_columns(fd: FusionDefinition, x: TensorView) -> list[TensorView]:
    _, powers, total = parts(fd, x, 0)
    return [fd.ops.div(powers, total)]


def softmax_of_all(fd: FusionDefinition, x: TensorView) -> list[TensorView]:
    powers = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, None, True)))
    return [fd.ops.div(powers, fd.ops.sum(powers, None, True))]


def log_sum_exp(fd: FusionDefinition, x: TensorView) -> list[TensorView]:
    greatest, _, total = parts(fd, x)
    return [fd.ops.add(fd.ops.log(total), greatest)]


def softmax_by_least(fd: FusionDefinition, x: TensorView) -> list[TensorView]:
    powers = fd.ops.exp(fd.ops.sub(fd.ops.min(x, 1, True), x))
    return [fd.ops.div(powers, fd.ops.sum(powers, 1, True))]


def transposed_softmax(fd: FusionDefinition, x: TensorView) -> list[TensorView]:
    greatest = fd.ops.broadcast(fd.ops.max(x, 1), [True, False])
    powers = fd.ops.exp(fd.ops.sub(fd.ops.permute(x, [1, 0]), greatest))
    total = fd.ops.broadcast(fd.ops.sum(powers, 0), [True, False])
    return [fd.ops.div(powers, total)]


def masked_softmax(fd: FusionDefinition, x: TensorView) -> list[TensorView]:
    masked = fd.ops.where(fd.ops.gt(x, 1.0), float("-inf"), x)
    _, powers, total = parts(fd, masked)
    return [fd.ops.div(powers, total)]


def powers_read(fd: FusionDefinition, x: TensorView) -> list[TensorView]:
    _, powers, total = parts(fd, x)
    return [fd.ops.div(powers, total), powers]


def maximum_read(fd: FusionDefinition, x: TensorView) -> list[TensorView]:
    greatest, powers, total = parts(fd, x)
    return [fd.ops.div(powers, total), greatest]


def maximum_alone(fd: FusionDefinition, x: TensorView) -> list[TensorView]:
    return [fd.ops.neg(fd.ops.max(x, 1))]


def other_sum(fd: FusionDefinition, x: TensorView) -> list[TensorView]:
    """A sum over the columns: rows with a NaN aren't NaN in all columns."""
    greatest, powers, _ = parts(fd, x)
    return [fd.ops.sum(powers, 0)]


def dropped(fd: FusionDefinition, x: TensorView) -> list[TensorView]:
    """What is NaN may be dropped before the sum."""
    _, powers, _ = parts(fd, x)
    kept = fd.ops.where(fd.ops.lt(x, 1.0), powers, 0.0)
    return [fd.ops.sum(kept, 1)]


def greatest_of_powers(fd: FusionDefinition, x: TensorView) -> list[TensorView]:
    """A maximum of powers isn't a sum: it might skip NaN itself."""
    _, powers, _ = parts(fd, x)
    return [fd.ops.max(powers, 1)]


def compared(fd: FusionDefinition, x: TensorView) -> list[TensorView]:
    greatest, powers, total = parts(fd, x)
    return [fd.ops.div(powers, total), fd.ops.eq(x, greatest)]


def crossed(fd: FusionDefinition, x: TensorView) -> list[TensorView]:
    """Rows of a square matrix meet its columns."""
    _, _, total = parts(fd, x)
    greatest = fd.ops.permute(fd.ops.max(x, 1, True), [1, 0])
    return [fd.ops.add(total, greatest)]


SKIPPING = (
    softmax,
    softmax_of_columns,
    softmax_of_all,
    log_sum_exp,
    softmax_by_least,
    transposed_softmax,
    masked_softmax,
)
FINDING = (
    powers_read,
    maximum_read,
    maximum_alone,
    other_sum,
    dropped,
    greatest_of_powers,
    compared,
    crossed,
)


def defined(build: Build, dtype: DataType = DataType.Float) -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=dtype)
        wide = fd.ops.cast(x, DataType.Float) if dtype is not DataType.Float else x
        for output in build(fd, wide):
            made = fd.ops.cast(output, dtype) if dtype is not DataType.Float else output
            fd.add_output(made)
    return fd


def extrema(fusion: Fusion) -> list[str]:
    return [expr.name for expr in fusion.exprs if expr.name.removeprefix("nan") in ("max", "min")]


@pytest.mark.parametrize("build", SKIPPING)
def test_a_sum_finds_the_nan(build: Build) -> None:
    made = extrema(run(defined(build).fusion.definition))
    assert all(name.startswith("nan") for name in made), made


@pytest.mark.parametrize("build", FINDING)
def test_what_shows_nan_keeps_the_maximum(build: Build) -> None:
    made = extrema(run(defined(build).fusion.definition))
    assert not any(name.startswith("nan") for name in made), made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(5, 5), (7, 1), (1, 3), (3, 67), (4, 2048), (0, 3), (3, 0)])
@pytest.mark.parametrize("build", [*SKIPPING, *FINDING])
def test_rows_with_nan(build: Build, shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    if x.numel():
        x.view(-1)[0] = math.nan
        x[shape[0] // 2, -1] = math.nan
        x[-1] = math.nan
    x = x.to(dtype)
    fd = defined(build, {torch.float32: DataType.Float, torch.bfloat16: DataType.BFloat16}[dtype])
    if shape[0] != shape[1] and build is crossed:
        pytest.skip("of square matrices")
    for got, wanted in zip(fd.execute([x]), evaluate(fd.fusion.definition, [x]), strict=True):
        torch.testing.assert_close(got, wanted, equal_nan=True)


@pytest.mark.parametrize("name", sorted(SPREADING_NAN))
def test_rows_that_spread_nan(name: str) -> None:
    op = OPS[name]
    others = values(torch.float32, 2)
    nan = torch.full_like(others, math.nan)
    operands = [[nan, others], [others, nan]] if op.arity == 2 else [[nan]]
    for given in operands:
        assert op.reference(*given).isnan().all()
