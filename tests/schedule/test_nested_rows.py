"""Parts of rows that are reduced, then their results, in one kernel; against torch in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.ops.evaluator import evaluate
from tests.schedule.test_inner_outer_persistent import schedulers

pytestmark = pytest.mark.usefixtures("poison")

Define = Callable[[FusionDefinition, Any], Sequence[Any]]


def group_norm_backward(fd: FusionDefinition, x: Any) -> list[Any]:
    """The gradients of x and, for each image, those of weight and bias; x is also dy's operand."""
    dy = fd.ops.sin(x)
    weight = fd.ops.add(fd.ops.size(x, 1), 0.5)
    along, across = fd.ops.sum(fd.ops.mul(dy, x), [2]), fd.ops.sum(dy, [2])
    kept = [False, True, True]
    sums = [
        fd.ops.broadcast(fd.ops.sum(fd.ops.mul(each, weight), [1]), kept)
        for each in (along, across)
    ]
    gradient = fd.ops.sub(fd.ops.sub(fd.ops.mul(dy, weight), sums[1]), fd.ops.mul(x, sums[0]))
    return [gradient, along, across]


def weights_of_parts(fd: FusionDefinition, x: Any) -> list[Any]:
    """Each part times a softmax of the parts' sums."""
    totals = fd.ops.sum(x, [2], True)
    most = fd.ops.max(totals, [1], True)
    shares = fd.ops.exp(fd.ops.sub(totals, most))
    return [fd.ops.mul(x, fd.ops.div(shares, fd.ops.sum(shares, [1], True)))]


def variance_of_means(fd: FusionDefinition, x: Any) -> list[Any]:
    """Only the input and what is divided by a row's result are as long as a row."""
    mean = fd.ops.div(fd.ops.sum(x, [2]), fd.ops.size(x, 2))
    variance, center = fd.ops.var_mean(mean, [1], 1)
    spread = fd.ops.broadcast(fd.ops.add(variance, 1.0), [False, True, True])
    return [variance, center, fd.ops.abs(mean), fd.ops.div(x, spread)]


def sums_after_sums(fd: FusionDefinition, x: Any) -> list[Any]:
    """The parts are reduced again once a result of the whole row is known."""
    row = fd.ops.sum(fd.ops.max(x, [2], True), [1], True)
    deviation = fd.ops.reciprocal(fd.ops.add(fd.ops.abs(fd.ops.sub(x, row)), 1.0))
    return [fd.ops.sum(deviation, [2]), fd.ops.min(deviation, [2]), fd.ops.mul(deviation, row)]


DEFINITIONS: list[Define] = [
    group_norm_backward,
    weights_of_parts,
    variance_of_means,
    sums_after_sums,
]


def define(
    parts: Define, like: torch.Tensor, dtype: DataType, copy_as: DataType | None = None
) -> FusionDefinition:
    """Of a tensor laid out as `like`; with `copy_as`, for the evaluator in that type."""
    with FusionDefinition() as fd:
        x = fd.from_pytorch(like if copy_as is None else like.double())
        wide = DataType.Double if DataType.Double in (dtype, copy_as) else DataType.Float
        for result in parts(fd, fd.ops.cast(x, wide)):
            fd.add_output(fd.ops.cast(result, copy_as or dtype))
    return fd


def check(parts: Define, x: torch.Tensor, dtype: DataType = DataType.Float) -> FusionDefinition:
    fd = define(parts, x, dtype)
    exact = define(parts, x, dtype, DataType.Double).fusion.definition
    tolerance = {DataType.BFloat16: 2e-2, DataType.Half: 3e-3}.get(dtype, 2e-5)
    for got, wanted in zip(fd.execute([x]), evaluate(exact, [x.double()]), strict=True):
        finite = wanted[wanted.isfinite()].abs()
        scale = float(finite.max()) if finite.numel() else 1.0
        torch.testing.assert_close(
            got.double(), wanted, rtol=tolerance, atol=tolerance * scale, equal_nan=True
        )
    return fd


