"""What is computed between library calls in channels-last memory has that format, too.

With gradients, convolutions are surrounded by copies into channels-last memory and back
(aten/channels_last.py).  What kernels compute from their results is read by many: the next
convolution, its gradient, and the gradients of activations and norms.  In one format, each tensor
is stored once, and no kernel reads some tensors along their memory and others across it.

    Before:  a = clone(convolution(x, w), contiguous); b = relu(a)
             c = convolution(clone(b, channels_last), v)
             e = threshold_backward(d, b)
    After:   a = convolution(x, w); b = relu(a); c = convolution(b, v); e = threshold_backward(d, b)

Images that pointwise operations, batch norms and concatenations connect have one format.  It is
channels-last if this saves more copies than it makes: results of the graph and what views and
other calls read stay contiguous.  It runs on the joint graph, before it is cut into forward and
backward (rematerialisation.py), so that what is saved has the format in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from ...ir.disjoint_sets import DisjointSets
from ...ir.strides import is_dense
from ..aten import refusal
from ..aten.channels_last import is_ambiguous
from ..op_facts import facts, is_pointwise
from ..sizes import hints
from ..views import (
    elements_of,
    is_getitem,
    is_updated,
    is_view,
    leaves_graph,
    note_storages,
    tensor_of,
)
from .copies import drop_copies
from .metadata import call_traced, contiguous

aten = torch.ops.aten
# The axes in memory, outermost first, of contiguous and of channels-last images.
_FIRST, _LAST = (0, 1, 2, 3), (0, 2, 3, 1)
# The operands of a norm whose first result is an image that are images.
_NORMS: dict[Any, int] = {
    aten._native_batch_norm_legit_functional.default: 1,
    aten._native_batch_norm_legit.no_stats: 1,
    aten.native_batch_norm_backward.default: 2,
}


def keep_images_channels_last(graph: Graph) -> None:
    """Changes the format of all groups of images for which it pays."""
    if not any(map(_is_wanted_copy, graph.nodes)):
        return
    drop_copies(graph)  # a gradient reads an alias of what it needs
    moved = {node: value for node in graph.nodes if (value := _moved(node)) is not None}
    sets: DisjointSets[Node] = DisjointSets()
    for node in moved:
        for operand in _operands(node):
            if operand in moved:
                sets.join(operand, node)
    groups: dict[Node, list[Node]] = {}
    for node in moved:
        groups.setdefault(sets.find(node), []).append(node)
    for group in groups.values():
        if _saved_elements(group) > 0:
            _move(graph, group, moved)


def _moved(node: Node) -> Any:
    """What the call of an image gives if its operands are channels-last; None if the image can't
    be, or would not be, channels-last as well.
    """
    if not _is_movable(node):
        return None
    call, value = _call(node), node.meta["val"]
    if facts(call).copies:
        return call.all_input_nodes[0].meta["val"]
    operands = set(_operands(node))
    if not operands or not isinstance(value, FakeTensor):
        return None  # what is expanded has no format

    def given(operand: Node) -> Any:
        known = operand.meta["val"]
        return known.contiguous(memory_format=torch.channels_last) if operand in operands else known

    with value.fake_mode:
        arguments, keywords = map_arg((call.args, call.kwargs), given)
        made = call.target(*arguments, **keywords)  # type: ignore[operator]
        found = made if call is node else made[0]
        wanted = value.contiguous(memory_format=torch.channels_last)
    return made if hints(found.stride()) == hints(wanted.stride()) else None


def _is_movable(node: Node) -> bool:
    """True for contiguous images that a kernel can as well store channels-last."""
    if node.op != "call_function" or not _is_image(node, _FIRST):
        return False
    if is_updated(node) or refusal(node) is not None:
        return False
    if is_getitem(node):
        return _call(node).target in _NORMS and node.args[1:] == (0,)
    if facts(node).copies:
        return any(_is_image(source, _LAST) for source in node.all_input_nodes)
    if node.kwargs.get("memory_format") not in (None, torch.preserve_format):
        return False
    return is_pointwise(node) or node.target is aten.cat.default


def _is_image(node: Node, order: Sequence[int]) -> bool:
    """True for images whose axes have this order in memory, outermost first, and in no other."""
    value = tensor_of(node)
    if value is None or value.dim() != 4:
        return False
    shape = hints(value.shape)
    if prod(shape) == 0 or is_ambiguous(value):
        return False
    return is_dense(shape, hints(value.stride()), order)


def _call(node: Node) -> Node:
    """The call that makes a result."""
    call = node.args[0] if is_getitem(node) else node
    assert isinstance(call, Node)
    return call


def _operands(node: Node) -> Iterator[Node]:
    """The operands that have the format of a movable node."""
    call = _call(node)
    if facts(call).copies:
        return
    own = tensor_of(node)
    assert own is not None
    given = call.all_input_nodes
    if (count := _NORMS.get(call.target)) is not None:
        given = [each for each in call.args[:count] if isinstance(each, Node)]
    for operand in given:
        value = tensor_of(operand)
        if value is None or value.dim() != 4 or hints(value.shape[2:]) != hints(own.shape[2:]):
            continue
        if _is_image(operand, _FIRST) or _is_image(operand, _LAST):
            yield operand


def _saved_elements(group: Sequence[Node]) -> int:
    """How many elements fewer are copied, or read across memory, if a group is channels-last."""
    members, saved = set(group), 0
    foreign: dict[Node, None] = {}
    for node in group:
        size = elements_of(node)
        if facts(node).copies or any(_is_wanted_copy(user) for user in node.users):
            saved += size
        if any(_needs_contiguous(user) for user in node.users if user not in members):
            saved -= size
        others = (each for each in _operands(node) if each not in members)
        foreign |= dict.fromkeys(each for each in others if _is_read_across(each))
    return saved - sum(map(elements_of, foreign))


def _is_read_across(operand: Node) -> bool:
    """True for contiguous images that no kernel computes."""
    return _is_image(operand, _FIRST) and refusal(operand) is not None


def _is_wanted_copy(node: Node) -> bool:
    """True for a copy into channels-last memory that nobody else could tell from the original."""
    return facts(node).copies and _is_image(node, _LAST) and not leaves_graph(node)


def _needs_contiguous(user: Node) -> bool:
    """True for a reader that isn't part of a kernel, or may not be."""
    return not _is_wanted_copy(user) and (is_view(user) or refusal(user) is not None)


