"""Kernels that could refuse values but don't: they accept whatever torch accepts.

Masked lanes, padding, memory beside a tensor, and guarded and ignored indices raise nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pyfuser import FusionDefinition, fallback
from pyfuser.errors import InternalError
from pyfuser.ir.fusion import Fusion
from pyfuser.ir.kernel import Kernel
from tests.ops.checked_cases import (
    Inputs,
    compiled,
    fused,
    fused_graph,
    index,
    numbers,
    require_refusal,
)
from tests.support.long_cases import pairwise

pytestmark = pytest.mark.usefixtures("poison")


def same(call: Callable[..., Any], *inputs: torch.Tensor, dynamic: bool = False) -> None:
    """No alarm: eager's numbers."""
    torch.testing.assert_close(compiled(call, dynamic)(*inputs), call(*inputs))


def test_lanes_that_are_masked_raise_no_alarm(noticed: list[Fusion]) -> None:
    """Vector tails, at every length: values past the end aren't checked."""
    storage = torch.full((80,), 10**9)
    divisors = torch.zeros(80, dtype=torch.int64)
    x = torch.randn(5)
    take = fused(lambda o, x, i: o.neg(o.index_select(x, i, 0)), [x, index(5, 4)])
    divide = fused(lambda o, a, b: o.div(a, b), [numbers(3), numbers(3)])
    for count in range(40):
        storage[:count], divisors[:count] = index(5, count), numbers(count)
        assert torch.equal(take(x, storage[:count]), -x[storage[:count]])
        assert torch.equal(
            divide(storage[:count], divisors[:count]), storage[:count] // divisors[:count]
        )
        storage[:count], divisors[:count] = 10**9, 0
    assert not noticed


def inside(x: torch.Tensor, around: float, layout: str) -> torch.Tensor:
    """The same values in another layout, in memory that is full of `around`."""
    order = [1, 0] if layout == "transposed" else [0, 1]
    wide = [2 * x.shape[d] + 30 for d in order]
    storage = torch.full(wide, around, dtype=x.dtype)
    step = 2 if layout == "strided" else 1
    rows, columns = (x.shape[d] for d in order)
    part = storage[9 : 9 + rows, 11 : 11 + columns * step : step].permute(order)
    return part.copy_(x)


