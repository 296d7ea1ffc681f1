"""Kernels read the copy of a tensor in another memory order, so that only the copy is stored.

A convolution wants its images in channels-last memory (aten/convolutions.py); what else reads them,
such as a residual connection, would have them stored contiguously as well.

    Before:  a = relu(x); b = clone(a, channels_last); c = convolution(b, w); d = add(y, a)
    After:   a = relu(x); b = clone(a, channels_last); c = convolution(b, w); d = add(y, b)

The strides of the readers' results stay those that were traced.  It runs after `drop_copies`, which
removes the copies that change nothing.
"""

from __future__ import annotations

from torch.fx import Graph, Node

from ..aten import refusal
from ..op_facts import facts
from ..views import is_updated, is_view, is_view_list, leaves_graph, tensor_of


def read_layout_copies(graph: Graph) -> None:
    """Makes the other readers of tensors that are copied read the copy, if all of them can."""
    for node in list(graph.nodes):
        if node.op != "call_function" or not facts(node).copies or leaves_graph(node):
            continue
        source = node.args[0]
        if not isinstance(source, Node) or not _is_stored_for_readers(source, node):
            continue
        source.append(node)
        for reader in [user for user in source.users if user is not node]:
            reader.replace_input_with(source, node)


def _is_stored_for_readers(source: Node, copy: Node) -> bool:
    """True if a kernel computes the tensor, and only kernels read it beside the copy."""
    own, other = tensor_of(source), tensor_of(copy)
    if own is None or other is None or own.dtype != other.dtype:
        return False
    if not _is_kernel(source) or is_updated(source) or leaves_graph(source):
        return False
    readers = [user for user in source.users if user is not copy]
    return bool(readers) and all(map(_is_kernel, readers))


def _is_kernel(node: Node) -> bool:
    if node.op != "call_function" or is_view(node) or is_view_list(node):
        return False
    return refusal(node) is None
