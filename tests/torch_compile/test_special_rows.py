"""Reductions, norms, softmax and losses on rows of special values, as kernels, against eager.

Each row is a pattern repeated to a length below and above a vector's.  The few rows on which a
translation isn't held to eager's value, because eager's own depends on the order of its sums or it
sums in a wider type, are those of `left`, with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._ops import OpOverload

from pyfuser.interface import CompiledFusion
from pyfuser.torch_compile.aten import build_region, refusal
from tests.support.special_values import FLOATS, HALVES, grid, judge, report, widened
from tests.torch_compile.aten_graphs import OneNode, called_with, flat, gradients, traced

pytestmark = pytest.mark.usefixtures("poison")

aten = torch.ops.aten
inf, nan = math.inf, math.nan
SIZES = (5, 37)


def patterns(dtype: torch.dtype) -> list[list[float]]:
    """The values that rows repeat."""
    info = torch.finfo(dtype)
    most, tiny, root = info.max, info.smallest_normal, math.sqrt(info.max)
    return [
        [nan], [inf], [-inf], [inf, -inf], [1.0, 2.0, nan, 3.0], [inf, 1.0, 2.0], [-inf, 1.0, 2.0],
        [inf, nan], [-inf, nan, 1.0], [-inf, -inf, 0.0], [0.0], [-0.0], [-0.0, 0.0], [0.0, -0.0],
        [1.0, 0.0, -0.0], [-1.0, 0.0, -0.0], [-1.0, -0.0, 0.0], [most], [-most], [most, -most],
        [most / 4, -most / 4, most / 8], [2 * root, -2 * root], [root / 4], [root, 1.0],
        [tiny * info.eps], [tiny * info.eps, -tiny * info.eps], [tiny / 2], [4 * tiny, -4 * tiny],
        [1.0], [1.0, -1.0], [1 + info.eps, 1.0], [1e4, -1e4], [1e4, 1e4 + 8], [-100.0, -90.0],
        [88.0, 89.0], [0.5, -3.0, 7.0],
    ]  # fmt: skip


def rows(dtype: torch.dtype, size: int) -> torch.Tensor:
    """[patterns, size]"""
    repeated = [(p * size)[:size] for p in patterns(dtype)]
    return torch.tensor(repeated, dtype=torch.float64).to(dtype)


# Which rows don't count, by the rows in float64 and the greatest number of the dtype they are
# summed in: [rows, size] -> [rows].
Left = Callable[[torch.Tensor, float], torch.Tensor]


def _finite(x: torch.Tensor) -> torch.Tensor:
    return x.nan_to_num(0.0, 0.0, 0.0).abs()


def no_row(x: torch.Tensor, most: float) -> torch.Tensor:
    """Every row counts."""
    return torch.zeros(len(x), dtype=torch.bool)


def overflowing_sums(x: torch.Tensor, most: float) -> torch.Tensor:
    """A partial sum may overflow: which one does depends on the order, in eager too."""
    return (_finite(x) / most).sum(1) > 1


def overflowing_squares(x: torch.Tensor, most: float) -> torch.Tensor:
    """Squares or their sum overflow the dtype in which moments are summed; eager's is wider."""
    return (_finite(x) / math.sqrt(most)).square().sum(1) >= 0.5


def infinite_means(x: torch.Tensor, most: float) -> torch.Tensor:
    """Eager's moving mean is NaN once an infinity has passed, and an infinity if it is last.

    The same holds for the sign of underflows next to the least number of Double.
    """
    vanishing = _finite(x).amax(1) < 1e-320
    return overflowing_squares(x, most) | x.isinf().any(1) | vanishing


def both_zeros(x: torch.Tensor, most: float) -> torch.Tensor:
    """The extremum is 0 and -0: eager's is the first, or that of the last lane if vectorised."""
    zero = x == 0
    return (zero & x.signbit()).any(1) & (zero & ~x.signbit()).any(1)


