"""Biases of linear layers: in the kernel that reads the product, or in the product itself.

`addmm` is decomposed when the graph is traced, so that the kernel that reads the product anyway
adds the bias (torch would first copy the bias over the whole result).  If no kernel but a library
call reads the product, `join_biases` joins the two again.

    Before:  a = mm(x, w); b = add(a, bias); c = view(b); d = bmm(c, y)
    After:   b = addmm(bias, x, w); c = view(b); d = bmm(c, y)
"""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

from ..aten import refusal
from ..op_facts import facts
from ..views import is_view, is_view_list, tensor_of

aten = torch.ops.aten


def join_biases(graph: Graph) -> None:
    """Makes an addmm of each product whose bias no kernel would add anyway."""
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not aten.add.Tensor:
            continue
        product, bias = node.args[0], node.args[1]
        if not isinstance(product, Node) or not isinstance(bias, Node) or node.kwargs:
            continue
        if product.target is not aten.mm.default or len(product.users) > 1:
            continue
        if not _is_bias(bias, node) or _is_in_kernel(product) or _is_read_by_kernel(node):
            continue
        with graph.inserting_before(node):
            joined = graph.call_function(aten.addmm.default, (bias, *product.args))
        joined.meta = dict(node.meta)
        node.replace_all_uses_with(joined)
        graph.erase_node(node)
        graph.erase_node(product)


def _is_bias(bias: Node, node: Node) -> bool:
    value, result = tensor_of(bias), tensor_of(node)
    if value is None or result is None or value.dim() != 1 or value.dtype != result.dtype:
        return False
    return value.shape[0] == result.shape[1] and value.stride(0) == 1


def _is_in_kernel(product: Node) -> bool:
    """True for a product that a kernel computes, with its bias."""
    return refusal(product) is None


def _is_read_by_kernel(node: Node) -> bool:
    """True if a fusible node reads a node, directly or through views."""
    for user in node.users:
        if is_view(user) or is_view_list(user):
            if _is_read_by_kernel(user):
                return True
        elif user.op == "call_function" and not _only_moves(user) and refusal(user) is None:
            return True
    return False


def _only_moves(node: Node) -> bool:
    """True for torch's own copies and concatenations, which compute nothing."""
    return facts(node).copies or node.target is aten.cat.default
