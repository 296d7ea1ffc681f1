"""torch.compile's graphs of CUDA tensors, against the fake driver: forward, backward, updates.

torch can't trace gradients for a device that it wasn't built for, so graphs are traced on the CPU
and moved to the GPU by their metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.utils._pytree import tree_map

from pyfuser.torch_compile.aten.decompositions import decompositions
from pyfuser.torch_compile.compiled_graph import compile_graph
from tests.cuda.fake_driver import FakeGpus, at_home, fake_gpu_for_cpu_tensors, fake_gpus, on
from tests.cuda.host_compiler import requires_host_compiler
from tests.programs.check import check as check_program
from tests.programs.everyday import program, rows

pytestmark = [requires_host_compiler, pytest.mark.usefixtures("strict")]

Function = Callable[..., Any]


@pytest.fixture
def gpus() -> Iterator[FakeGpus]:
    with fake_gpus() as found:
        yield found


def graph_on_gpu(function: Function, *tensors: torch.Tensor) -> GraphModule:
    """The graph of a function, as if its inputs were on cuda:0."""
    table = decompositions()
    plain = make_fx(function, tracing_mode="fake", decomposition_table=table)(*tensors)
    functional_ = torch.func.functionalize(plain, remove="mutations")
    graph = make_fx(functional_, tracing_mode="fake", decomposition_table=table)(*tensors)
    gpu, mode = torch.device("cuda", 0), FakeTensorMode()

    def moved(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            with mode:
                return torch.empty_strided(
                    value.shape, value.stride(), dtype=value.dtype, device=gpu
                )
        return gpu if isinstance(value, torch.device) else value

    for node in graph.graph.nodes:
        node.meta = {**node.meta, "val": tree_map(moved, node.meta.get("val"))}
        node.kwargs = tree_map(moved, node.kwargs)
    return graph


def check(gpus: FakeGpus, function: Function, tensors: Sequence[torch.Tensor]) -> int:
    """Compares a compiled graph with eager, in two calls; returns how many launches a call has.

    The second call launches and does nothing else.
    """
    wanted = function(*(x.clone() for x in tensors))
    call = compile_graph(graph_on_gpu(function, *tensors))
    for _ in range(2):
        gpus.driver.calls.clear()
        given = [on(0, x.clone()) for x in tensors]
        for found, eager in zip(call(given), wanted, strict=True):
            torch.testing.assert_close(at_home(found), eager, rtol=1e-4, atol=1e-4)
    assert set(gpus.driver.calls) == {"cuLaunchKernel"}
    return len(gpus.driver.calls)


def block(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    normal = functional.layer_norm(x, x.shape[-1:])
    return (functional.gelu(normal @ weight).softmax(-1),)


def gradients(function: Function) -> Function:
    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        leaves = [x.detach().requires_grad_() for x in tensors]
        (result,) = function(*leaves)
        return torch.autograd.grad(result, leaves, result.detach() + 1)

    return run


def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (functional.layer_norm(x, x.shape[-1:], weight, bias),)


def test_a_block_around_a_product(gpus: FakeGpus) -> None:
    assert check(gpus, block, [torch.randn(12, 40), torch.randn(40, 48) / 7]) == 2


def test_the_gradients_of_a_block(gpus: FakeGpus) -> None:
    check(gpus, gradients(block), [torch.randn(12, 40), torch.randn(40, 48) / 7])


def test_the_gradients_of_a_layer_norm(gpus: FakeGpus) -> None:
    check(gpus, gradients(norm), [torch.randn(12, 40), torch.randn(40), torch.randn(40)])


def test_memory_that_crosses_parts_is_of_the_stream_of_the_call(gpus: FakeGpus) -> None:
    """Products write into it on this stream too, so no stream has to be recorded."""
    x, weight = torch.randn(12, 40), torch.randn(40, 48)
    call = compile_graph(graph_on_gpu(block, x, weight))
    for stream in (3, 9):
        gpus.streams[0] = stream
        gpus.allocated.clear()
        gpus.driver.launches.clear()
        call([on(0, x), on(0, weight)])
        assert {each.stream for each in gpus.driver.launches} == {stream}
        assert {found for _, found, _ in gpus.allocated} == {stream}


def test_an_update_in_place(gpus: FakeGpus) -> None:
    def step(weight: torch.Tensor, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        weight.sub_(gradient * 0.1)
        return (gradient * 2,)

    weight, gradient = torch.randn(40), torch.randn(40)
    call = compile_graph(graph_on_gpu(step, weight, gradient))
    expected = weight - gradient * 0.1
    given = on(0, weight.clone())
    call([given, on(0, gradient)])
    torch.testing.assert_close(at_home(given), expected)


def test_a_captured_graph(gpus: FakeGpus) -> None:
    x, weight = torch.randn(12, 40), torch.randn(40)

    def program(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return ((x * weight).softmax(-1), x.sum(0))

    call = compile_graph(graph_on_gpu(program, x, weight))
    call([on(0, x), on(0, weight)])
    with gpus.captured() as nodes:
        found = call([on(0, x), on(0, weight)])
    x.normal_()
    for node in nodes:
        node()
    for mine, eager in zip(found, program(x, weight), strict=True):
        torch.testing.assert_close(at_home(mine), eager, rtol=1e-4, atol=1e-4)


# Some of the everyday programs; test_emulated.py has others, with checks of every access.
EVERYDAY = list(rows())[5::20]


@pytest.mark.parametrize("row", EVERYDAY)
def test_everyday_programs_through_dynamo(row: str) -> None:
    torch._dynamo.reset()
    with fake_gpu_for_cpu_tensors() as found:
        given = program(row, intermediate=True)
        outcome = check_program(given)
        assert outcome.passed, f"{outcome.signature}\n{outcome.detail}\n{given.script()}"
        assert found.driver.launches
    torch._dynamo.reset()
