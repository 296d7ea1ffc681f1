"""Repeated work: when a group of expensive operations is kept out of a kernel of more axes.

What has fewer axes than the tensors of its kernel is computed once for each row, or for each
element, of the others: a softplus of [rows] beside an exponential of [rows, 16] takes as long as
that.  On its own it is a small kernel, and a small tensor to read.  `groups` asks here before it
merges two groups; a group between a reduction and what uses its result again along the reduced
axes stays, since to keep it out would read everything twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from ..analysis.costs import is_expensive
from ..analysis.iteration_space import IterationSpace
from ..ir.scalars import IntExpr
from ..ir.vals import TensorView
from ..schedule.acceptance import Facts, SizeInfo


def has_repeated_work(facts: Facts, sizes: SizeInfo) -> bool:
    """True where one kernel for everything would repeat expensive operations."""
    space, axes = facts.space, facts.summary.axes
    small = [
        found
        for expr in facts.exprs
        if is_expensive(expr) and (found := space.axes(expr.tensor_outputs[0])) < axes
    ]
    if not small:
        return False
    _, inner = innermost(space, (t for e in facts.exprs for t in e.tensor_outputs))
    return any(repeats(few, axes, inner, sizes, space.extents) for few in small)


def innermost(space: IterationSpace, tensors: Iterable[TensorView]) -> tuple[int, int]:
    """(how many axes the tensor with most of them has, the number of its innermost in memory)."""
    found = (0, -1)
    for tensor in tensors:
        real = [axis for axis in tensor.domain.allocated if not axis.is_broadcast]
        if len(real) > found[0]:
            found = (len(real), space.number(real[-1]))
    return found


def repeats(
    few: AbstractSet[int],
    many: AbstractSet[int],
    inner: int,
    sizes: SizeInfo,
    extents: Sequence[IntExpr],
) -> str | None:
    """Why expensive operations on `few` of a kernel's axes take too long there; None when not."""
    once = sizes.elements(extents[n] for n in few)
    times = sizes.elements(extents[n] for n in many - few)
    if once is None or times is None:
        return None
    if sizes.target.may_repeat(once, times, inner in few):
        return None
    return f"expensive operations on {once} elements would be repeated {times} times"
