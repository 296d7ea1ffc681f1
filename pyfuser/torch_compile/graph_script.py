"""A traced graph as a Python program: the reproducer of a graph that could not be compiled.

The program contains the graph's code as traced, makes inputs like those of tracing, and compiles
it.  Open sizes become the numbers that they had, and stay open.
"""

from __future__ import annotations

from textwrap import indent
from typing import Any

import torch
from torch.fx import GraphModule

from ..ops.metadata import TensorMetadata
from ..reproducer import descriptions, literal
from .sizes import traced_with

_SCRIPT = """
import torch
from torch import device, inf, nan


class Graph(torch.nn.Module):
    def __init__(self):
        super().__init__()
{constants}
{forward}

inputs = [
{inputs}]
torch.compile(Graph(), backend="pyfuser"{dynamic})(*inputs)
"""


def graph_script(graph_module: GraphModule) -> str:
    """The program for a graph; its passes may have changed the nodes, but not its code."""
    nodes = list(graph_module.graph.nodes)
    inputs = [node.meta.get("val") for node in nodes if node.op == "placeholder"]
    constants = ""
    for name in dict.fromkeys(str(node.target) for node in nodes if node.op == "get_attr"):
        value = getattr(graph_module, name, None)
        if isinstance(value, torch.Tensor):
            constants += f"        self.{name} = {_text(value)}\n"
    is_open = any(isinstance(size, torch.SymInt) for value in inputs for size in _sizes(value))
    return _SCRIPT.format(
        constants=constants,
        forward=indent(graph_module.code.strip(), "    "),
        inputs="".join(f"    {_text(value)},\n" for value in inputs),
        dynamic=", dynamic=True" if is_open else "",
    )


def _sizes(value: Any) -> tuple[Any, ...]:
    return tuple(value.shape) if isinstance(value, torch.Tensor) else (value,)


def _text(value: Any) -> str:
    """An expression that makes a value like this one."""
    if isinstance(value, torch.Tensor):
        shape, stride = (tuple(map(traced_with, sizes)) for sizes in (value.shape, value.stride()))
        value = TensorMetadata(shape, stride, value.dtype, value.device)
    else:
        value = traced_with(value)
    (described,) = descriptions([value])
    return literal(described)
