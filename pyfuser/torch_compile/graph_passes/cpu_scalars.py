"""Numbers on the CPU in a graph of another device: torch allows such 0-dim tensors in a mix.

A kernel reads the memory of its own device, so a number is copied there once, before the first node
that reads it together with the device's tensors.  Computations with numbers on the CPU only are
left to torch.

    Before:  a = mul(x, s)                                      x on a device, s on the CPU
    After:   b = _to_copy(s, device=the device); a = mul(x, b)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch
from torch.fx import Graph, Node

from ...ops.metadata import is_cpu_scalar
from ..op_facts import facts
from ..views import tensor_of

aten = torch.ops.aten


def devices(nodes: Iterable[Node]) -> set[torch.device]:
    """The devices of a graph's tensors; numbers on the CPU count where there is nothing else."""
    tensors = [value for node in nodes if (value := tensor_of(node)) is not None]
    found = {value.device for value in tensors if not is_cpu_scalar(value)}
    # Without any tensor, it is only arithmetic on sizes.
    return found or {value.device for value in tensors} or {torch.device("cpu")}


def move_numbers(graph: Graph, kernels: Collection[torch.device]) -> dict[Node, str]:
    """Copies the numbers to the devices that have `kernels` and read them.

    Returns the nodes that stay on the CPU, and why; none if the CPU has kernels.
    """
    others = [device for device in kernels if device.type != "cpu"]
    if not others:
        return {}
    for node in list(graph.nodes):
        if _is_number(node):
            for device in others:
                _move(graph, node, device)
    if len(others) < len(kernels):
        return {}
    return {
        node: "it computes with numbers on the CPU"
        for node in graph.nodes
        if node.op == "call_function"
        if _is_number(node) or any(map(_is_number, node.all_input_nodes))
    }


def _is_number(node: Node) -> bool:
    value = tensor_of(node)
    return value is not None and is_cpu_scalar(value)


def _move(graph: Graph, node: Node, device: torch.device) -> None:
    """Makes the nodes whose results are on a device read a copy of the number there."""
    readers = [
        user
        for user in sorted(node.users)
        if not _moves(user) and _is_on(user, device) and not _is_number(user)
    ]
    if not readers:
        return
    value = tensor_of(node)
    assert value is not None
    with graph.inserting_before(readers[0]):
        moved = graph.call_function(aten._to_copy.default, (node,), {"device": device})
    moved.meta = {**node.meta, "val": value.to(device)}
    for reader in readers:
        reader.replace_input_with(node, moved)


def _moves(node: Node) -> bool:
    """True for an op that itself moves its operand from one device to another."""
    return facts(node).converts or node.target is aten.copy_.default


def _is_on(node: Node, device: torch.device) -> bool:
    value = tensor_of(node)
    return value is not None and value.device == device
