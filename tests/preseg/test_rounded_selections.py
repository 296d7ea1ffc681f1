"""Selections of rounded numbers: rounded once, after the selection, they have the same values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.dtypes import to_torch
from pyfuser.preseg import run

from .near_halves import near_halves

HALVES = (DataType.BFloat16, DataType.Half)


def _roundings(fd: FusionDefinition, dtype: DataType) -> int:
    """How many conversions to half precision are left."""
    exprs = run(fd.fusion.definition).exprs
    return sum(expr.name == "cast" and expr.output.dtype is dtype for expr in exprs)


# name -> (of two rounded numbers and a float: a definition's selection, torch's, how many roundings
# are left)
SELECTIONS: dict[str, tuple[Callable[..., Any], Callable[..., torch.Tensor], int]] = {
    "relu": (lambda o, a, b, z: o.relu(a), lambda a, b, z: a.relu(), 1),
    "abs": (lambda o, a, b, z: o.abs(a), lambda a, b, z: a.abs(), 1),
    "neg": (lambda o, a, b, z: o.neg(a), lambda a, b, z: -a, 1),
    "maximum": (lambda o, a, b, z: o.maximum(a, b), lambda a, b, z: torch.maximum(a, b), 1),
    "minimum": (lambda o, a, b, z: o.minimum(a, b), lambda a, b, z: torch.minimum(a, b), 1),
    "of a float": (
        lambda o, a, b, z: o.maximum(a, z),
        lambda a, b, z: torch.maximum(a.float(), z),
        1,
    ),
    "of a constant": (
        lambda o, a, b, z: o.minimum(a, 0.3),
        lambda a, b, z: torch.minimum(a.float(), torch.tensor(0.3)),
        1,
    ),
    "where": (
        lambda o, a, b, z: o.where(o.gt(z, 0.0), a, b),
        lambda a, b, z: torch.where(z > 0, a, b),
        1,
    ),
    "of selections": (
        lambda o, a, b, z: o.relu(o.neg(o.minimum(a, o.abs(b)))),
        lambda a, b, z: (-torch.minimum(a, b.abs())).relu(),
        1,
    ),
    "of a sum": (lambda o, a, b, z: o.relu(o.add(a, b)), lambda a, b, z: None, 3),
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", SELECTIONS)
def test_a_selection_is_rounded_once(name: str, dtype: DataType) -> None:
    define, by_torch, count = SELECTIONS[name]
    x = near_halves(to_torch(dtype))
    y, z = x.flip(0), x[torch.randperm(len(x))]
    with FusionDefinition() as fd:
        given = [fd.from_pytorch(each) for each in (x, y, z)]
        a, b = (
            fd.ops.cast(fd.ops.cast(each, dtype), DataType.Float)
            for each in (fd.ops.mul(given[0], 1.5), fd.ops.neg(given[1]))
        )
        fd.add_output(fd.ops.cast(define(fd.ops, a, b, given[2]), dtype))
    (found,) = fd.execute([x, y, z])
    assert _roundings(fd, dtype) == count
    wanted = by_torch((x * 1.5).to(to_torch(dtype)), (-y).to(to_torch(dtype)), z)
    if wanted is not None:
        wanted = wanted.to(to_torch(dtype))
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("reads", ["as it is", "as an output"])
def test_a_selection_that_is_read_otherwise_stays_rounded(reads: str) -> None:
    x = torch.randn(1000)
    with FusionDefinition() as fd:
        number = fd.ops.mul(fd.from_pytorch(x), 1.5)
        rounded = fd.ops.cast(fd.ops.cast(number, DataType.BFloat16), DataType.Float)
        selected = fd.ops.relu(rounded)
        fd.add_output(fd.ops.cast(selected, DataType.BFloat16))
        fd.add_output(fd.ops.mul(selected, 2.0) if reads == "as it is" else selected)
    halves, floats = fd.execute([x])
    wanted = (x * 1.5).bfloat16().relu()
    assert torch.equal(halves, wanted)
    assert torch.equal(floats, wanted.float() * (2 if reads == "as it is" else 1))
