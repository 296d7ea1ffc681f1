"""max, min, argmax and argmin along a dimension: the first of equal elements, and of NaNs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.long_cases import pairwise

FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "max": lambda x: x.max(1),
    "min, kept": lambda x: x.min(0, keepdim=True),
    "argmax": lambda x: x.argmax(1),
    "argmin, kept": lambda x: x.argmin(0, keepdim=True),
    "argmax of all": lambda x: x.argmax(),
    "argmin of all, kept": lambda x: x.argmin(keepdim=True),
    "of a product": lambda x: (x * x).max(1),
    "of a transposed": lambda x: x.t().max(1),
    "of all of a transposed": lambda x: x.t().argmax(),
    "both of rows": lambda x: torch.aminmax(x, dim=1),
    "both of all, kept": lambda x: torch.aminmax(x + 1, keepdim=True),
    "read at": lambda x: x.gather(1, x.argmax(1, True)),
}
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.int64)
SHAPES = ((5, 7), (33, 1), (1, 40), (16, 257))


def _numbers(shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Many equal ones, infinities and NaNs."""
    x = (torch.randn(shape) * 3).round().to(dtype)
    if dtype.is_floating_point:
        x[0, shape[1] // 2] = x[-1, 0] = x[0, -1] = torch.nan
        x = torch.where(x == 1, torch.inf, x)
    return x


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize(
    ("name", "dtype", "dynamic"),
    pairwise(
        FUNCTIONS,
        DTYPES,
        [pytest.param(True, id="dynamic"), pytest.param(False, id="static")],
        count=20,
    ),
)
def test_the_first_of_equal_elements(name: str, dtype: torch.dtype, dynamic: bool) -> None:
    function = FUNCTIONS[name]
    compiled = torch.compile(function, backend="pyfuser", dynamic=dynamic)
    for shape in SHAPES:
        x = _numbers(shape, dtype)
        made, expected = compiled(x), function(x)
        pairs = zip(_parts(made), _parts(expected), strict=True)
        for part, wanted in pairs:
            torch.testing.assert_close(part, wanted, rtol=0, atol=0, equal_nan=True)


def _parts(made: Any) -> list[Tensor]:
    return [made] if isinstance(made, Tensor) else list(made)


@pytest.mark.parametrize("name", ["max", "min, kept", "of a product"])
def test_gradients(name: str) -> None:
    x = torch.randn(9, 31, dtype=torch.float64, requires_grad=True)
    function = FUNCTIONS[name]
    compiled = torch.compile(lambda x: function(x)[0] * 2, backend="pyfuser")
    (gradient,) = torch.autograd.grad(compiled(x).sum(), x)
    (wanted,) = torch.autograd.grad((function(x)[0] * 2).sum(), x)
    torch.testing.assert_close(gradient, wanted)


def test_positions_of_rounded_values_are_inside() -> None:
    x, y = (torch.randn(64, 1000).bfloat16() for _ in range(2))
    compiled = torch.compile(lambda x, y: (x * 1.1 + y * 0.3).max(1), backend="pyfuser")
    values, places = compiled(x, y)
    assert (places < 1000).all()
    torch.testing.assert_close((x * 1.1 + y * 0.3).gather(1, places[:, None])[:, 0], values)