def _move(graph: Graph, group: Sequence[Node], moved: Mapping[Node, Any]) -> None:
    """Gives a group the new format; its readers outside get copies of the old one."""
    calls = {_call(node) for node in group}
    copies: dict[Node, Node] = {}
    for node in group:
        kept = _call(node).all_input_nodes[0] if facts(node).copies else node
        inside = [user for user in node.users if user in calls or _is_wanted_copy(user)]
        outside = [user for user in node.users if user not in inside]
        if kept is node:
            _lay_out_operands(graph, node, copies)
            if outside:
                with graph.inserting_after(node):
                    copy = contiguous(graph, node)
                copy.meta["val"] = node.meta["val"]  # views have its storage
                for user in outside:
                    user.replace_input_with(node, copy)
            call = _call(node)
            call.meta["val"] = moved[node]
            node.meta["val"] = moved[node] if call is node else moved[node][0]
        for user in inside:
            if user in calls:
                user.replace_input_with(node, kept)
            else:
                note_storages(kept, user)
                user.replace_all_uses_with(kept)
                graph.erase_node(user)
        if not node.users:
            graph.erase_node(node)


def _lay_out_operands(graph: Graph, node: Node, copies: dict[Node, Node]) -> None:
    """Makes a call read channels-last copies of the operands that aren't."""
    call = _call(node)
    for operand in list(_operands(node)):
        if _is_image(operand, _LAST):
            continue
        if operand not in copies:
            with graph.inserting_before(call):
                copies[operand] = call_traced(
                    graph, aten.clone.default, operand, memory_format=torch.channels_last
                )
        call.replace_input_with(operand, copies[operand])
