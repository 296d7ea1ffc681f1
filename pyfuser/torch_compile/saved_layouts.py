"""The memory order of what a forward saves, where torch runs it.

The backward's kernels read saved tensors by the strides of the metadata.  A compiled forward writes
these strides; an operation of torch may return others than in tracing (`2.0**x.t()` does), so a
forward that torch runs gets the saved tensors copied that differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.fx import GraphModule, Node

from ..ir.strides import dense_strides
from ..plans.library_calls import with_strides
from .traced_layouts import is_dense, memory_order
from .views import tensor_of

_NAME = "pyfuser_first_saved"  # an attribute, since a graph in a cache keeps these


def note_saved(forward: GraphModule, first: int) -> None:
    """Notes that the results from number `first` on are for the backward."""
    forward.__dict__[_NAME] = first


def is_saved(graph_module: GraphModule, number: int) -> bool:
    """True if the result with this number is for the backward only."""
    first = graph_module.__dict__.get(_NAME)
    return first is not None and number >= first


def orders_of_saved(graph_module: GraphModule) -> dict[int, list[int]]:
    """The dimensions of each saved tensor, outermost in memory first, by its number as a result.

    Arguments have the strides that torch traced them with, and tensors with gaps are views.
    """
    first = graph_module.__dict__.get(_NAME)
    if first is None:
        return {}
    (output,) = graph_module.graph.find_nodes(op="output")
    found = {}
    for number, node in enumerate(output.args[0][first:], first):
        if not isinstance(node, Node) or node.op == "placeholder":
            continue
        value = tensor_of(node)
        if value is not None and value.dim() >= 2 and is_dense(value):
            found[number] = memory_order(value)
    return found


def with_orders(results: Sequence[Any], orders: Mapping[int, Sequence[int]]) -> Sequence[Any]:
    """The results, those copied whose memory order is another one."""
    if not orders:
        return results
    ordered = list(results)
    for number, order in orders.items():
        tensor = ordered[number]
        strides = dense_strides(tensor.shape, order)
        moving = zip(tensor.shape, tensor.stride(), strides, strict=True)
        if any(size > 1 and stride != wanted for size, stride, wanted in moving):
            ordered[number] = with_strides(tensor, tuple(strides))
    return ordered
