"""Repeated work: when to keep a group of expensive operations out of a kernel with more axes.

A tensor with fewer axes than the other tensors of its kernel is recomputed for each of their rows
or elements: a softplus of [rows] beside an exponential of [rows, 16] takes as long as the
exponential.  On its own it is a small kernel, and a small tensor to read.  `groups` checks this
before it merges two groups.  A group between a reduction and its uses along the reduced axes stays,
because keeping it out would read everything twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from ..analysis.costs import is_expensive, is_root
from ..analysis.iteration_space import IterationSpace
from ..analysis.part_axes import shares_parts
from ..ir.exprs import Expr
from ..ir.scalars import IntExpr
from ..ir.vals import TensorView
from ..schedule.facts import Facts
from ..schedule.size_info import SizeInfo


def has_repeated_work(facts: Facts, sizes: SizeInfo) -> bool:
    """True if one kernel for everything would repeat expensive operations."""
    is_pointwise = not facts.summary.signatures
    return repeats_any(
        facts.exprs, facts.exprs, facts.summary.axes, facts.space, sizes, is_pointwise
    )


def repeats_any(
    some: Iterable[Expr],
    exprs: Sequence[Expr],
    axes: AbstractSet[int],
    space: IterationSpace,
    sizes: SizeInfo,
    is_pointwise: bool = False,
) -> bool:
    """True if a kernel of expressions with these axes would repeat expensive ones, or roots, among
    `some`.
    """
    small = [
        (found, is_root(expr))
        for expr in some
        if (is_expensive(expr) or is_root(expr))
        and (found := space.axes(expr.tensor_outputs[0])) < axes
    ]
    if not small:
        return False
    tensors = (t for e in exprs for t in (*e.aligned_inputs, *e.tensor_outputs))
    inner = innermost(space, tensors).axis
    return any(
        repeats(few, axes, inner, sizes, space.extents, are_roots, is_pointwise)
        for few, are_roots in small
    )


class Innermost(NamedTuple):
    """The number of the axis that is innermost in the memory of the tensor with most axes (`rank`).

    Of tensors with as many, an input counts: the memory order of others isn't chosen yet.
    """

    rank: int = 0
    is_input: bool = False
    axis: int = -1


def innermost(space: IterationSpace, tensors: Iterable[TensorView]) -> Innermost:
    """The innermost axis in memory of these tensors."""
    found = Innermost()
    for tensor in tensors:
        real = [axis for axis in tensor.domain.allocated if not axis.is_broadcast]
        is_input = tensor.expr is None
        if real and (len(real), is_input) > found[:2]:
            found = Innermost(len(real), is_input, space.number(real[-1]))
    return found


def repeats(
    few: AbstractSet[int],
    many: AbstractSet[int],
    inner: int,
    sizes: SizeInfo,
    extents: Sequence[IntExpr],
    are_roots: bool,
    is_pointwise: bool,
) -> str | None:
    """Why expensive operations on `few` of a kernel's axes take too long there, or None."""
    if is_pointwise and sizes.target.shares_parts and shares_parts(few, many, extents):
        return None
    once = sizes.elements(extents[n] for n in few)
    times = sizes.elements(extents[n] for n in many - few)
    if once is None or times is None:
        return None
    if sizes.target.may_repeat(once, times, inner in few, are_roots):
        return None
    return f"expensive operations on {once} elements would be repeated {times} times"
