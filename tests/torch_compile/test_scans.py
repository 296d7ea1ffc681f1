"""torch.compile computes scans in kernels, and so their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pyfuser.torch_compile.explain import explain
from tests.support.long_cases import pairwise

pytestmark = pytest.mark.usefixtures("poison")

Function = Callable[[torch.Tensor], torch.Tensor]

FUNCTIONS: dict[str, Function] = {
    "rows": lambda x: torch.cumsum(x * 2, 1).sin(),
    "columns": lambda x: torch.cumsum(x.exp(), 0) + x,
    "exclusive": lambda x: torch.cumsum(x, -1) - x,
    "product": lambda x: torch.cumprod(1 + x * 0.01, 1),
    "normalised": lambda x: x.cumsum(1) / x.abs().sum(1, keepdim=True),
    "of a mask": lambda x: (x > 0).cumsum(1) * x,
    "in float64": lambda x: x.cumsum(0, dtype=torch.float64),
    "flipped": lambda x: x.flip(1).cumsum(1).flip(1),
    "product from the end": lambda x: (1 + x.flip(0) * 0.01).cumprod(0).flip(0) * x,
    "flipped along two axes": lambda x: x.flip((0, 1)).cumsum(1).flip((0, 1)),
    "flipped and read twice": lambda x: x.flip(1).cumsum(1).flip(1) + x.flip(1).cumsum(1),
    "flipped along another axis": lambda x: x.flip(0).cumsum(1).flip(0),
    "greatest so far": lambda x: x.sin().cummax(1)[0] * 2,
    "least so far": lambda x: x.cummin(0)[0] - x,
    "greatest from the end": lambda x: x.flip(1).cummax(1)[0].flip(1),
    "of a scan": lambda x: x.cumsum(1).cumsum(1) * 0.1,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("shape", [(5, 67), (33, 3)])
def test_scans_and_their_gradients(
    name: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    function = FUNCTIONS[name]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(2)).requires_grad_()
    got = torch.compile(function, backend="pyfuser")(x)
    want = function(x)
    torch.testing.assert_close(got, want)
    weights = torch.linspace(-1, 1, got.numel()).reshape(got.shape).to(got.dtype)
    gradients = [torch.autograd.grad((y * weights).sum(), x)[0] for y in (got, want)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (torch.int32, None), (torch.bool, None), (torch.uint8, torch.int32),
        (torch.float32, torch.int32), (torch.int64, torch.bfloat16), (torch.float16, None),
        (torch.int32, torch.uint8),
    ],
)  # fmt: skip
def test_scans_convert_their_operand_first(source: torch.dtype, target: torch.dtype | None) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x, 1, dtype=target)

    x = (torch.randn(4, 50, generator=torch.Generator().manual_seed(3)) * 3).to(source)
    got, want = torch.compile(function, backend="pyfuser")(x), function(x)
    torch.testing.assert_close(got, want)


def test_a_scan_is_in_the_kernel_of_what_surrounds_it() -> None:
    report = explain(lambda x: torch.cumsum(x * 2, 1) + 1, torch.randn(6, 50))
    (region,) = report.graphs[0].regions
    assert [kernel.scheduler for kernel in region.kernels] == ["greedy"]


@pytest.mark.parametrize(
    ("op", "dynamic", "dtype"),
    pairwise(
        [torch.cummax, torch.cummin],
        [False, True],
        [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool],
    ),
)
def test_values_and_indices_of_extremes(op: Any, dtype: torch.dtype, dynamic: bool) -> None:
    """Of equal elements and of several NaN the last one counts, and NaN stays."""
    inf, nan = float("inf"), float("nan")
    compiled = torch.compile(lambda x, dim: op(x.clone(), dim), backend="pyfuser", dynamic=dynamic)
    for shape, dim in [
        ((7, 33), 1),
        ((33, 7), 0),
        ((5, 4, 17), 1),
        ((1,), 0),
        ((), 0),
        ((0, 3), 1),
    ]:
        x = torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(1)).float()
        x = torch.where(x == 2, torch.tensor(-0.0), x).to(dtype)
        if dtype.is_floating_point and x.numel() > 9:
            places = torch.arange(x.numel()).view(shape)
            x = torch.where(places % 37 == 5, inf, torch.where(places % 53 == 7, -inf, x))
            x = torch.where(places % 29 == 11, nan, x)
        for got, want in zip(compiled(x, dim), op(x, dim), strict=True):
            assert (got.dtype, got.stride()) == (want.dtype, want.stride())
            torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.exp().cumsum(1) * 2).sin(),
        lambda x: x.exp().flip(0).cumprod(0).flip(0),
        lambda x: x.cummax(1)[1] * 2,
    ],
)
def test_each_direction_is_one_kernel(function: Function) -> None:
    found = explain(function, torch.rand(6, 50))
    assert [r.kernels[0].scheduler for g in found.graphs for r in g.regions] == ["greedy"]


def test_the_gradient_of_a_scan_is_a_kernel() -> None:
    found = explain(lambda x: (x.exp().cumsum(1) * 2).sin(), torch.rand(6, 50, requires_grad=True))
    assert [[k.scheduler for r in g.regions for k in r.kernels] for g in found.graphs] == [
        ["greedy"],
        ["greedy"],
    ]
