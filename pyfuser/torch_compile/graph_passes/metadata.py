"""Metadata of the nodes that passes make or change: what their op gives for the arguments'."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from ..views import tensor_of


def call_traced(graph: Graph, op: Any, *arguments: Any, **keywords: Any) -> Node:
    """A new node that calls an op."""
    node: Node = graph.call_function(op, arguments, keywords)
    set_metadata(node, op, arguments)
    return node


def set_metadata(node: Node, op: Any, arguments: Sequence[Any]) -> None:
    """Gives a node the metadata of the op's result, if a tensor's metadata is known."""
    tensors = [value for n in node.all_input_nodes if (value := tensor_of(n)) is not None]
    modes = [value.fake_mode for value in tensors if isinstance(value, FakeTensor)]
    if modes:
        with modes[0]:
            values = map_arg((tuple(arguments), node.kwargs), lambda n: n.meta["val"])
            node.meta["val"] = op(*values[0], **values[1])
