"""Moves pointwise ops before the reshapes whose results they read.

A group norm computes [batch, groups, channels, positions] and returns a view of that as [batch,
channels, height, width]. A reshape of real axes between two fusible nodes ends a region, so an
activation after the norm would be a kernel of its own.  Before the reshape, it is in the norm's.

    Before:  a = norm(x)   [8, 4, 16, 196];  b = view(a, [8, 64, 14, 14]);  c = silu(b)
    After:   a = norm(x);  c = view(silu(a), [8, 64, 14, 14])

What else the op reads, such as weights of the 64 channels, becomes a view of it.  The op must not
repeat what was reshaped: its result would have more elements than the reshape's source.

It runs after `move_reshapes`, which moves what reshapes it can out of the way to the other side.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from ..aten import refusal
from ..sizes import sizes_of
from ..views import tensor_of
from .reshapes import (
    RESHAPES,
    can_be_reshaped,
    compute_in_shape,
    is_plain,
    is_pointwise_node,
    move_reshape,
    shape_of,
    view_node,
    with_layout,
    with_shape,
)


def move_readers_of_reshapes(graph: Graph) -> None:
    """Moves every pointwise op that can be, before the reshape that it reads."""
    for node in list(graph.nodes):
        if node.op == "call_function" and is_pointwise_node(node) and is_plain(node):
            _try(graph, node)


def _try(graph: Graph, node: Node) -> None:
    reshaped = {each: s for each in node.all_input_nodes if (s := _reshaped(each)) is not None}
    sources = list(reshaped.values())
    if len(set(map(shape_of, sources))) != 1 or set(map(shape_of, reshaped)) != {shape_of(node)}:
        return
    value, like = tensor_of(node), tensor_of(sources[0])
    assert value is not None and like is not None

    def before(operand: Node) -> Node:
        own, known = tensor_of(operand), _reshaped(operand)
        if known is not None or own is None or own.dim() == 0:
            return known or operand
        if operand in crossed:
            view = view_node(graph, operand, with_layout(own, like))
            views.append((view, operand))
            return view
        shape = _broadcast_shape(own, value, like)
        assert shape is not None
        return view_node(graph, operand, with_shape(own, shape))

    crossed = [each for each in node.all_input_nodes if not _can_be_viewed(each, value, like)]
    if not all(
        shape_of(each) == shape_of(node) and can_be_reshaped(each, like, node) for each in crossed
    ):
        return
    views: list[tuple[Node, Node]] = []

    compute_in_shape(graph, node, before, like)
    for view, operand in views:
        move_reshape(graph, view, operand)


def _reshaped(node: Node) -> Node | None:
    """What a reshape between fusible nodes reads, if the node is one."""
    source = node.args[0] if node.target in RESHAPES else None
    if not isinstance(source, Node) or source.op != "call_function":
        return None
    is_between = refusal(node) is not None and refusal(source) is None
    return source if is_between and is_plain(node) and is_plain(source) else None


def _can_be_viewed(operand: Node, result: torch.Tensor, like: torch.Tensor) -> bool:
    """True if a view of an operand in another shape costs nothing and ends no region."""
    value = tensor_of(operand)
    if value is None:
        return False
    if value.dim() == 0:
        return True
    is_outside = operand.op == "placeholder" or refusal(operand) is not None
    if not (is_outside and is_plain(operand)):
        return False
    return _broadcast_shape(value, result, like) is not None


def _broadcast_shape(
    operand: torch.Tensor, result: torch.Tensor, like: torch.Tensor
) -> list[Any] | None:
    """The shape of an operand for a result with another shape; None if it needs a copy for that.

    The axes that the reshape makes of others are all the operand's, or none of them: [64] for
    [8, 64, 196] is [1, 4, 16, 1] for [8, 4, 16, 196], and [16, 1] isn't.
    """
    old, new = sizes_of(result.shape), sizes_of(like.shape)
    before = 0
    while before < min(len(old), len(new)) and old[before] == new[before]:
        before += 1
    after, most = 0, min(len(old), len(new)) - before
    while after < most and old[-1 - after] == new[-1 - after]:
        after += 1
    own = [1] * (result.dim() - operand.dim()) + list(operand.shape)
    first, last = before, len(old) - after
    reshaped = sizes_of(own[first:last])
    if reshaped == old[first:last]:
        inside = list(like.shape)[before : len(new) - after]
    elif all(size == 1 for size in reshaped):
        inside = [1] * (len(new) - after - before)
    else:
        return None
    return [*own[:first], *inside, *own[last:]]
