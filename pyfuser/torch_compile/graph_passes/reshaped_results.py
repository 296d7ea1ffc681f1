"""Moves pointwise ops before the reshapes whose results they read.

A group norm computes [batch, groups, channels, positions] and returns a view of that as [batch,
channels, height, width]. A reshape of real axes between two fusible nodes ends a region, so an
activation after the norm would be a kernel of its own.  Before the reshape, it is in the norm's.

    Before:  a = norm(x)   [8, 4, 16, 196];  b = view(a, [8, 64, 14, 14]);  c = silu(b)
    After:   a = norm(x);  c = view(silu(a), [8, 64, 14, 14])

It runs after `move_reshapes`, which moves what reshapes it can out of the way to the other side.
"""

from __future__ import annotations

from torch.fx import Graph, Node

from ..aten import refusal
from ..sizes import sizes_of
from ..views import tensor_of
from .reshapes import (
    RESHAPES,
    can_be_reshaped,
    forget_rank,
    is_plain,
    is_pointwise_node,
    move_reshape,
    view_node,
    with_layout,
)


def move_readers_of_reshapes(graph: Graph) -> None:
    """Moves every pointwise op that can be, before the reshape that it reads."""
    for node in list(graph.nodes):
        if node.op == "call_function" and is_pointwise_node(node) and is_plain(node):
            _try(graph, node)


def _try(graph: Graph, node: Node) -> None:
    sources = [s for s in map(_reshaped, node.all_input_nodes) if s is not None]
    if len(set(map(_shape, sources))) != 1:
        return
    value, like = tensor_of(node), tensor_of(sources[0])
    assert value is not None and like is not None

    def before(operand: Node) -> Node:
        own, known = tensor_of(operand), _reshaped(operand)
        if known is not None or own is None or own.dim() == 0:
            return known or operand
        view = view_node(graph, operand, with_layout(own, like))
        if operand in crossed:
            views.append((view, operand))
        return view

    crossed = [each for each in node.all_input_nodes if not _can_be_viewed(each, node)]
    if not all(
        _shape(each) == _shape(node) and can_be_reshaped(each, like, node) for each in crossed
    ):
        return
    views: list[tuple[Node, Node]] = []

    with graph.inserting_before(node):
        moved = graph.node_copy(node, before)
        forget_rank(moved)
        moved.meta = {**node.meta, "val": with_layout(value, like)}
        back = view_node(graph, moved, value)
    node.replace_all_uses_with(back)
    graph.erase_node(node)
    for view, operand in views:
        move_reshape(graph, view, operand)


def _reshaped(node: Node) -> Node | None:
    """What a reshape between fusible nodes reads, if the node is one."""
    source = node.args[0] if node.target in RESHAPES else None
    if not isinstance(source, Node) or source.op != "call_function":
        return None
    is_between = refusal(node) is not None and refusal(source) is None
    return source if is_between and is_plain(node) and is_plain(source) else None


def _can_be_viewed(operand: Node, node: Node) -> bool:
    """True if a view of an operand in another shape costs nothing and ends no region."""
    value = tensor_of(operand)
    if value is None:
        return False
    if value.dim() == 0:
        return True
    is_outside = operand.op == "placeholder" or refusal(operand) is not None
    return is_outside and _shape(operand) == _shape(node) and is_plain(operand)


def _shape(node: Node) -> tuple[object, ...]:
    value = tensor_of(node)
    return () if value is None else sizes_of(value.shape)
