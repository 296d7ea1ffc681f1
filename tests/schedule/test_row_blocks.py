"""Blocks of rows: the results of as many rows as a vector has lanes are used together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pyfuser.devices.cpu import heuristics
from pyfuser.devices.cpu.processor import Processor
from pyfuser.devices.cpu.row_blocks import rows_of_reduction, rows_of_task
from pyfuser.ir.scalars import Integer
from pyfuser.target.parameters import ReductionFacts
from tests.support.compiled import BACKEND
from tests.support.compiled import strict as strict
from tests.support.long_cases import pairwise
from tests.support.targets import PRETENDED

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("poison")]

ROWS = [1, 15, 16, 33, 70]
COLUMNS = [1, 17, 64, 100]
DTYPES = [torch.float32, torch.bfloat16, torch.float64]


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of rows in all kernels that reduce one range of each."""

    def rows(
        processor: Processor, facts: ReductionFacts, sizes: Mapping[str, int], *_: object
    ) -> int:
        return processor.lanes(facts.bytes) if len(facts.chain) == 1 else 0

    monkeypatch.setattr(heuristics, "rows_of_task", rows)
    monkeypatch.setattr(heuristics, "rows_of_reduction", rows)


def softmax(x: Tensor) -> Tensor:
    return x.softmax(-1)


def log_softmax(x: Tensor) -> Tensor:
    return x.log_softmax(-1)


def log_sum_exp(x: Tensor) -> Tensor:
    return torch.logsumexp(x, -1)


def entropy(x: Tensor) -> Tensor:
    return -(x.softmax(-1) * x.log_softmax(-1)).sum(-1)


def norm(x: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], x[0, 0] * 0.5, x[0, 0])


def norm_and_sum(x: Tensor) -> list[Tensor]:
    y = x + x.roll(1, 0)
    return [functional.rms_norm(y, y.shape[-1:]), y, y.sum(-1)]


def moments(x: Tensor) -> list[Tensor]:
    variance, mean = torch.var_mean(x, -1, correction=0)
    return [variance.sqrt(), mean, (x - mean[..., None]) / (variance[..., None] + 1)]


def of_labels(x: Tensor) -> Tensor:
    labels = torch.arange(x.shape[0] * x.shape[1]).view(x.shape[:2]) % x.shape[-1]
    return x.log_softmax(-1).gather(-1, labels[..., None])[..., 0]


def weighted(x: Tensor) -> list[Tensor]:
    """A number of each row, computed before and read in both passes."""
    weight = torch.sigmoid(x[..., 0])
    total = (x * weight[..., None]).sum(-1)
    return [torch.tanh(total), x / (total[..., None].abs() + 1) + weight[..., None], weight]


def of_batches(x: Tensor) -> Tensor:
    """A number of several rows."""
    scale = torch.exp(x[:, :1, :1])
    return (x * scale).softmax(-1) * scale + torch.log(x.square().sum(-1, keepdim=True) + scale)


def masked(x: Tensor) -> list[Tensor]:
    """A mask of rows that lacks batches, for what is and what isn't beside the rows' results."""
    mask = torch.arange(x.shape[1]) % 3 == 1
    mean = x.mean(-1)
    kept = torch.where(~mask, torch.sigmoid(mean), x[..., 0])
    return [kept, (x - mean[..., None]) * kept[..., None].masked_fill(mask[:, None], 2)]


def largest(x: Tensor) -> list[Tensor]:
    found, places = x.max(-1)
    return [found.sigmoid(), places, x == found[..., None]]


FUNCTIONS = [
    softmax, log_softmax, log_sum_exp, entropy, norm, norm_and_sum, moments, of_labels, weighted,
    of_batches, masked, largest,
]  # fmt: skip


