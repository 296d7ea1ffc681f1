"""Branches, loops and regions compiled once: their bodies run as kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn import functional

from pyfuser import explain
from tests.programs.check import strides
from tests.support.compiled import BACKEND
from tests.support.compiled import strict as strict
from tests.torch_compile.calls import flat

pytestmark = pytest.mark.usefixtures("poison")

Function = Callable[[Tensor], Any]


def branch(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda a: a.sin() * 2, lambda a: a.cos() + 1, (x,))


def branch_with_more(x: Tensor) -> Tensor:
    """The branches read a value from outside and the number of rows."""
    y, rows = x.exp(), x.shape[0]
    true, false = lambda a: (a * y).softmax(1) * rows, lambda a: a.cos() + y
    return torch.cond(x.sum() > 0, true, false, (x,)) * y


def branch_in_a_branch(x: Tensor) -> Tensor:
    def inner(a: Tensor) -> Tensor:
        return torch.cond(a.max() > 1, lambda b: b.sin(), lambda b: b.tanh() + 1, (a,))

    return torch.cond(x.sum() > 0, inner, lambda a: a.cos() + 1, (x,))


def branch_of_two_results(x: Tensor) -> Any:
    return torch.cond(
        x.sum() > 0, lambda a: (a.sin(), a.sum(0)), lambda a: (a.cos(), a.mean(0)), (x,)
    )


def branch_of_a_slice(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda a: a.sin() * 2, lambda a: a.cos(), (x[1:],))


def counted(x: Tensor) -> Any:
    return while_loop(
        lambda i, a: i < 5, lambda i, a: (i + 1, (a * 1.1).sin() + a), (torch.tensor(0), x)
    )


def never(x: Tensor) -> Any:
    return while_loop(lambda i, a: i < 0, lambda i, a: (i + 1, a * 2), (torch.tensor(0), x))


def until_large(x: Tensor) -> Any:
    return while_loop(lambda a: a.abs().sum() < 1e2, lambda a: (a * 1.5 + 0.1,), (x,))


def swapped(x: Tensor) -> Any:
    def body(i: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return i + 1, b.clone(), (a + b).sin()

    return while_loop(lambda i, a, b: i < 3, body, (torch.tensor(0), x, x.cos()))


def decayed(c: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    h = c * 0.9 + a
    return h, h.tanh() + 1


def scanned(x: Tensor) -> Any:
    return scan(decayed, torch.zeros(x.shape[1]), x)


def scanned_backwards(x: Tensor) -> Any:
    return scan(decayed, torch.zeros(x.shape[1]), x, reverse=True)


def scanned_along_columns(x: Tensor) -> Any:
    """The rows that the body reads have strides that it wasn't traced with."""
    return scan(decayed, torch.zeros(x.shape[0]), x, dim=1)


def scanned_matrices(x: Tensor) -> Any:
    blocks = x.reshape(-1, 2, 3).permute(2, 0, 1)
    return scan(lambda c, a: (c * 0.9 + a.sum(), (a * c).t().clone()), torch.zeros(()), blocks)


def scan_with_a_branch(x: Tensor) -> Any:
    def body(c: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.cond(c.sum() > 0, lambda u, v: u * 0.5 + v, lambda u, v: u - v, (c, a))
        return h, c.exp().clamp(max=2)

    return scan(body, torch.zeros(x.shape[1]), x)


@torch.compiler.nested_compile_region
def block(x: Tensor, w: Tensor) -> Tensor:
    return functional.gelu(x @ w) + x


def blocks(x: Tensor) -> Tensor:
    w = x.t() @ x * 0.01
    for _ in range(3):
        x = block(x, w)
    return x.sum(1)


LOOPS = (counted, never, until_large, swapped)
SCANS = (
    scanned,
    scanned_backwards,
    scanned_along_columns,
    scanned_matrices,
    scan_with_a_branch,
)
BRANCHES = (
    branch,
    branch_with_more,
    branch_in_a_branch,
    branch_of_two_results,
    branch_of_a_slice,
)


def rows(number: int, sign: float) -> Tensor:
    return (torch.randn(number, 6) + sign * 0.3).requires_grad_()


def assert_equal_to(got: Tensor, expected: Tensor) -> None:
    assert (strides(got), got.requires_grad) == (strides(expected), expected.requires_grad)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def gradient(results: list[Tensor], x: Tensor) -> Tensor:
    total = sum((each.sum() for each in results if each.requires_grad), torch.zeros(()))
    return torch.autograd.grad(total, x)[0]


@pytest.mark.parametrize("function", (*BRANCHES, *LOOPS, *SCANS, blocks), ids=lambda f: f.__name__)
def test_any_shape(function: Function) -> None:
    """Each branch is taken, by tensors of two shapes."""
    compiled = torch.compile(function, backend=BACKEND, fullgraph=True, dynamic=True)
    for number, sign in ((7, 1), (7, -1), (4, -1)):
        x = rows(number, sign).detach()
        for eager, ours in zip(flat(function(x)), flat(compiled(x)), strict=True):
            assert_equal_to(ours, eager)


WITH_GRADIENTS = (branch_with_more, branch_of_two_results, scanned_along_columns, blocks)


@pytest.mark.parametrize("function", WITH_GRADIENTS, ids=lambda f: f.__name__)
def test_gradients(function: Function) -> None:
    compiled = torch.compile(function, backend=BACKEND, fullgraph=True)
    for number, sign in ((7, 1), (7, -1)):
        x = rows(number, sign)
        expected, got = flat(function(x)), flat(compiled(x))
        for eager, ours in zip(expected, got, strict=True):
            assert_equal_to(ours, eager)
        assert_equal_to(gradient(got, x), gradient(expected, x))


@pytest.mark.parametrize("function", (branch, counted, scanned, blocks), ids=lambda f: f.__name__)
def test_bodies_are_kernels(function: Function) -> None:
    with torch.no_grad():
        explained = explain(function, torch.randn(7, 6))
    assert len(explained.graphs) > 1
    for graph in explained.graphs[:-1]:
        assert graph.regions and not set(graph.library_calls) - {"aten::mm"}


def test_a_region_is_compiled_once_for_its_calls() -> None:
    with torch.no_grad():
        explained = explain(blocks, torch.randn(7, 6))
    assert explained.graphs[-1].library_calls["invoke_subgraph"] == 3
    assert len(explained.graphs) == 2
