"""Reductions split over the grid: what is computed before them and after them is computed twice.

The parts of a reduction and what follows from their sum are phases; a phase can't share the loops,
or the registers, of another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pyfuser import FusionDefinition
from pyfuser.ops.evaluator import evaluate

pytestmark = pytest.mark.usefixtures("poison")

Define = Callable[[FusionDefinition, Any, Any, int], Any]


def scaled(fd: FusionDefinition, x: Any, scale: Any, axis: int) -> Any:
    total = fd.ops.sum(fd.ops.mul(x, spread(fd, scale, axis)), [axis])
    return fd.ops.mul(total, scale)


def exponentials(fd: FusionDefinition, x: Any, scale: Any, axis: int) -> Any:
    power = fd.ops.exp(scale)
    total = fd.ops.sum(fd.ops.div(x, spread(fd, power, axis)), [axis])
    return fd.ops.mul(total, fd.ops.neg(power))


def stored(fd: FusionDefinition, x: Any, scale: Any, axis: int) -> Any:
    power = fd.ops.exp(scale)
    fd.add_output(power)
    total = fd.ops.sum(fd.ops.div(x, spread(fd, power, axis)), [axis])
    return fd.ops.add(total, fd.ops.sqrt(power))


def spread(fd: FusionDefinition, scale: Any, axis: int) -> Any:
    return fd.ops.broadcast(scale, [axis == 0, axis == 1])


@pytest.mark.parametrize("shape", [(4096, 48), (20000, 8), (100000, 3), (2048, 512)], ids=str)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("define", [scaled, exponentials, stored], ids=lambda each: each.__name__)
def test_what_is_read_before_and_after_a_sum(
    define: Define, axis: int, shape: tuple[int, int]
) -> None:
    x = torch.randn(shape if axis == 0 else shape[::-1])
    scale = torch.rand(shape[1]) + 1
    with FusionDefinition() as fd:
        fd.add_output(define(fd, fd.from_pytorch(x), fd.from_pytorch(scale), axis))
    got = fd.execute([x, scale])
    want = evaluate(fd.fusion.graph.definition, [x, scale])
    for mine, right in zip(got, want, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-3)