@dataclass(frozen=True)
class Case:
    """One overload, with the arguments that follow the rows.

    left    rows that don't count, for each output
    error   an absolute error, in units of epsilon times the greatest magnitude of a row: that of a
            mean, to the `power` that it has in the result
    """

    overload: OpOverload
    rest: tuple[Any, ...]
    keywords: dict[str, Any] = field(default_factory=dict)
    left: tuple[Left, ...] = (no_row,)
    error: float = 0.0
    power: int = 1
    label: str = ""

    def __str__(self) -> str:
        return f"{self.overload}{self.label}"


def _cases() -> list[Case]:
    moments = (overflowing_squares, infinite_means)
    found = [
        Case(aten.sum.dim_IntList, ([1],), left=(overflowing_sums,)),
        Case(aten.mean.dim, ([1],), left=(overflowing_sums,)),
        Case(aten.prod.dim_int, (1,)),
        Case(aten.amax.default, ([1],), left=(both_zeros,)),
        Case(aten.amin.default, ([1],), left=(both_zeros,)),
        Case(aten.any.dim, (1,)),
        Case(aten.all.dim, (1,)),
        Case(aten.count_nonzero.dim_IntList, ([1],)),
        Case(aten.logsumexp.default, ([1],)),
        Case(aten._softmax.default, (1, False)),
        Case(aten._safe_softmax.default, (1,)),
        Case(aten._log_softmax.default, (1, False)),
    ]
    for correction in (0, 1):
        keywords = {"correction": correction}
        for overload in (aten.var.correction, aten.var_mean.correction):
            found.append(Case(overload, ([1],), keywords, moments, 1.0, 2, f" {correction}"))
        for overload in (aten.std.correction, aten.std_mean.correction):
            left = (wide_squares, infinite_means)
            found.append(Case(overload, ([1],), keywords, left, 1.0, 1, f" {correction}"))
    for order in (2, 0, 1, inf, -inf, 3, 0.5, -1, -2):
        found.append(Case(aten.linalg_vector_norm.default, (order, [1]), label=f" {order}"))
    return found


def wide_squares(x: torch.Tensor, most: float) -> torch.Tensor:
    """A standard deviation is computed in Double, as in eager."""
    return overflowing_squares(x, torch.finfo(torch.float64).max)


def summed_in(dtype: torch.dtype) -> float:
    """The greatest number of the dtype that sums are in."""
    return torch.finfo(torch.float32 if dtype in HALVES else dtype).max


def compute(overload: OpOverload, given: tuple[Any, ...], keywords: Any) -> list[torch.Tensor]:
    """The results of the overload's kernel."""
    graph = OneNode(overload, given, keywords)
    assert refusal(graph.node) is None
    region = graph.region()
    return CompiledFusion(region.fusion).execute(graph.values(region))


def complaints(
    name: str,
    dtype: torch.dtype,
    got: list[torch.Tensor],
    run: Callable[..., Any],
    case: Case,
    x: Any,
) -> list[str]:
    """What is wrong with the results that `run` gives for the rows x."""
    eager = [flat(run(x)), flat(run(x.t().contiguous().t()))]
    if dtype in HALVES:
        eager.append(flat(run(x.float())))
    exact, wide = flat(run(x.double())), x.double()
    slack = (case.error * torch.finfo(dtype).eps * _finite(wide).amax(1)) ** case.power
    found = []
    for position, mine in enumerate(got):
        theirs = [one[position] for one in eager]
        left = case.left[min(position, len(case.left) - 1)](wide, summed_in(dtype))
        shape = (-1, *[1] * (mine.dim() - 1))
        wrong = judge(mine, theirs, exact[position], 256, slack.reshape(shape)) & ~left.reshape(
            shape
        )
        found.append(report(f"{name} [{position}]", wrong, mine, theirs, [x]))
    return [each for each in found if each]


@pytest.mark.parametrize("case", _cases(), ids=str)
def test_reduction(case: Case) -> None:
    found = []
    for dtype in FLOATS:
        for size in SIZES:
            x = rows(dtype, size)

            def run(x: torch.Tensor) -> Any:
                return case.overload(x, *case.rest, **case.keywords)

            got = compute(case.overload, (x, *case.rest), case.keywords)
            found += complaints(f"{case} {dtype} {size}", dtype, got, run, case, x)
    assert not found, "\n".join(found)


