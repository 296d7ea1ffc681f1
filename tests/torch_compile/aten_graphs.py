"""Graphs for the tests of the translation from aten: of one call, hand-made, or traced."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import tree_map

from pyfuser.torch_compile.aten import RegionFusion, build_region, decompositions, refusal

# How far formulas may round differently: eager rounds half precision after each step.
TOLERANCE = {
    torch.float32: 2e-5,
    torch.float64: 1e-11,
    torch.bfloat16: 3e-2,
    torch.float16: 5e-3,
}


def tensor_maker(dtype: torch.dtype, seed: int = 0) -> Callable[..., torch.Tensor]:
    """Random tensors; whole numbers are small and positive, so that they divide and shift."""
    generator = torch.Generator().manual_seed(seed)

    def make(*sizes: int) -> torch.Tensor:
        if dtype is torch.bool:
            return torch.rand(sizes, generator=generator) > 0.4
        if not dtype.is_floating_point:
            return torch.randint(1, 5, sizes, generator=generator).to(dtype)
        return (torch.randn(sizes, generator=generator, dtype=torch.float64) * 2).to(dtype)

    return make


Call = tuple[OpOverload, Any, Any]


class Calls:
    """A graph of several calls: their nodes, their inputs, and the nodes of their results."""

    def __init__(self, calls: Sequence[Call], symbolic: bool = False) -> None:
        self._mode = FakeTensorMode(
            shape_env=ShapeEnv() if symbolic else None, static_shapes=not symbolic
        )
        self._graph = Graph()
        self.tensors: list[torch.Tensor] = []
        self.inputs: list[Node] = []
        self.nodes: list[Node] = []
        self.outputs: list[Node] = []
        self.calls = [self._call(*call) for call in calls]

    def _call(self, overload: OpOverload, given: Any, keywords: Any) -> Node:
        def placeholder(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            node = self._graph.placeholder(f"x{len(self.inputs)}")
            node.meta["val"] = self._mode.from_tensor(value)
            self.tensors.append(value)
            self.inputs.append(node)
            return node

        args, kwargs = tree_map(placeholder, (tuple(given), dict(keywords)))
        node = self._graph.call_function(overload, args, kwargs)
        with self._mode:
            fakes = tree_map(lambda a: a.meta["val"] if isinstance(a, Node) else a, (args, kwargs))
            node.meta["val"] = meta = overload(*fakes[0], **fakes[1])
        self.nodes.append(node)
        if not isinstance(meta, (tuple, list)):
            self.outputs.append(node)
            return node
        for index, part in enumerate(meta):
            if part is not None:
                item = self._graph.call_function(operator.getitem, (node, index))
                item.meta["val"] = part
                self.nodes.append(item)
                self.outputs.append(item)
        return node

    def region(self) -> RegionFusion:
        """The graph as a region."""
        return build_region(self.nodes, self.inputs, self.outputs)

    def values(self, region: RegionFusion) -> list[Any]:
        """The arguments for the fusion."""
        by_node = dict(zip(self.inputs, self.tensors, strict=True))
        return [by_node[node] for node in region.inputs] + [hint(v) for v in region.scalars]


class OneNode(Calls):
    """A graph of one call."""

    def __init__(
        self, overload: OpOverload, given: Any, keywords: Any, symbolic: bool = False
    ) -> None:
        super().__init__([(overload, given, keywords)], symbolic)
        (self.node,) = self.calls


def hint(value: Any) -> Any:
    """A symbolic number as the number it was traced with."""
    return value.node.hint if isinstance(value, (torch.SymInt, torch.SymFloat)) else value


def flat(result: Any) -> list[torch.Tensor]:
    """The tensors of a result."""
    parts = result if isinstance(result, (tuple, list)) else [result]
    return [part for part in parts if isinstance(part, torch.Tensor)]


def require_close(
    got: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor], dtype: torch.dtype
) -> None:
    """As many tensors, with the same shapes, dtypes and (nearly) elements."""
    assert len(got) == len(wanted)
    for mine, theirs in zip(got, wanted, strict=True):
        assert mine.shape == theirs.shape and mine.dtype is theirs.dtype
        tolerance = 0.0
        if theirs.dtype.is_floating_point:
            tolerance = max(TOLERANCE.get(d, 0.0) for d in (theirs.dtype, dtype))
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)


def of_metadata(graph: OneNode, results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Eager's results in the dtypes that tracing promises (a batch norm's statistics differ)."""
    pairs = zip(results, graph.outputs, strict=True)
    return [result.to(node.meta["val"].dtype) for result, node in pairs]


def eager(overload: OpOverload, given: Any, keywords: Any) -> list[torch.Tensor] | None:
    """torch's result; None if it doesn't accept these dtypes."""
    try:
        return flat(overload(*given, **keywords))
    except (RuntimeError, NotImplementedError, TypeError):
        return None


def traced(
    function: Callable[..., Any], tensors: Sequence[torch.Tensor], decompose: bool = True
) -> tuple[list[Node], list[Node], list[Node]]:
    """Nodes, inputs and outputs of a function's graph."""
    table = decompositions() if decompose else {}
    # Gradients become operations first; then in-place operations become functional.
    plain = make_fx(function, tracing_mode="fake", decomposition_table=table)(*tensors)
    functional = torch.func.functionalize(plain, remove="mutations")
    graph = make_fx(functional, tracing_mode="fake", decomposition_table=table)(*tensors).graph
    graph.eliminate_dead_code()
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    (output,) = graph.find_nodes(op="output")
    left = output.args[0]
    outputs = list(left) if isinstance(left, (tuple, list)) else [left]
    return nodes, inputs, outputs


def translated(function: Callable[..., Any], *tensors: torch.Tensor) -> RegionFusion:
    """A function as one region."""
    nodes, inputs, outputs = traced(function, tensors)
    assert [(n, refusal(n)) for n in nodes if refusal(n) is not None] == []
    return build_region(nodes, inputs, outputs)


def called_with(region: RegionFusion, tensors: Sequence[torch.Tensor]) -> list[Any]:
    """The tensors and the numbers that the region's fusion wants."""
    return [*tensors, *(hint(value) for value in region.scalars)]


def gradients(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """The gradients of the inputs, as a function to trace."""

    def run(*tensors: torch.Tensor) -> Any:
        leaves = [t.detach().requires_grad_() for t in tensors]
        result = function(*leaves)
        return torch.autograd.grad(result, leaves, result.detach() + 1)

    return run
