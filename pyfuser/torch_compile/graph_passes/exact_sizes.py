"""Computes with sizes in double precision.

Where a number depends on sizes, such as the factor 2 / count of a mean's gradient, AOTAutograd
makes 0-dim tensors of the sizes, computes with these, and then converts the result.  The tensors
have the default dtype, and float32 has no odd integers above 2^24: the gradient of 2^24 + 1 doubles
would be wrong from the eighth digit on.

    Before:  a = scalar_tensor(n); b = mul(a, a); c = convert_element_type(b, float64)
    After:   a = scalar_tensor(n, float64); b = mul(a, a); c = convert_element_type(b, float64)

It runs before `drop_copies`, which then removes the conversion.
"""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

from ..op_facts import facts, is_pointwise
from ..views import tensor_of

aten = torch.ops.aten


def widen_sizes(graph: Graph) -> None:
    """Makes doubles of the sizes, and of what is computed of these only, where nothing reads more
    than a conversion of them."""
    found: dict[Node, None] = {}
    for node in graph.nodes:
        if _is_size(node) or _is_of_sizes(node, found):
            found[node] = None
    left = None
    while left != len(found):
        left = len(found)
        for node in [*found]:
            is_kept = _is_size(node) or _is_of_sizes(node, found)
            if not (is_kept and all(user in found or _may_read(user) for user in node.users)):
                del found[node]
    for node in found:
        if _is_size(node):
            node.kwargs = {**node.kwargs, "dtype": torch.float64}
        node.meta = {**node.meta, "val": node.meta["val"].to(torch.float64)}


def _is_size(node: Node) -> bool:
    """True for a size as a tensor of the default dtype."""
    is_tensor = node.target is aten.scalar_tensor.default and node.kwargs.get("dtype") is None
    size = node.args[0] if is_tensor else None
    return isinstance(size, Node) and isinstance(size.meta.get("val"), torch.SymInt)


def _is_of_sizes(node: Node, found: dict[Node, None]) -> bool:
    """True for arithmetic with these sizes and integers, in the dtype that follows from theirs."""
    value, operands = tensor_of(node), node.all_input_nodes
    if value is None or value.dtype is not torch.get_default_dtype():
        return False
    if not is_pointwise(node) or facts(node).converts or "dtype" in node.kwargs:
        return False
    return any(each in found for each in operands) and all(
        each in found or _is_integer(each) for each in operands
    )


def _is_integer(node: Node) -> bool:
    value = tensor_of(node)
    return value is not None and value.dim() == 0 and not value.dtype.is_floating_point


def _may_read(node: Node) -> bool:
    """True for what converts a number, and what computes doubles."""
    value = tensor_of(node)
    if node.op != "call_function" or value is None:
        return False
    return facts(node).converts or (is_pointwise(node) and value.dtype is torch.float64)