def _layer_norm(x: torch.Tensor) -> tuple[Any, ...]:
    return x, [x.shape[1]], x.new_ones(x.shape[1]), x.new_zeros(x.shape[1]), 1e-5


def _rms_norm(x: torch.Tensor) -> tuple[Any, ...]:
    return x, [x.shape[1]], x.new_ones(x.shape[1]), 1e-5


def _batch_norm(x: torch.Tensor) -> tuple[Any, ...]:
    return x.t(), x.new_ones(len(x)), x.new_zeros(len(x)), None, None, True, 0.1, 1e-5


# The arguments for rows, and whether a row is a channel, which is a column.  What centres has a
# bias: without one the sign of a zero isn't eager's, which subtracts mean * rstd from x * rstd.
NORMS: dict[str, tuple[OpOverload, Callable[[torch.Tensor], tuple[Any, ...]], bool]] = {
    "layer norm": (aten.native_layer_norm.default, _layer_norm, False),
    "RMS norm": (aten._fused_rms_norm.default, _rms_norm, False),
    "batch norm": (aten.native_batch_norm.default, _batch_norm, True),
}


@pytest.mark.parametrize("name", NORMS)
def test_norm(name: str) -> None:
    overload, arguments, by_column = NORMS[name]
    # A mean has a rounding error, which 1 / sqrt(eps) amplifies.
    case = Case(overload, (), left=(overflowing_squares, infinite_means), error=320.0)
    found = []

    def by_rows(results: list[torch.Tensor]) -> list[torch.Tensor]:
        first, *others = results
        return [first.t() if by_column else first, *others][:2]

    for dtype in FLOATS:
        for size in SIZES:
            x = rows(dtype, size)
            got = by_rows(compute(overload, arguments(x), {}))

            def run(x: torch.Tensor) -> Any:
                return by_rows(flat(overload(*arguments(x))))

            found += complaints(f"{name} {dtype} {size}", dtype, got, run, case, x)
    assert not found, "\n".join(found)


LOSSES: dict[str, Callable[..., torch.Tensor]] = {
    "mse": lambda x, y: F.mse_loss(x, y, reduction="none"),
    "l1": lambda x, y: F.l1_loss(x, y, reduction="none"),
    "smooth l1": lambda x, y: F.smooth_l1_loss(x, y, reduction="none", beta=0.5),
    "smooth l1, beta 0": lambda x, y: F.smooth_l1_loss(x, y, reduction="none", beta=0.0),
    "huber": lambda x, y: F.huber_loss(x, y, reduction="none", delta=1.5),
    "logits": lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="none"),
    "soft margin": lambda x, y: F.soft_margin_loss(x, y, reduction="none"),
    "logsigmoid": lambda x, y: F.logsigmoid(x) * y,
}


# Eager divides exp(-x * y) by itself and 1, which is NaN once it overflows; a sigmoid doesn't.
WITHOUT_GRADIENT = ("soft margin",)


@pytest.mark.parametrize("gradient", (False, True), ids=("forward", "gradient"))
@pytest.mark.parametrize("name", LOSSES)
def test_loss(name: str, gradient: bool) -> None:
    if gradient and name in WITHOUT_GRADIENT:
        pytest.skip("eager's gradient is NaN where exp overflows")
    loss, found = LOSSES[name], []

    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        return gradients(lambda x: loss(x, y))(x) if gradient else loss(x, y)

    for dtype in FLOATS:
        tensors = grid(dtype, 2)
        nodes, inputs, outputs = traced(function, tensors)
        region = build_region(nodes, inputs, outputs)
        got = CompiledFusion(region.fusion).execute(called_with(region, tensors))
        eager = [flat(function(*tensors))]
        if dtype in HALVES:
            eager.append(flat(function(*(t.float() for t in tensors))))
        exact = flat(function(*(widened(t, dtype, torch.float64) for t in tensors)))
        for position, mine in enumerate(got):
            theirs = [one[position] for one in eager]
            wrong = judge(mine, theirs, exact[position], 16)
            found.append(report(f"{name} {dtype} [{position}]", wrong, mine, theirs, tensors))
    assert not any(found), "\n".join(filter(None, found))
