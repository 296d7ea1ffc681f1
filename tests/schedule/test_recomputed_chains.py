"""A norm after a norm: what a later pass over a row needs isn't computed from the start again."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.ir.exprs import IotaOp, PointwiseOp
from pyfuser.ops.evaluator import evaluate
from pyfuser.preseg import run
from pyfuser.schedule.recomputation import recompute_cheap

pytestmark = pytest.mark.usefixtures("poison")


def norms(count: int, dim: int = 1, dtype: DataType = DataType.Float) -> FusionDefinition:
    """Normalised `count` times, with a residual each time."""
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1, -1], contiguity=True, dtype=dtype) for _ in range(2))
        value: Any = x
        for _ in range(count):
            variance, mean = fd.ops.var_mean(value, [dim], 0, True)
            scale = fd.ops.rsqrt(fd.ops.add(variance, 0.5))
            value = fd.ops.add(fd.ops.mul(fd.ops.sub(value, mean), scale), y)
        fd.add_output(value)
    return fd


def test_the_work_grows_with_the_number_of_norms() -> None:
    counts = []
    for count in (4, 8, 16):
        fusion = run(norms(count).fusion.definition)
        recompute_cheap(fusion)
        counts.append(len(fusion.exprs))
    assert counts[1] - counts[0] <= counts[2] - counts[1] <= 2.1 * (counts[1] - counts[0])


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("shape", [(7, 33), (3, 1024), (1, 1), (200, 5)])
def test_chains_of_norms(shape: tuple[int, int], dim: int) -> None:
    fd = norms(6, dim)
    inputs = [torch.randn(shape, generator=torch.Generator().manual_seed(n)) for n in range(2)]
    (got,) = fd.execute(inputs)
    exact = norms(6, dim, DataType.Double).fusion.definition
    (wanted,) = evaluate(exact, [x.double() for x in inputs])
    torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-4)


def test_numbers_of_a_row_are_computed_in_each_pass_that_reads_them() -> None:
    """Both passes have the same loops, though no tensor that they read has the row's axis."""
    with FusionDefinition() as fd:
        x, start = fd.define_tensor([-1, -1], contiguity=True), fd.define_tensor([-1, 1])
        numbers = fd.ops.iota(fd.ops.size(x, 1), 0, 1, DataType.Float)
        distance = fd.ops.sub(fd.ops.broadcast(numbers, [True, False]), start)
        total = fd.ops.sum(distance, [1], True)
        fd.add_output(fd.ops.mul(fd.ops.add(x, distance), total))
    fusion = run(fd.fusion.definition)
    before = sum(isinstance(expr, IotaOp) for expr in fusion.exprs)
    recompute_cheap(fusion)
    assert (before, sum(isinstance(expr, IotaOp) for expr in fusion.exprs)) == (1, 2)
    a, b = torch.randn(5, 70), torch.randn(5, 1)
    wanted = torch.arange(70.0) - b
    (got,) = fd.execute([a, b])
    torch.testing.assert_close(got, (a + wanted) * wanted.sum(1, keepdim=True))


def kept(fd: FusionDefinition) -> list[DataType]:
    """The types of the values of whole rows that later passes read from a buffer."""
    fusion = run(fd.fusion.definition)
    before = set(fusion.exprs)
    recompute_cheap(fusion)
    copies = (expr for expr in fusion.exprs if isinstance(expr, PointwiseOp) and expr.op == "set")
    made = (expr.output for expr in copies if expr not in before)
    return [t.dtype for t in made if not any(axis.is_broadcast for axis in t.axes)]


def test_what_follows_from_two_expensive_values_is_kept_alone() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        both = fd.ops.mul(fd.ops.exp(x), fd.ops.sin(x))
        fd.add_output(fd.ops.div(both, fd.ops.sum(both, [1], True)))
    assert kept(fd) == [DataType.Float]


def test_what_was_rounded_is_kept_as_narrow() -> None:
    """The gradient of a norm and the function after it, both of bfloat16."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.BFloat16)
        gate = fd.ops.sigmoid(fd.ops.cast(x, DataType.Float))
        slope = fd.ops.cast(fd.ops.mul(gate, fd.ops.sub(1.0, gate)), DataType.BFloat16)
        wide = fd.ops.cast(slope, DataType.Float)
        fd.add_output(fd.ops.sub(wide, fd.ops.sum(wide, [1], True)))
    assert kept(fd) == [DataType.BFloat16]
    value = torch.randn(7, 130).bfloat16()
    gate_ = value.double().sigmoid()
    wanted = (gate_ * (1 - gate_)).bfloat16().double()
    (got,) = fd.execute([value])
    wanted = wanted - wanted.sum(1, keepdim=True)
    torch.testing.assert_close(got.double(), wanted, rtol=1e-2, atol=1e-2)


def test_values_of_whole_rows_keep_nothing() -> None:
    """A function of a row's sum is a number; what follows from it is computed again."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        scaled = fd.ops.mul(x, fd.ops.exp(fd.ops.sum(x, [1], True)))
        fd.add_output(fd.ops.sub(scaled, fd.ops.sum(scaled, [1], True)))
    assert kept(fd) == []
