"""Metadata of the nodes that passes make or change: what their op gives for the arguments'."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from ..views import tensor_of

aten = torch.ops.aten


def call_traced(graph: Graph, op: Any, *arguments: Any, **keywords: Any) -> Node:
    """A new node that calls an op."""
    node: Node = graph.call_function(op, arguments, keywords)
    set_metadata(node, op, arguments)
    return node


def item_of(graph: Graph, node: Node, number: int) -> Node:
    """A new node that picks a result of a call."""
    item: Node = graph.call_function(operator.getitem, (node, number))
    item.meta["val"] = node.meta["val"][number]
    return item


def contiguous(graph: Graph, node: Node) -> Node:
    """A new node with a contiguous copy of a tensor."""
    return call_traced(graph, aten.clone.default, node, memory_format=torch.contiguous_format)


def set_metadata(
    node: Node, op: Any, arguments: Sequence[Any], mode: FakeTensorMode | None = None
) -> None:
    """Gives a node the metadata of the op's result, if a tensor's metadata, or `mode`, is known."""
    tensors = [value for n in node.all_input_nodes if (value := tensor_of(n)) is not None]
    modes = [value.fake_mode for value in tensors if isinstance(value, FakeTensor)]
    if mode is not None or modes:
        with mode or modes[0]:
            values = map_arg((tuple(arguments), node.kwargs), lambda n: n.meta["val"])
            node.meta["val"] = op(*values[0], **values[1])
