"""A block of a model in the torch.compile backend, as docs/torch_compile.md shows it.

Prints the graph that comes from torch, the same graph cut into regions, the fusion of one region,
the report of `explain`, and the function that a call runs.
"""

import torch
from torch import nn
from torch.fx import GraphModule, Node

import pyfuser
from pyfuser.interface import registered_fusion
from pyfuser.torch_compile.backend import BackendOptions, compile_with
from pyfuser.torch_compile.compiled_graph import Call, CompiledGraph, boxed
from pyfuser.torch_compile.graph_text import call_text


class Block(nn.Module):
    """A perceptron between a norm and a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, length, width] -> the same shape."""
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def line(node: Node) -> str:
    """A call as `name = op(arguments)  # [sizes]`."""
    value = node.meta.get("val")
    sizes = f"  # {list(value.shape)}" if isinstance(value, torch.Tensor) else ""
    return call_text(node) + sizes


def compile_and_print(graph_module: GraphModule) -> Call:
    """Does what the backend does with a graph, step by step, and prints it."""
    calls = [node for node in graph_module.graph.nodes if node.op == "call_function"]
    print("# aten", *map(line, calls), sep="\n")
    compiled = CompiledGraph(graph_module)
    regions = compiled.traced.fusions
    number = {node: i for i, fusion in enumerate(regions) for node in fusion.region.nodes}
    print("# regions")
    for node in (node for node in compiled.traced.graph.nodes if node.op == "call_function"):
        print(f"{number.get(node, '-')}  {line(node)}")
    print("# fusion", registered_fusion(regions[1].key).fusion, sep="\n")
    print("# call", compiled.source, sep="\n")
    return boxed(compiled.call)


torch.manual_seed(0)
model, x = Block(16), torch.randn(4, 8, 16)


def backend(graph_module: GraphModule, inputs: list[torch.Tensor]) -> object:
    """pyfuser's own backend, with printing."""
    return compile_with(graph_module, inputs, BackendOptions(), compile_and_print)


with torch.no_grad():
    torch.testing.assert_close(torch.compile(model, backend=backend)(x), model(x))
    print("# explain", pyfuser.explain(model, x), sep="\n")
