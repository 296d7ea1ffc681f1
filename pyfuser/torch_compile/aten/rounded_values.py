"""Half-precision values of a graph that its kernels read rounded, as torch does.

Between the ops of a kernel, half precision is held in float32.  That isn't enough where one reader
needs the number that torch has: a conversion, a comparison, the floor of it.  The others must read
the same, or `v - v.floor()` were negative where v is rounded up to a whole number, and its root NaN
(`_exactly_read_values`).

Nor is it enough where the backward computes with what the forward has stored (`_returned_values`).
The gradient of a standard deviation divides by it.  If it is that of numbers less a mean, held in
float32, and the backward computes these again from the rounded mean, they deviate by more than the
deviation that was kept, and the gradient is any number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch.fx import Node

from ...dtypes import from_torch
from ..views import is_view, viewed
from .pointwise import compares_signs
from .tables import translation_of
from .translation import arguments


def rounded_values(nodes: Sequence[Node], returned: Iterable[Node] = ()) -> set[Node]:
    """The values that kernels read rounded, of a graph's nodes in topological order, or a part's.

    `returned` is what the forward of a training step returns.
    """
    return _exactly_read_values(nodes) | _returned_values(returned)


def _exactly_read_values(nodes: Sequence[Node]) -> set[Node]:
    """What is read rounded, itself or as a view or a selection of it."""
    found: set[Node] = set()
    for node in reversed(nodes):
        if _is_reduced(node) and any(_reads_exactly(user, node, found) for user in node.users):
            found.add(node)
    return found


def _reads_exactly(user: Node, node: Node, found: set[Node]) -> bool:
    """True if a reader, or what reads its result (if it is in `found`), takes a value rounded."""
    row = translation_of(user)
    if row is None:
        return False
    if row.keeps_values and user in found:
        return True
    if not row.exact:
        return False
    given = arguments(user)
    operands = [given[at] for at in row.exact]
    return node in operands and not compares_signs(from_torch(node.meta["val"].dtype), *operands)


def _returned_values(results: Iterable[Node]) -> set[Node]:
    """What a graph returns, to its caller or for its backward, itself or as a view of it."""
    found: set[Node] = set()
    for node in results:
        found.add(node)
        while is_view(node) and (source := viewed(node)) is not None:
            found.add(node := source)
    return {node for node in found if _is_reduced(node)}


def _is_reduced(node: Node) -> bool:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return False
    return value.dtype.is_floating_point and value.dtype.itemsize < torch.float32.itemsize