def assert_right(function: Callable[[Tensor], Any], compiled: Any, x: Tensor) -> None:
    results = []
    for made in (compiled(x), function(x), function(x.double())):
        results.append(made if isinstance(made, list) else [made])
    for found, eager, exact in zip(*results, strict=True):
        assert found.dtype == eager.dtype and found.shape == eager.shape
        if not eager.is_floating_point():
            torch.testing.assert_close(found, eager)
            continue
        error, allowed = ((each.double() - exact).abs().amax() for each in (found, eager))
        assert error <= 4 * allowed + 1e-6 * exact.abs().amax()


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize(("function", "dtype"), pairwise(FUNCTIONS, DTYPES, count=12))
def test_results(function: Callable[[Tensor], Any], dtype: torch.dtype) -> None:
    compiled = torch.compile(function, backend=BACKEND, dynamic=True)
    for rows in ROWS:
        for columns in COLUMNS:
            torch.manual_seed(0)
            assert_right(function, compiled, torch.randn(2, rows, columns).to(dtype))


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("function", [log_softmax, norm, weighted])
def test_gradients(function: Callable[[Tensor], Any]) -> None:
    compiled = torch.compile(function, backend=BACKEND, dynamic=False)

    def gradient(f: Callable[[Tensor], Any], x: Tensor) -> Tensor:
        made = f(x.requires_grad_())
        total = sum(each.square().sum() for each in (made if isinstance(made, list) else [made]))
        return torch.autograd.grad(total, x)[0]

    torch.manual_seed(0)
    x = torch.randn(3, 17, 40, dtype=torch.float64)
    torch.testing.assert_close(gradient(compiled, x), gradient(function, x))


@pytest.mark.usefixtures("blocks")
def test_rows_that_are_apart() -> None:
    base = torch.randn(40, 3, 90)
    compiled = torch.compile(log_softmax, backend=BACKEND, dynamic=False)
    for x in (base[::2, 1], base[:, :, ::3], base.transpose(0, 1), base[:, :1].expand(40, 5, 90)):
        assert_right(log_softmax, compiled, x)


@pytest.mark.usefixtures("blocks")
def test_special_values() -> None:
    x = torch.randn(20, 24)
    x[3], x[4, 2], x[5, 3], x[6] = -torch.inf, torch.inf, torch.nan, torch.inf
    for function in (log_softmax, log_sum_exp, softmax):
        compiled = torch.compile(function, backend=BACKEND, dynamic=False)
        torch.testing.assert_close(compiled(x), function(x), equal_nan=True)


# -- which kernels have them


def facts(rows: int, columns: int, size: int = 4, following: int = 1) -> ReductionFacts:
    """The facts about two reductions of rows, and functions of their results."""
    kept, reduced = Integer.of(rows), Integer.of(columns)
    return ReductionFacts(
        inner=True, kept=kept, reduced=reduced, chain=(reduced,), bytes=4, count=2, work=8,
        functions=2, touched=kept * columns * 2 * size, range=reduced, vector=size, rows=(1, 0),
        weights=0, across=kept, following=following,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "is_near", "has_blocks"),
    [
        (facts(4096, 64), True, True),  # log-softmax
        (facts(4096, 64), False, True),
        (facts(4096, 200), True, True),
        (facts(4096, 200), False, False),
        (facts(4096, 1000), True, False),
        (facts(12, 64), True, False),  # no two blocks
        (facts(4096, 64, following=0), True, True),  # softmax
        (facts(4096, 60, following=0), True, False),
        (facts(4096, 500, size=2, following=0), True, True),
        (facts(256, 1000, size=2, following=0), True, True),
        (facts(8192, 1000, size=2, following=0), True, False),
        (facts(4096, 1000, size=2, following=0), False, False),
    ],
)
def test_short_rows_whose_results_take_long(
    given: ReductionFacts, is_near: bool, has_blocks: bool
) -> None:
    rows = rows_of_task(PRETENDED.processor, given, {}, is_near)
    assert rows == (PRETENDED.processor.lanes(4) if has_blocks else 0)


def test_sums_alone_have_none() -> None:
    assert rows_of_reduction(PRETENDED.processor, facts(4096, 64, following=0), {}) == 0
    assert rows_of_reduction(PRETENDED.processor, facts(4096, 64), {}) > 0
