"""Scalar inputs that are only data (a learning rate, a seed): other values need no other plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pyfuser import DataType, FusionDefinition
from pyfuser.interface import register_fusion, registered_fusion, run_fusion
from pyfuser.kernel_builds import compiled_kernel_count
from pyfuser.torch_compile import compiled_graph
from pyfuser.torch_compile.compiled_graph import CompiledGraph
from tests.support.compiled import BACKEND, graph_count, strict  # noqa: F401

# 1, 0, -1 and infinities could be mistaken for values that decide a structure or a layout.
FLOATS = [0.0, -0.0, 1.0, -1.0, float("inf"), 1e-300, *(0.37 * n for n in range(44))]
INTEGERS = [0, 1, -1, 2**62, *range(2, 48)]


def scaled(dtype: DataType) -> FusionDefinition:
    """x * s + s"""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        s = fd.define_scalar(None, dtype=dtype)
        fd.add_output(fd.ops.add(fd.ops.mul(x, s), s))
    return fd


CASES = [(DataType.Double, FLOATS), (DataType.Int, INTEGERS), (DataType.Bool, [True, False] * 25)]


@pytest.mark.parametrize(("dtype", "values"), CASES, ids=lambda case: str(case)[:16])
def test_one_plan_of_a_definition(dtype: DataType, values: list[Any]) -> None:
    fd, x = scaled(dtype), torch.ones(3, 5)
    for value in values:
        torch.testing.assert_close(fd.execute([x, value])[0], x * value + value, equal_nan=True)
    key = register_fusion(fd.fusion.definition)
    executor = registered_fusion(key).executor
    before = compiled_kernel_count()
    for value in values:
        stack = [x, value]
        run_fusion(key, stack)
        torch.testing.assert_close(stack[0], x * value + value, equal_nan=True)
    assert len(executor.plans) == 1
    assert compiled_kernel_count() == before  # that of the definition


def test_one_plan_beside_a_size() -> None:
    """A scalar that is a size decides; a scalar that is data doesn't."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], contiguity=True, dtype=DataType.Float)
        size, seed = fd.define_scalar(None, DataType.Int), fd.define_scalar(None, DataType.Int)
        rows = fd.ops.broadcast_in_dim(x, [size, fd.ops.size(x, 0)], [1])
        fd.add_output(fd.ops.add(rows, seed))
    key = register_fusion(fd.fusion.definition)
    x = torch.arange(7.0)
    for seed in range(50):
        stack = [x, 4, seed]
        run_fusion(key, stack)
        assert torch.equal(stack[0], x.expand(4, 7) + seed)
    assert len(registered_fusion(key).executor.plans) == 1


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[CompiledGraph]:
    """The graphs that are compiled."""
    found: list[CompiledGraph] = []

    class Noted(CompiledGraph):
        def __init__(self, *given: Any) -> None:
            found.append(self)
            super().__init__(*given)

    monkeypatch.setattr(compiled_graph, "CompiledGraph", Noted)
    return found


def step(p: torch.Tensor, grad: torch.Tensor, rate: Any) -> torch.Tensor:
    return p - torch.tanh(grad) * rate


@pytest.mark.parametrize("make", [float, torch.tensor], ids=["a number", "a tensor"])
def test_one_function_of_a_graph(make: Callable[[float], Any], graphs: list[CompiledGraph]) -> None:
    p, grad = torch.randn(6, 9), torch.randn(6, 9)
    program = torch.compile(step, backend=BACKEND)
    rates = [0.5 + 0.01 * n for n in range(50)]
    program(p, grad, make(rates[0]))
    program(p, grad, make(rates[1]))  # torch takes the first number for a constant
    graph_number, kernels = graph_count(), compiled_kernel_count()
    for rate in rates:
        got = program(p, grad, make(rate))
        torch.testing.assert_close(got, step(p, grad, make(rate)))
    assert graph_count() == graph_number and len(graphs) <= 2
    assert compiled_kernel_count() == kernels
    assert [len(graph.functions) for graph in graphs] == [1] * len(graphs)


def test_a_learning_rate_that_a_scheduler_changes(graphs: list[CompiledGraph]) -> None:
    weight = torch.nn.Parameter(torch.randn(12))
    optimiser = torch.optim.Adam([weight], lr=torch.tensor(0.1))

    def advance() -> None:
        optimiser.step()

    program = torch.compile(advance, backend=BACKEND)
    weight.grad = torch.randn(12)
    program()
    program()
    made, kernels = graph_count(), compiled_kernel_count()
    for n in range(20):
        optimiser.param_groups[0]["lr"].fill_(0.1 / (n + 1))
        program()
    assert graph_count() == made
    assert compiled_kernel_count() == kernels
    assert all(len(graph.functions) == 1 for graph in graphs)
