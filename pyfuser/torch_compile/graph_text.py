"""A traced graph as text, one node per line: what `show` prints of it, also after each pass.

x = placeholder()  # float32 [4, 8]
exp = exp(x)  # float32 [4, 8]
return exp
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, Node


@dataclass(frozen=True)
class GraphText:
    """A graph that prints itself in its current state; `marks` are written before nodes."""

    graph: Graph
    marks: Mapping[Node, str] = field(default_factory=dict)

    def __str__(self) -> str:
        width = max(map(len, self.marks.values()), default=0)
        indent = f"{'':{width}}  " if width else ""
        lines = []
        for node in self.graph.nodes:
            mark = f"{self.marks[node]:{width}}  " if node in self.marks else indent
            lines.append(mark + _line(node))
        return "\n".join(lines) + "\n"


def _line(node: Node) -> str:
    if node.op == "output":
        return f"return {', '.join(map(str, node.args[0]))}"  # type: ignore[arg-type]
    if node.op != "call_function":
        return f"{node.name} = {node.op}(){_described(node.meta.get('val'))}"
    return call_text(node) + _described(node.meta.get("val"))


def call_text(node: Node) -> str:
    """A call as `name = op(arguments)`."""
    arguments = [*map(str, node.args), *(f"{k}={a}" for k, a in node.kwargs.items())]
    name = op_name(node).removeprefix("aten::")
    return f"{node.name} = {name}({', '.join(arguments)})"


def op_name(node: Node) -> str:
    """The op of a call, with its namespace and overload."""
    return str(getattr(node.target, "_name", getattr(node.target, "__name__", node.target)))


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        device = "" if value.device.type == "cpu" else f" on {value.device}"
        return f"  # {str(value.dtype).removeprefix('torch.')} {list(value.shape)}{device}"
    return ""
