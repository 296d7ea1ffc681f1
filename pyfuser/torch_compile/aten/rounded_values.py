"""Half-precision values of a graph that its kernels read rounded, as torch does.

Between the ops of a kernel, half precision is held in float32.  That isn't enough where one reader
needs the number that torch has: a conversion, a comparison, the floor of it.  The others must read
the same, or `v - v.floor()` were negative where v is rounded up to a whole number, and its root NaN
(`_exactly_read_values`).  Nor is it enough where another graph computes with what is stored:

* The gradient of an extremum, or of a median, goes to the elements that equal it.  The backward
  compares the extremum that the forward has kept with elements that it computes again, from what
  the forward has stored.  If the forward's own elements came from the same values held in float32,
  none might equal the extremum, and the gradient would be 0 / 0 (`compared_values`).
* The gradient of a standard deviation divides by it.  If it is that of numbers less a mean, held in
  float32, and the backward computes these again from the rounded mean, they deviate by more than
  the deviation that was kept, and the gradient is any number (`_returned_values`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch.fx import Node

from ...dtypes import from_torch
from ..views import is_view, viewed
from .pointwise import compares_signs
from .tables import translation_of
from .translation import arguments

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


@dataclass(frozen=True, slots=True)
class RoundedValues:
    """The values of a graph that its kernels read rounded.

    read     wherever they are computed (`_exactly_read_values`)
    stored   where a kernel stores them
    """

    read: frozenset[Node]
    stored: frozenset[Node]

    @classmethod
    def of(cls, nodes: Sequence[Node], returned: Iterable[Node] = ()) -> RoundedValues:
        """Of a graph's nodes, or a part of them, in topological order.

        `returned` is what the forward of a training step returns.
        """
        stored = compared_values(nodes) | _returned_values(returned)
        return cls(frozenset(_exactly_read_values(nodes)), frozenset(stored))

    def within(self, outputs: Sequence[Node]) -> frozenset[Node]:
        """What is rounded in a kernel that stores `outputs`."""
        return self.read | self.stored.intersection(outputs)


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


def compared_values(nodes: Iterable[Node]) -> set[Node]:
    """What is on the way to a test for equality, of a graph's nodes in topological order.

    What compares them may be in another kernel, or a call of torch's library; so may be what is
    between, such as a view.
    """
    found: set[Node] = set()
    for node in reversed([*nodes]):
        if any(user in found or _compares(user) for user in node.users):
            found.add(node)
    return {node for node in found if _is_reduced(node)}


def _returned_values(results: Iterable[Node]) -> set[Node]:
    """What a graph returns, to its caller or for its backward, itself or as a view of it."""
    found: set[Node] = set()
    for node in results:
        found.add(node)
        while is_view(node) and (source := viewed(node)) is not None:
            found.add(node := source)
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