@pytest.mark.parametrize("parts", DEFINITIONS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("shape", [(64, 8, 64), (7, 5, 33), (300, 1, 17), (2, 3, 4), (1, 70, 129)])
def test_parts_and_rows(parts: Define, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    check(parts, torch.randn(shape))
    check(parts, torch.randn(shape).bfloat16(), DataType.BFloat16)


@pytest.mark.parametrize("parts", DEFINITIONS, ids=lambda each: each.__name__)
def test_layouts(parts: Define) -> None:
    torch.manual_seed(0)
    for x in (
        torch.randn(64, 8, 40)[:, ::2, 3:],
        torch.randn(8, 64, 40).transpose(0, 1),
        torch.randn(64, 40, 8).mT,
        torch.randn(40, 8, 64).permute(2, 1, 0),
        torch.randn(64, 1, 40).expand(-1, 8, -1),
        torch.randn(64, 8, 1).expand(-1, -1, 40),
    ):
        check(parts, x)


@pytest.mark.parametrize("dtype", [DataType.Half, DataType.Double], ids=str)
def test_types(dtype: DataType) -> None:
    torch.manual_seed(0)
    kind = torch.float16 if dtype is DataType.Half else torch.float64
    for parts in DEFINITIONS:
        check(parts, torch.randn(80, 6, 50).to(kind), dtype)


def test_nan_and_infinities() -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 6, 50)
    x[3, 2, 7], x[5, 0, 0], x[9, 5, 49] = float("nan"), float("inf"), float("-inf")
    for parts in (weights_of_parts, variance_of_means):
        check(parts, x)


@pytest.mark.cpu
@pytest.mark.parametrize("parts", DEFINITIONS, ids=lambda each: each.__name__)
def test_one_kernel(parts: Define) -> None:
    fd = check(parts, torch.randn(256, 8, 100))
    assert schedulers(fd) == ["inner_persistent"]


@pytest.mark.cpu
def test_three_levels_are_one_kernel() -> None:
    torch.manual_seed(0)

    def levels(fd: FusionDefinition, x: Any) -> list[Any]:
        parts = fd.ops.sum(fd.ops.mul(x, x), [3], True)
        groups = fd.ops.max(parts, [2], True)
        rows = fd.ops.sum(groups, [1], True)
        return [fd.ops.div(x, rows), parts, fd.ops.sub(groups, rows)]

    for shape in ((256, 3, 4, 40), (300, 1, 5, 33)):
        fd = check(levels, torch.randn(shape))
        assert schedulers(fd) == ["inner_persistent"]


@pytest.mark.cpu
def test_three_levels_without_the_axes_of_those_before_are_one_kernel() -> None:
    torch.manual_seed(0)
    for shape in ((256, 3, 4, 40), (300, 1, 5, 33), (64, 70, 3, 32), (64, 3, 70, 32)):
        fd = check(sums_used_again((3, 2, 1), 4), torch.randn(shape))
        assert schedulers(fd) == ["inner_persistent"]
        check(sums_used_again((3, 1, 1), 4), torch.randn(shape))


@pytest.mark.parametrize("reduce", ["sum", "max"])
def test_results_of_all_rows(reduce: str) -> None:
    """Of the rows' results: one task would compute them all."""
    torch.manual_seed(0)

    def all_rows(fd: FusionDefinition, x: Any) -> list[Any]:
        parts = fd.ops.sum(x, [2])
        rows = fd.ops.max(parts, [1])
        total = getattr(fd.ops, reduce)(fd.ops.mul(rows, 1 / 16), [0])
        return [parts, rows, total, fd.ops.sub(x, fd.ops.broadcast(rows, [False, True, True]))]

    for shape in ((300, 6, 51), (5, 40, 33), (1, 2, 64)):
        check(all_rows, torch.randn(shape))


@pytest.mark.cpu
def test_many_parts_are_added_in_blocks() -> None:
    """A long chain of equal numbers, each of which rounds if they are added one after the other."""
    x = torch.full((64, 1 << 12, 16), 0.1)

    def total(fd: FusionDefinition, x: Any) -> list[Any]:
        found = fd.ops.sum(fd.ops.max(x, [2]), [1])
        return [found, fd.ops.add(x, fd.ops.broadcast(found, [False, True, True]))]

    got, _ = define(total, x, DataType.Float).execute([x])
    exact = x[..., 0].double().sum(1)
    assert float(((got.double() - exact) / exact).abs().max()) < 2e-6


# -- what isn't nested


def sums(order: Sequence[int]) -> Define:
    """Along one axis after the other."""

    def totals(fd: FusionDefinition, x: Any) -> list[Any]:
        for axis in order:
            x = fd.ops.sum(x, [axis])
        return [x]

    return totals


def sums_used_again(order: Sequence[int], rank: int = 3, kept: int = 0) -> Define:
    """Along one axis after the other but one, which is added to all elements."""

    def added(fd: FusionDefinition, x: Any) -> list[Any]:
        (total,) = sums(order)(fd, x)
        return [fd.ops.add(x, fd.ops.broadcast(total, [axis != kept for axis in range(rank)]))]

    return added


def both_sums(fd: FusionDefinition, x: Any) -> list[Any]:
    """Along two axes of the same input."""
    return [fd.ops.sum(x, [1]), fd.ops.sum(x, [2])]


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("parts", "shape"),
    [
        pytest.param(sums_used_again((2, 1)), (1, 8, 64), id="one row"),
        pytest.param(sums_used_again((2, 1)), (64, 64, 4), id="short parts"),
        pytest.param(sums_used_again((2, 1)), (8, 1 << 10, 1 << 10), id="long rows"),
        pytest.param(sums_used_again((1, 1)), (64, 8, 64), id="columns of parts"),
        pytest.param(
            sums_used_again((2, 0), kept=1), (64, 8, 64), id="rows that are columns of the parts"
        ),
        pytest.param(both_sums, (64, 8, 64), id="both of the input"),
        pytest.param(sums((2, 1)), (64, 8, 64), id="nothing along the parts of a row's result"),
    ],
)
def test_what_takes_several_kernels(parts: Define, shape: tuple[int, ...]) -> None:
    fd = check(parts, torch.randn(shape))
    assert len(schedulers(fd)) > 1


@pytest.mark.cpu
def test_sizes_decide_anew_at_each_call() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1, -1], contiguity=True)
        (added,) = sums_used_again((2, 1))(fd, x)
        fd.add_output(added)
    for shape, is_one in (((64, 8, 64), True), ((1, 8, 64), False), ((64, 64, 4), False)):
        x = torch.randn(shape)
        (got,) = fd.execute([x])
        wanted = x + x.sum((1, 2), keepdim=True)
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
        assert (len(schedulers(fd)) == 1) == is_one
