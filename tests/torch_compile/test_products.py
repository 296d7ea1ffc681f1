"""Products with a single row or column are kernels, with what surrounds them; others the library's.

The oracle is eager in float64; the error may be twice eager's own in the tested dtype.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.compiled import BACKEND
from tests.support.compiled import sources as sources
from tests.support.compiled import strict as strict
from tests.support.long_cases import pairwise
from tests.torch_compile.errors_of_results import compared

pytestmark = pytest.mark.usefixtures("poison")

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def check(function: Callable[..., Tensor], *inputs: Tensor) -> None:
    """Compares values, shape, strides and dtype; results must be as precise as eager's."""
    found = compared(function, *inputs)
    assert found.got.stride() == found.eager.stride()
    found.require_as_precise(32 * found.rounding * max(found.scale, 1.0))


@pytest.mark.parametrize(
    ("is_transposed", "extents", "dtype"),
    pairwise(
        [False, True],
        [(1, 64, 5), (1, 7, 128), (3, 64, 1), (5, 1, 7), (1, 0, 3)],
        DTYPES,
        count=20,
    ),
)
def test_values(extents: tuple[int, int, int], is_transposed: bool, dtype: torch.dtype) -> None:
    rows, inner, columns = extents
    a, bias = torch.randn(rows, inner, dtype=dtype), torch.randn(columns, dtype=dtype)
    b = torch.randn(inner, columns, dtype=dtype)
    b = b.t().contiguous().t() if is_transposed else b
    check(lambda a, b: (a @ b).relu(), a, b)
    check(lambda a, b, bias: torch.addmm(bias, a, b, beta=0.5, alpha=2), a, b, bias)
    check(lambda a, b: a.expand(4, -1, -1).bmm(b.expand(4, -1, -1)) + 1, a, b)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_of_vectors(dtype: torch.dtype) -> None:
    a, v = torch.randn(9, 33, dtype=dtype), torch.randn(33, dtype=dtype)
    check(lambda a, v: a.mv(v) * 2, a, v)
    check(lambda a, v: a[0].dot(v) * 2, a, v)


def test_a_bias_counts_for_nothing_if_its_factor_is_zero() -> None:
    a, b, bias = torch.randn(1, 8), torch.randn(8, 4), torch.full((4,), torch.nan)
    check(lambda a, b, bias: torch.addmm(bias, a, b, beta=0), a, b, bias)


def test_changing_sizes() -> None:
    def function(a: Tensor, b: Tensor) -> Tensor:
        return F.gelu(a @ b)

    compiled = torch.compile(function, backend="pyfuser", dynamic=True)
    for inner, columns in ((8, 5), (300, 17), (2, 1000)):
        a, b = torch.randn(1, inner), torch.randn(inner, columns)
        torch.testing.assert_close(compiled(a, b), function(a, b))


def test_a_layer_of_one_row_is_kernels_only(sources: list[str]) -> None:
    layer = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)).bfloat16()
    x = torch.randn(1, 64).bfloat16()
    with torch.no_grad():
        got = torch.compile(layer, backend="pyfuser")(x)
        exact = layer.double()(x.double())
    assert (got.double() - exact).abs().max() < 0.02
    assert "mm(" not in sources[0] and sources[0].count("launch0(") == 1


def test_a_layer_of_two_rows_is_the_library_s(sources: list[str]) -> None:
    layer = nn.Linear(64, 128)
    with torch.no_grad():
        torch.compile(layer, backend="pyfuser")(torch.randn(2, 64))
    assert "mm(" in sources[0]


def test_gradients_of_one_row() -> None:
    layer = nn.Sequential(nn.Linear(33, 17), nn.Tanh(), nn.Linear(17, 1))
    x = torch.randn(1, 33, requires_grad=True)
    found = []
    for call in (layer, torch.compile(layer, backend="pyfuser")):
        found.append(torch.autograd.grad(call(x).sum(), [x, *layer.parameters()]))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("bias", "rows", "columns", "beta"),
    [((3,), 5, 1, 1), ((3, 3), 1, 3, 1), ((3, 3), 1, 3, 0), ((2, 1, 3), 1, 3, 1)],
)
def test_a_bias_that_does_not_fit_is_eagers_error(
    bias: tuple[int, ...], rows: int, columns: int, beta: int, dynamic: bool
) -> None:
    def function(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return torch.addmm(bias, a, b, beta=beta).exp()

    compiled = torch.compile(function, backend=BACKEND, dynamic=dynamic)
    given = torch.randn(bias), torch.randn(rows, 4), torch.randn(4, columns)
    for call in (function, compiled):
        with pytest.raises(RuntimeError, match="expand"):
            call(*given)
    fitting = torch.randn(1), *given[1:]
    torch.testing.assert_close(compiled(*fitting), function(*fitting))
