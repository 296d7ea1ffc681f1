"""Reductions as compiled kernels: op x dimensions x dtype x layout x size.

References are torch's own functions in float64 (exact for integers), tolerances those that
`FusionDefinition.validate` has for as many elements; memory is poisoned.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.dtypes import from_torch
from pyfuser.ops.references import highest, lowest
from tests.ops.reduction_definitions import FLOATS, LAYOUTS, Dims, Reference, in_float, random
from tests.support.long_cases import pairwise

pytestmark = pytest.mark.usefixtures("poison")

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
SUBSETS: list[Dims] = [
    dims for count in (1, 2, 3) for dims in itertools.combinations(range(3), count)
]


def wide(x: torch.Tensor) -> torch.Tensor:
    return x.double() if x.is_floating_point() else x


def product(x: torch.Tensor, dims: Dims) -> torch.Tensor:
    for dim in sorted(dims, reverse=True):
        x = x.prod(dim)
    return x


def moments(x: torch.Tensor, dims: Dims) -> list[torch.Tensor]:
    """Mean, sum of squared deviations, and count, as `welford` gives them."""
    mean = x.mean(dims, keepdim=True)
    count = math.prod(x.shape[d] for d in dims)
    squares = (x - mean).square().sum(dims)
    return [mean.squeeze(dims), squares, torch.full(squares.shape, count)]


OPERATIONS: dict[str, tuple[Callable[..., Any], Reference]] = {
    "sum": (lambda fd, x, d: [fd.ops.sum(x, d)], lambda x, d: [x.sum(d)]),
    "prod": (lambda fd, x, d: [fd.ops.prod(x, d)], lambda x, d: [product(x, d)]),
    "max": (lambda fd, x, d: [fd.ops.max(x, d)], lambda x, d: [x.amax(d)]),
    "min": (lambda fd, x, d: [fd.ops.min(x, d)], lambda x, d: [x.amin(d)]),
    "nanmax": (
        lambda fd, x, d: [fd.ops.nanmax(x, d)],
        lambda x, d: [x.masked_fill(x != x, lowest(x.dtype)).amax(d)],
    ),
    "nanmin": (
        lambda fd, x, d: [fd.ops.nanmin(x, d)],
        lambda x, d: [x.masked_fill(x != x, highest(x.dtype)).amin(d)],
    ),
    "var": (lambda fd, x, d: [fd.ops.var(x, d, 1)], lambda x, d: [x.var(d, correction=1)]),
    "var_mean": (
        lambda fd, x, d: fd.ops.var_mean(x, d, 0),
        lambda x, d: list(torch.var_mean(x, d, correction=0)),
    ),
    "welford": (lambda fd, x, d: fd.ops.welford(x, d), moments),
}
MOMENTS = ("var", "var_mean", "welford")
OTHERS = tuple(name for name in OPERATIONS if name not in MOMENTS)


def reduction(name: str, x: torch.Tensor, dims: Dims) -> FusionDefinition:
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1] * x.dim(), dtype=from_torch(x.dtype))
        if name in MOMENTS:
            t = in_float(fd, t)
        for output in OPERATIONS[name][0](fd, t, list(dims)):
            fd.add_output(output)
    return fd


def check(fd: FusionDefinition, name: str, x: torch.Tensor, dims: Dims) -> None:
    """The kernel's outputs equal torch's in float64, within rounding, and torch's in dtype."""
    references = OPERATIONS[name][1](wide(x), dims)
    fd.validate([x], references)
    if name not in MOMENTS and x.dtype is not torch.uint8:
        (output,) = fd.execute([x])
        assert output.dtype is OPERATIONS[name][1](x, dims)[0].dtype


@pytest.mark.parametrize(
    ("name", "dims", "dtype"),
    [
        *pairwise(MOMENTS, SUBSETS, FLOATS),
        *pairwise(OTHERS, SUBSETS, (*FLOATS, *INTEGERS)),
    ],
)
def test_dims_dtypes_and_layouts(name: str, dims: Dims, dtype: torch.dtype) -> None:
    fd = reduction(name, torch.empty(0, 0, 0, dtype=dtype), dims)
    for number, shape in enumerate([(3, 5, 7), (2, 17, 67)]):
        x = random(shape, dtype, number, center=name == "prod")
        layouts = LAYOUTS if dtype is torch.float32 else ("contiguous", "transposed")
        for layout in layouts:
            check(fd, name, LAYOUTS[layout](x), dims)


