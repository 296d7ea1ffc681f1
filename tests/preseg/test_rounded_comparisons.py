"""Comparisons of rounded numbers with constants: the number before rounding decides the same."""

from __future__ import annotations

import math

import pytest
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.dtypes import to_torch
from pyfuser.preseg import run
from pyfuser.preseg.rounded_comparisons import largest_rounded_below

from .near_halves import near_halves

CONSTANTS = (0.0, 1.0, -1.0, 0.3, -2.5, 1e-45, 1e-40, 6e-8, -3e-8, 65504.0, 65519.9, 65520.0, 3e38)
HALVES = (DataType.BFloat16, DataType.Half)
OPS = ("lt", "le", "gt", "ge")


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("constant", [*CONSTANTS, math.inf, -math.inf])
def test_the_bound_decides_as_the_rounded_number_does(constant: float, dtype: DataType) -> None:
    x = near_halves(to_torch(dtype))
    rounded = x.to(to_torch(dtype)).float()
    limit = torch.tensor(constant)
    for or_equal, expected in ((True, rounded <= limit), (False, rounded < limit)):
        bound = largest_rounded_below(constant, dtype, or_equal)
        found = torch.zeros_like(expected) if bound is None else x <= torch.tensor(bound)
        assert torch.equal(found, expected)


def test_no_number_is_below_minus_infinity_or_ordered_to_nan() -> None:
    assert largest_rounded_below(-math.inf, DataType.Half, False) is None
    assert largest_rounded_below(-math.inf, DataType.Half, True) == -65520.0  # infinite, rounded
    assert largest_rounded_below(math.nan, DataType.Half, True) is None


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("constant", [0.0, 0.3, 1.0, -65504.0, math.nan])
@pytest.mark.parametrize("is_left", [True, False])
def test_a_kernel_compares_as_torch_does(
    dtype: DataType, op: str, constant: float, is_left: bool
) -> None:
    x = near_halves(to_torch(dtype))
    with FusionDefinition() as fd:
        number = fd.from_pytorch(x)
        rounded = fd.ops.cast(fd.ops.mul(number, 1.5), dtype)
        sides = (rounded, constant) if is_left else (constant, rounded)
        fd.add_output(getattr(fd.ops, op)(*sides))
    rounded_x = (x * 1.5).to(to_torch(dtype)).float()
    limit = torch.full_like(rounded_x, constant)
    sides = (rounded_x, limit) if is_left else (limit, rounded_x)
    (found,) = fd.execute([x])
    assert torch.equal(found, getattr(torch, op)(*sides))
    casts = [expr for expr in run(fd.fusion.definition).exprs if expr.name == "cast"]
    assert len(casts) == (2 if math.isnan(constant) else 0)


@pytest.mark.parametrize("dtype", HALVES)
def test_a_rounded_tensor_that_is_kept_is_compared(dtype: DataType) -> None:
    """A kernel that compares it reads half as much."""
    x = torch.randn(37)
    with FusionDefinition() as fd:
        rounded = fd.ops.cast(fd.ops.neg(fd.from_pytorch(x)), dtype)
        fd.add_output(rounded)
        fd.add_output(fd.ops.gt(rounded, 0.5))
    kept, mask = fd.execute([x])
    assert torch.equal(kept, (-x).to(to_torch(dtype)))
    assert torch.equal(mask, kept > 0.5)
    assert [expr.name for expr in run(fd.fusion.definition).exprs].count("cast") == 2
