"""Half-precision values whose equality is asked for, and all that they are computed from.

The gradient of an extremum, or of a median, goes to the elements that equal it.  The backward
compares the extremum that the forward has kept with elements that it computes again, from what the
forward has stored: rounded values.  If the forward's own elements came from the same values held in
float32, none might equal the extremum, and the gradient would be 0 / 0.  So what is stored on the
way is read rounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch.fx import Node

aten = torch.ops.aten

_EXTREMA = frozenset(
    (
        *(aten.amax.default, aten.amin.default, aten.max.default, aten.min.default),
        *(aten.median.default, aten.nanmedian.default),
    )
)
_EXTREMA_OF_WRITES = frozenset((aten.scatter_reduce.two, aten.index_reduce.default))
_EXTREME = frozenset(("amax", "amin"))  # of the reductions that these do
_EQUALITY = frozenset((aten.eq.Tensor, aten.eq.Scalar, aten.ne.Tensor, aten.ne.Scalar))


def compared_values(nodes: Iterable[Node]) -> set[Node]:
    """Those among a graph's nodes, in topological order.

    What compares them may be in another kernel, or a call of torch's library; so may be what is
    between, such as a view.
    """
    found: set[Node] = set()
    for node in reversed([*nodes]):
        if any(user in found or _compares(user) for user in node.users):
            found.add(node)
    return {node for node in found if _is_reduced(node)}


def _compares(node: Node) -> bool:
    """True if a node asks which elements are equal, or its gradient does."""
    if node.target is aten.linalg_vector_norm.default:
        order = node.args[1] if len(node.args) > 1 else 2
        return isinstance(order, (int, float)) and math.isinf(order)
    if node.target in _EXTREMA_OF_WRITES:
        return not _EXTREME.isdisjoint(arg for arg in node.args if isinstance(arg, str))
    return node.target in _EXTREMA or node.target in _EQUALITY


def _is_reduced(node: Node) -> bool:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return False
    return value.dtype.is_floating_point and value.dtype.itemsize < torch.float32.itemsize
