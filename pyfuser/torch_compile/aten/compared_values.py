"""Half-precision values whose equality is asked for, and all that they are computed from.

An extremum's gradient goes to the elements that equal it.  The backward compares the extremum that
the forward has kept with elements that it computes again, from what the forward has stored: rounded
values.  If the forward's own elements came from the same values held in float32, none might equal
the extremum, and the gradient would be 0 / 0.  So what is stored on the way is read rounded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.fx import Node

from ...dtypes import REDUCED_FLOATING, from_torch

aten = torch.ops.aten

_EXTREMA = frozenset((aten.amax.default, aten.amin.default, aten.max.default, aten.min.default))
_EQUALITY = frozenset((aten.eq.Tensor, aten.eq.Scalar, aten.ne.Tensor, aten.ne.Scalar))


def compared_values(nodes: Sequence[Node]) -> set[Node]:
    """Those among a region's nodes, in topological order."""
    found: set[Node] = set()
    for node in reversed(nodes):
        if node in found or _compares(node):
            found.update(node.all_input_nodes)
    return {node for node in nodes if node in found and _is_reduced(node)}


def _compares(node: Node) -> bool:
    if node.target is aten.linalg_vector_norm.default:
        order = node.args[1] if len(node.args) > 1 else 2
        return isinstance(order, (int, float)) and math.isinf(order)
    return node.target in _EXTREMA or node.target in _EQUALITY


def _is_reduced(node: Node) -> bool:
    value = node.meta["val"]
    return isinstance(value, torch.Tensor) and from_torch(value.dtype) in REDUCED_FLOATING