@pytest.mark.parametrize("keepdim", [False, True])
def test_kept_and_negative_dims(keepdim: bool) -> None:
    x = random((3, 5, 7), torch.float32)
    with FusionDefinition() as fd:
        t = fd.from_pytorch(x)
        fd.add_output(fd.ops.sum(t, [-1, 0], keepdim=keepdim))
        fd.add_output(fd.ops.max(t, -2, keepdim))
    fd.validate([x], [x.double().sum((-1, 0), keepdim=keepdim), x.double().amax(-2, keepdim)])


SIZES = [
    (65536, 64),
    (1, 200_003),
    (200_003, 1),
    (2, 50_021),
    (50_021, 2),
    (7, 4099),
    (4099, 7),
    (1, 1),
]


@pytest.mark.parametrize(
    ("name", "dims", "dtype"),
    pairwise(["sum", "max", "var_mean"], [(0,), (1,), (0, 1)], [torch.bfloat16, torch.float32]),
)
def test_sizes(name: str, dims: Dims, dtype: torch.dtype) -> None:
    """Few long rows (split over the cores), many short ones, and both kinds of columns."""
    fd = reduction(name, torch.empty(0, 0, dtype=dtype), dims)
    for shape in SIZES:
        x = random(shape, dtype)
        for layout in ("contiguous", "transposed"):
            check(fd, name, LAYOUTS[layout](x), dims)


@pytest.mark.parametrize("shape", [(3, 0), (0, 3), (0, 0), (4, 0, 5), (0, 2, 2)], ids=str)
@pytest.mark.parametrize("name", ["sum", "prod"])
def test_no_elements(name: str, shape: tuple[int, ...]) -> None:
    for dtype in (torch.float32, torch.float16, torch.int64):
        for count in range(1, len(shape) + 1):
            for dims in itertools.combinations(range(len(shape)), count):
                x = torch.empty(shape, dtype=dtype)
                check(reduction(name, x, dims), name, x, dims)


@pytest.mark.parametrize("shape", [(3, 0), (0, 3)], ids=str)
def test_moments_of_no_elements(shape: tuple[int, ...]) -> None:
    for dim in (0, 1):
        x = torch.empty(shape)
        fd = reduction("var_mean", x, (dim,))
        count = x.shape[dim]
        want = torch.full((x.shape[1 - dim],), math.nan if count == 0 else 0.0)
        for got in fd.execute([x]):
            torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "nanmax", "nanmin"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan_and_infinity(name: str, dtype: torch.dtype) -> None:
    inf, nan = math.inf, math.nan
    rows = [[1, inf, 2], [1, -inf, 2], [nan, 1, 2], [2, nan, inf], [-inf, inf, 1], [inf, 0, -1]]
    short = torch.tensor(rows, dtype=dtype)
    long = torch.ones(6, 259, dtype=dtype)
    long[:, 100:103] = short
    for x in (short, long):
        for dims in ((1,), (0,), (0, 1)):
            for layout in ("contiguous", "transposed"):
                check(reduction(name, x, dims), name, LAYOUTS[layout](x), dims)


def test_extremes_of_negative_zero_and_lowest_values() -> None:
    for dtype in INTEGERS:
        info = torch.iinfo(dtype)
        for number in (info.min, info.max):
            x = torch.full((3, 70), number, dtype=dtype)
            for name in ("max", "min"):
                check(reduction(name, x, (1,)), name, x, (1,))
    lowest = torch.full((3, 70), -math.inf)
    for name in ("max", "min"):
        check(reduction(name, lowest, (1,)), name, lowest, (1,))


def test_integer_sums_wrap() -> None:
    x = torch.full((5, 37), 2**62 + 12345)
    for dims in ((0,), (1,), (0, 1)):
        (got,) = reduction("sum", x, dims).execute([x])
        assert torch.equal(got, x.sum(dims))
        (got,) = reduction("prod", x, dims).execute([x])
        assert torch.equal(got, product(x, dims))


@pytest.mark.parametrize("shape", [(3, 5), (4, 300), (1, 1)], ids=str)
def test_bools(shape: tuple[int, int]) -> None:
    x = torch.rand(shape, generator=torch.Generator().manual_seed(3)) > 0.4
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1, -1], dtype=DataType.Bool)
        for dim in (0, 1):
            fd.add_output(fd.ops.sum(t, [dim]))
            fd.add_output(fd.ops.ne(fd.ops.sum(t, [dim]), 0))
    outputs = fd.execute([x])
    for dim in (0, 1):
        assert torch.equal(outputs[2 * dim], x.sum(dim))
        assert torch.equal(outputs[2 * dim + 1], x.any(dim))


