"""A group norm's sums read a group as one range of memory, its result channel by channel."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.ops.evaluator import evaluate
from pyfuser.preseg import run
from pyfuser.schedule.common import Layouts, reductions
from pyfuser.schedule.recomputation import recompute_cheap
from pyfuser.schedule.whole_ranges import whole_ranges
from tests.support.compiled import BACKEND
from tests.support.compiled import strict as strict
from tests.support.long_cases import pairwise

pytestmark = pytest.mark.usefixtures("poison")


def group_norm(x: torch.Tensor, before: str = "", is_added: bool = False) -> FusionDefinition:
    """Of [group, channel, image], with weights of channels, after an operation if there is one."""
    with FusionDefinition() as fd:
        value: Any = fd.from_pytorch(x)
        kind = value.dtype()
        weight, bias = (fd.define_tensor([-1], contiguity=True, dtype=kind) for _ in range(2))
        wide = [fd.ops.broadcast(each, [True, False, True]) for each in (weight, bias)]
        value = fd.ops.cast(value, kind if kind is DataType.Double else DataType.Float)
        if before:
            value = getattr(fd.ops, before)(value)
        if is_added:
            value = fd.ops.add(value, wide[1])
        variance, mean = fd.ops.var_mean(value, [1, 2], 0, True)
        scale = fd.ops.rsqrt(fd.ops.add(variance, 1e-3))
        normal = fd.ops.mul(fd.ops.sub(value, mean), scale)
        fd.add_output(fd.ops.cast(fd.ops.add(fd.ops.mul(normal, wide[0]), wide[1]), kind))
    return fd


def passes_with_a_range(fd: FusionDefinition) -> int:
    fusion = run(fd.fusion.definition)
    recompute_cheap(fusion)
    return len(whole_ranges(fusion, reductions(fusion)[0], Layouts(fusion)))


def test_both_sums_read_a_range() -> None:
    x = torch.randn(3, 4, 5)
    assert passes_with_a_range(group_norm(x)) == 2
    assert passes_with_a_range(group_norm(x, "neg")) == 2
    assert passes_with_a_range(group_norm(x.mT)) == 2


@pytest.mark.parametrize(
    "fd",
    [
        pytest.param(group_norm(torch.randn(3, 4, 7)[..., :5]), id="gaps"),
        pytest.param(group_norm(torch.randn(3, 4, 5), "erf"), id="kept"),
        pytest.param(group_norm(torch.randn(3, 4, 5), is_added=True), id="added"),
    ],
)
def test_sums_that_read_no_range(fd: FusionDefinition) -> None:
    """Gaps in memory, values kept for a later pass, and a bias in the sum."""
    assert passes_with_a_range(fd) == 0


@pytest.mark.parametrize(
    ("shape", "before", "dtype"),
    pairwise(
        [(5, 32, 49), (2, 3, 1), (3, 1, 70), (1, 200, 3), (64, 8, 64), (2, 7, 1000), (0, 3, 5)],
        ["", "neg", "erf"],
        [torch.bfloat16, torch.float32, torch.float64],
    ),
)
def test_group_norms(shape: tuple[int, int, int], before: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(shape, generator=generator).to(dtype)
    weights = [torch.randn(shape[1], generator=generator).to(dtype) for _ in range(2)]
    tolerance = 1e-2 if dtype is torch.bfloat16 else 1e-4
    for given in (x, x.mT.contiguous().mT, torch.cat([x, x], 2)[..., : shape[2]]):
        exact = group_norm(given.double(), before).fusion.definition
        (wanted,) = evaluate(exact, [each.double() for each in (given, *weights)])
        (got,) = group_norm(given, before).execute([given, *weights])
        torch.testing.assert_close(got.double(), wanted, rtol=tolerance, atol=tolerance)


def test_a_reduction_without_the_axis_of_one_element(strict: None) -> None:
    """A maximum over all axes has no row, where a variance has one."""

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        folded = x.unflatten(0, (-1, 4))
        greatest = folded.amax((0, 1, 2))
        return folded.var((1, 2), keepdim=True), torch.where(folded < 0.1, y, greatest)

    inputs = torch.randn(2, 4).t(), torch.rand(1, 4, 2) > 0.5
    torch.testing.assert_close(torch.compile(program, backend=BACKEND)(*inputs), program(*inputs))
