"""Custom ops that change their operands: on copies, or in place if nobody reads the old value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.compiled import BACKEND
from tests.support.compiled import sources as sources
from tests.support.compiled import strict as strict
from tests.torch_compile.calls import check

pytestmark = pytest.mark.usefixtures("poison", "library")

_NAME = "pyfuser_mutating"
ops: Any = getattr(torch.ops, _NAME)


@pytest.fixture
def library() -> Iterator[None]:
    """`add_` and `add_to_all_` change operands; `decay_` has results besides."""
    with torch.library._scoped_library(_NAME, "DEF") as made:
        made.define("add_(Tensor(a!) x, Tensor y, Tensor? z=None, float scale=1.0) -> ()")
        made.define("add_to_all_(Tensor(a!)[] xs, Tensor(b!)? total, Tensor y) -> ()")
        made.define("decay_(Tensor(a!) state, Tensor y) -> Tensor")
        made.define("both_(Tensor(a!) x, Tensor(b!) y) -> (Tensor, Tensor)")

        def add_(x: Tensor, y: Tensor, z: Tensor | None = None, scale: float = 1.0) -> None:
            x.add_(y, alpha=scale)
            if z is not None:
                x.mul_(z)

        def add_to_all_(xs: list[Tensor], total: Tensor | None, y: Tensor) -> None:
            for x in xs:
                x.add_(y)
            if total is not None:
                total.add_(y.sum())

        def decay_(state: Tensor, y: Tensor) -> Tensor:
            return state.mul_(0.9).add_(y).sum(0)

        def both_(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return x.add_(1).cos(), y.mul_(2).sin()

        def new_rows(state: Tensor, y: Tensor) -> Tensor:
            return state.new_empty(state.shape[1:])

        def new_both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return torch.empty_like(x), torch.empty_like(y)

        kernels: dict[str, Callable[..., Any]] = {
            "add_": add_,
            "add_to_all_": add_to_all_,
            "decay_": decay_,
            "both_": both_,
        }
        for name, kernel in kernels.items():
            made.impl(name, kernel, "CPU")
        for name, fake in {"decay_": new_rows, "both_": new_both}.items():
            torch.library.register_fake(f"{_NAME}::{name}", fake, lib=made)
        yield


def new(x: Tensor, y: Tensor) -> Tensor:
    z = x.sin()
    ops.add_(z, y)
    return z * 2


def an_input(x: Tensor, y: Tensor) -> Tensor:
    ops.add_(x, y.cos())
    return x * 2


def an_input_read_before(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    old = x.exp()
    ops.add_(x, y, scale=0.5)
    return old, x + old


def an_input_returned(x: Tensor, y: Tensor) -> Tensor:
    ops.add_(x, y)
    return x


def an_input_twice(x: Tensor, y: Tensor) -> Tensor:
    ops.add_(x, y)
    ops.add_(x, x.sin(), y)
    return x.sum(0)


def rows(x: Tensor, y: Tensor) -> Tensor:
    z = x.sin()
    ops.add_(z[1:], y[1:])
    return z * 2


def a_column_of_an_input(x: Tensor, y: Tensor) -> Tensor:
    ops.add_(x[:, 2], y[:, 0])
    return x.sin()


def transposed(x: Tensor, y: Tensor) -> Tensor:
    z = x.t().exp()
    ops.add_(z.t(), y)
    return z.sum(0)


def reversed_rows(x: Tensor, y: Tensor) -> Tensor:
    z = x.sin()
    ops.add_(z.view(-1)[3:9], y.reshape(-1)[:6])
    return z.cos()


def kept(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = x.sin()
    w = z + 1
    ops.add_(z, y)
    return z * 2, w


def old_value_kept(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = x.sin()
    w = z.clone()
    ops.add_(w, y)
    return z * w, z


def read_by_another_operand(x: Tensor, y: Tensor) -> Tensor:
    z = x.sin()
    ops.add_(z, z.t().contiguous().t() + 0, z * 2)
    return z.exp()


def unread(x: Tensor, y: Tensor) -> Tensor:
    z = x.sin()
    ops.add_(z.clone(), y)
    return z


def lists(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    a, b, total = x.sin(), x.cos(), x.sum()
    ops.add_to_all_([a, x, b[:]], total, y)
    ops.add_to_all_([b], None, a)
    return a, b * 2, total


def with_a_result(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = x.exp()
    total = ops.decay_(z, y)
    return z * total, ops.decay_(x, z) + 1


def with_two_results(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    z = y.sin()
    c, s = ops.both_(x, z)
    return c + 1, s * z


PROGRAMS: Sequence[Callable[..., Any]] = (
    new,
    an_input,
    an_input_read_before,
    an_input_returned,
    an_input_twice,
    rows,
    a_column_of_an_input,
    transposed,
    reversed_rows,
    kept,
    old_value_kept,
    read_by_another_operand,
    unread,
    lists,
    with_a_result,
    with_two_results,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_programs(program: Callable[..., Any], sources: list[str]) -> None:
    """Results and changed inputs."""
    check(program, lambda: [torch.randn(5, 5), torch.randn(5, 5)], dynamic=False)
    assert all("call_auto_functionalized" not in source for source in sources)


@pytest.mark.parametrize("program", (rows, a_column_of_an_input, lists), ids=lambda p: p.__name__)
def test_any_size(program: Callable[..., Any]) -> None:
    compiled = torch.compile(program, backend=BACKEND, fullgraph=True, dynamic=True)
    for size in (5, 8, 3):
        x, y = torch.randn(size, size), torch.randn(size, size)
        changed = x.clone()
        torch.testing.assert_close(compiled(changed, y), program(x, y))
        torch.testing.assert_close(changed, x)


@pytest.mark.parametrize(
    "program, copies",
    ((new, 0), (an_input, 0), (rows, 0), (kept, 0), (old_value_kept, 1)),
    ids=lambda value: getattr(value, "__name__", value),
)
def test_copies(program: Callable[..., Any], copies: int, sources: list[str]) -> None:
    """A tensor is copied only if its old value is read afterwards."""
    x, y = torch.randn(5, 5), torch.randn(5, 5)
    torch.compile(program, backend=BACKEND, fullgraph=True)(x, y)
    (source,) = sources
    assert source.count("clone(") + source.count(".copy_(") == copies