REDUCED: list[Callable[..., torch.Tensor]] = [
    lambda a, b, x, i: a // b,
    lambda a, b, x, i: (a % b).t().contiguous(),
    lambda a, b, x, i: (a // b).sum(0),
    lambda a, b, x, i: (a // b).sum(1),
    lambda a, b, x, i: (a // b).sum(),
    lambda a, b, x, i: (a % b).float().softmax(1),
    lambda a, b, x, i: (a % b).float().softmax(0),
    lambda a, b, x, i: x.gather(1, i) * 2,
    lambda a, b, x, i: x.gather(1, i).sum(0),
    lambda a, b, x, i: x.gather(1, i).sum(1),
    lambda a, b, x, i: x.gather(1, i).softmax(1),
    lambda a, b, x, i: x.gather(1, i).t().contiguous() + 1,
    lambda a, b, x, i: x[i[0]].sum(0) + x[i[0]].sum(1).sum(),
    lambda a, b, x, i: functional.layer_norm(functional.embedding(i[:, 0], x), x.shape[1:]),
]


@pytest.mark.parametrize(
    ("number", "layout"),
    pairwise(range(len(REDUCED)), ["dense", "transposed", "strided"], strength=1),
)
def test_memory_beside_a_tensor_raises_no_alarm(
    number: int, layout: str, noticed: list[Fusion]
) -> None:
    """Schedules of all kinds, with predicates: sizes that nothing divides, large and small."""
    torch.manual_seed(0)
    call = REDUCED[number]
    made = compiled(call, dynamic=True)
    for rows, columns in ((37, 43), (3, 1027), (1033, 5), (259, 301)):
        a, b = torch.randint(-50, 50, (rows, columns)), torch.randint(1, 50, (rows, columns))
        x, i = torch.randn(rows, columns), index(min(rows, columns), rows, columns)
        spread = [inside(t, around, layout) for t, around in ((a, 0), (b, 0), (x, 7.0), (i, 2**40))]
        want = call(a, b, x, i)
        torch.testing.assert_close(made(*spread), want, rtol=1e-4, atol=1e-4)
        if number < 7:
            spread[1][rows - 1, columns - 1] = 0
        else:
            spread[3][0, 0 if number == 13 else columns - 1] = max(rows, columns)
        with pytest.raises((RuntimeError, IndexError), match="expected"):
            made(*spread)
    assert noticed


@pytest.mark.parametrize("dynamic", [False, True])
def test_padding_raises_no_alarm(dynamic: bool, noticed: list[Fusion]) -> None:
    """Eager computes nothing around a window: a 0 there isn't a divisor."""
    a, b, i = numbers(5, 7), numbers(5, 7), index(4, 6)
    x = torch.randn(4, 9)
    same(lambda a, b: functional.pad(a // b, [2, 3]) + 1, a, b, dynamic=dynamic)
    same(lambda a, b: torch.cat([a // b, b % a, a], 1) * 2, a, b, dynamic=dynamic)
    same(lambda a, b: torch.cat([a, a // b, b], 0) * 2, a, b, dynamic=dynamic)
    same(lambda x, i: functional.pad(x[i].exp(), [1, 1, 1, 1]) * 2, x, i, dynamic=dynamic)
    same(lambda x, i: torch.cat([x.index_select(0, i), x], 0) * 2, x, i, dynamic=dynamic)
    same(lambda a, b: (a // b)[1:, ::2] + (a % b)[:-1, ::2], a, b, dynamic=dynamic)
    assert not noticed


def test_guarded_indices_raise_no_alarm(noticed: list[Fusion]) -> None:
    table, i = torch.randn(6, 5), torch.arange(-3, 20)

    def guarded(table: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        inside = (i >= 0) & (i < table.shape[0])
        rows = table[i.clamp(0, table.shape[0] - 1)]
        return torch.where(inside[:, None], rows, 0.0)

    same(guarded, table, i)
    same(lambda a, b: a // torch.where(b == 0, 1, b), numbers(9), torch.arange(9))
    same(lambda a, b: a / b, numbers(9), torch.arange(9))  # true division
    same(lambda a, b: torch.where(b > 3, a % b.clamp(min=1), a), numbers(9), torch.arange(9))
    assert not noticed


@pytest.mark.parametrize("dynamic", [False, True])
def test_ignored_targets_raise_no_alarm(dynamic: bool, noticed: list[Fusion]) -> None:
    x, y = torch.randn(9, 5), index(5, 9)
    y[::3] = -100
    same(functional.cross_entropy, x, y, dynamic=dynamic)
    y[::3] = 77
    same(
        lambda x, y: functional.cross_entropy(x, y, ignore_index=77, reduction="none"),
        x, y, dynamic=dynamic,
    )  # fmt: skip
    y[::3] = -1
    same(
        lambda x, y: functional.cross_entropy(x, y, weight=x[0].exp(), ignore_index=-1),
        x, y, dynamic=dynamic,
    )  # fmt: skip
    assert not noticed


def test_negative_indices_are_eagers(noticed: list[Fusion]) -> None:
    x, i = torch.randn(7, 5), torch.arange(-7, 7)
    same(lambda x, i: x[i] * 2, x, i)
    same(lambda x, i: x[:, i.clamp(-5, 4)] * 2, x, i)
    same(lambda x, i: x.take_along_dim(i[:, None], 0) * 2, x, i)
    assert not noticed


def test_probabilities_at_the_ends_raise_no_alarm(noticed: list[Fusion]) -> None:
    x, y = torch.tensor([0.0, 1.0, 0.5, -0.0]), torch.tensor([1.0, 0.0, 1.0, 0.0])
    same(functional.binary_cross_entropy, x, y)
    for half in (torch.bfloat16, torch.float16):
        same(functional.binary_cross_entropy, x.to(half).sigmoid(), y.to(half))
    assert not noticed


def test_kernels_without_checks_have_no_status_test() -> None:
    def lines(define: Callable[..., Any], inputs: Inputs) -> tuple[str, Kernel]:
        with FusionDefinition() as fd:
            fd.add_output(define(fd.ops, *(fd.from_pytorch(x) for x in inputs)))
        fd.execute(inputs)
        engine = fd.fec.engine.executor
        (plan,), (program,) = engine.plans, engine.programs.values()
        (kernel,) = program.parts[0].kernels.values()
        return plan.source, kernel.kernel

    for define, inputs, may_refuse in (
        (lambda o, a, b: o.add(a, b), [torch.ones(4), torch.ones(4)], False),
        (lambda o, a, b: o.div(a, b), [torch.ones(4), torch.ones(4)], False),
        (lambda o, a, b: o.add(o.div(a, 3), b), [numbers(4), numbers(4)], False),
        (lambda o, a, b: o.div(a, b), [numbers(4), numbers(4)], True),
    ):
        source, kernel = lines(define, inputs)
        assert kernel.may_refuse is may_refuse
        assert ("refused" in source) is may_refuse


def test_a_kernel_that_refuses_by_mistake_is_heard_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its results are right; strictly it is an error."""
    graph = fused_graph(lambda o, a, b: o.div(a, b), [numbers(4), numbers(4)])
    part = SimpleNamespace(fusion=graph)
    monkeypatch.delenv("PYFUSER_STRICT", raising=False)
    with pytest.warns(RuntimeWarning, match="expected values that torch refuses"):
        fallback.refused(part, [numbers(4), numbers(4)])
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    with pytest.raises(InternalError, match="others, by div"):
        fallback.refused(part, [numbers(4), numbers(4)])


@pytest.mark.filterwarnings("error")
def test_classes_are_checked_inside_of_other_transforms(noticed: list[Fusion]) -> None:
    y = index(5, 4, 3)

    def mapped(y: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda row: functional.one_hot(row, 5) * 2, in_dims=1)(y)

    def recomputed(y: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda y: functional.one_hot(y, 5) * 2, y, use_reentrant=False)

    for call in (mapped, recomputed):
        made = compiled(call)
        assert torch.equal(made(y), call(y))
        bad = y.index_fill(1, torch.tensor(1), 5)
        require_refusal(made, [bad], RuntimeError("Class values must be smaller"))
    assert len(noticed) == 2