def test_long_sums_lose_little() -> None:
    """Many accumulators: the error stays far below that of one running sum."""
    torch.manual_seed(0)
    x = torch.randn(3, 100_003)
    exact = x.double()
    for dims, data in (((1,), x), ((0,), x.t())):
        (got,) = reduction("sum", data, dims).execute([data])
        want = (exact if dims == (1,) else exact.t()).sum(dims)
        scale = exact.abs().sum(1)
        assert bool(
            ((got.double() - want).abs() < 16 * torch.finfo(torch.float32).eps * scale).all()
        )


def test_moments_far_from_zero() -> None:
    """The variance of numbers with a large mean: no cancellation of squares."""
    torch.manual_seed(0)
    x = 10_000 + torch.randn(4, 2003)
    variance, mean = reduction("var_mean", x, (1,)).execute([x])
    exact = torch.var_mean(x.double(), 1, correction=0)
    torch.testing.assert_close(variance.double(), exact[0], rtol=1e-3, atol=0)
    torch.testing.assert_close(mean.double(), exact[1], rtol=1e-6, atol=0)


def test_reductions_of_one_tensor_in_one_fusion() -> None:
    x = random((19, 230), torch.float32)
    with FusionDefinition() as fd:
        t = fd.define_tensor([-1, -1], contiguity=True)
        for dims in ([1], [0], [0, 1]):
            fd.add_output(fd.ops.sum(t, dims))
            fd.add_output(fd.ops.max(fd.ops.neg(t), dims))
        fd.add_output(fd.ops.mul(t, 2.0))
    fd.validate([x])
    fd.validate([x.t().contiguous()])


def test_reduction_of_an_input_that_stands_still_along_the_lanes() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([1, -1, -1])
        least = fd.ops.min(fd.ops.sigmoid(x), [1])
        fd.add_output(fd.ops.broadcast(least, [False, True, False]))
    given = torch.randn(1, 5, 1).expand(1, 5, 33)
    (output,) = fd.execute([given])
    torch.testing.assert_close(output, torch.sigmoid(given).amin(1, keepdim=True))


EXPANSIONS: dict[str, Callable[[FusionDefinition, Any, Any], Any]] = {
    "declared": lambda fd, x, n: x,
    "a number": lambda fd, x, n: fd.ops.expand(x, [-1, 0]),
    "a scalar": lambda fd, x, n: fd.ops.expand(x, [-1, n]),
}


@pytest.mark.parametrize("dims", [(1,), (0, 1)])
@pytest.mark.parametrize("expansion", EXPANSIONS)
def test_elements_that_repeat_no_time(expansion: str, dims: Dims) -> None:
    """Nothing is reduced: not even infinity times 0 is left."""
    is_declared = expansion == "declared"
    x = torch.empty(3, 0) if is_declared else torch.tensor([[3.0], [math.inf], [math.nan]])
    with FusionDefinition() as fd:
        source = fd.define_tensor([-1, -1 if is_declared else 1], contiguity=[True, None])
        given = EXPANSIONS[expansion](fd, source, fd.define_scalar(dtype=DataType.Int))
        for reduce in (fd.ops.sum, fd.ops.prod, fd.ops.max, fd.ops.min, fd.ops.nanmax):
            fd.add_output(reduce(given, dims))
        for output in (*fd.ops.var_mean(given, dims), *fd.ops.welford(given, dims)):
            fd.add_output(output)
    identities = (0, 1, -math.inf, math.inf, -math.inf, math.nan, math.nan, math.nan, 0, 0)
    for output, identity in zip(fd.execute([x, 0]), identities, strict=True):
        expected = torch.full([3][: 2 - len(dims)], identity, dtype=output.dtype)
        torch.testing.assert_close(output, expected, equal_nan=True)


def test_moments_of_complex_numbers() -> None:
    x = torch.randn(5, 7, dtype=torch.complex128)
    with FusionDefinition() as fd:
        given = fd.from_pytorch(x)
        variance, mean = fd.ops.var_mean(given, [1])
        average, squares, _ = fd.ops.welford(given, [0, 1])
        for output in (variance, mean, average, squares, fd.ops.var(given, [0], 0, True)):
            fd.add_output(output)
    expected = [
        x.var(1),
        x.mean(1),
        x.mean(),
        x.var(correction=0) * 35,
        x.var(0, correction=0, keepdim=True),
    ]
    for ours, eagers in zip(fd.execute([x]), expected, strict=True):
        torch.testing.assert_close(ours, eagers)
