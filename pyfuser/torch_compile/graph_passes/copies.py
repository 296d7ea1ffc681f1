"""Removes copies in a functional graph that can't be told from the original.

A `clone`, or a conversion to the dtype that a tensor has (dropout with p = 0 leaves such), only
matters if it changes the memory layout or if its result leaves the graph: an output must not share
memory with an input or another output.  It also matters to `as_strided` from a place of its
storage.  A `detach`, as gradients have for what the forward pass saved, is one without memory of
its own.

    Before:  a = exp(x); b = clone(a); c = mm(b, w)
    After:   a = exp(x); c = mm(a, w)
"""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

from ..op_facts import facts
from ..views import is_updated, leaves_graph, note_storages, shows_storage, tensor_of

_ALIASES = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)


def drop_copies(graph: Graph) -> None:
    """Replaces needless copies by their operands."""
    for node in list(graph.nodes):
        if node.op == "call_function" and _is_copy(node) and _is_needless(node):
            source = node.args[0]
            assert isinstance(source, Node)
            note_storages(source, node)
            node.replace_all_uses_with(source)
            graph.erase_node(node)


def _is_copy(node: Node) -> bool:
    return facts(node).copies or facts(node).converts or node.target in _ALIASES


def _is_needless(node: Node) -> bool:
    source = node.args[0]
    if not isinstance(source, Node):
        return False
    made, known = tensor_of(node), tensor_of(source)
    if made is None or known is None or made.dtype != known.dtype or made.device != known.device:
        return False
    if list(made.stride()) != list(known.stride()) or known.is_neg() or known.is_conj():
        return False
    return not (is_updated(source) or leaves_graph(node) or shows_storage(node))
