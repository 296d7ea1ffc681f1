"""Rows and columns that a definition normalises: it reduces axes, and reads the result again along
them; and rows whose parts it reduces before their results.

Columns are those of an axis inside which another one lies.  Of rows, only those of several axes are
listed: a plan is made for rough sizes, whose product says little.

Asked before layouts are known, of the order of the axes in the definition.  It tells the target the
sizes (`SizeInfo.splits_columns`, `splits_rows`, `nests_rows`); an answer that a layout makes wrong
costs speed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ..dtypes import size_in_bytes
from ..ir.domains import IterDomain
from ..ir.exprs import Expr
from ..ir.fusion import Fusion
from ..ir.scalars import IntExpr, product
from ..ir.vals import TensorView, Val


@dataclass(frozen=True, slots=True)
class Normalised:
    """`length` elements of each of so many rows or columns are reduced, of some bytes each.

    `groups` is the product of the kept axes outside the first reduced one: a task can take columns
    of one group.  `are_columns` if an axis that is kept lies inside one that is reduced, `are_rows`
    if several axes are reduced and the innermost one is among them.  Both may be true.
    """

    count: IntExpr
    length: IntExpr
    groups: IntExpr
    bytes_each: int
    are_columns: bool
    are_rows: bool


@dataclass(frozen=True, slots=True)
class Nested:
    """So many rows, of `elements` in all, whose parts of length `part` are reduced first."""

    rows: IntExpr
    elements: IntExpr
    part: IntExpr
    bytes_each: int


@lru_cache(maxsize=256)
def normalised(fusion: Fusion) -> tuple[Normalised, ...]:
    """The rows and columns whose reductions are used along more axes, so that they may be read
    again.  Computed once per fusion: every new plan asks.
    """
    reductions: dict[Val, set[Expr]] = {}  # by what depends on them
    broadcast: dict[Expr, None] = {}
    for expr in fusion.live_exprs():
        found = set().union(*(reductions.get(each, ()) for each in expr.inputs))
        # An axis that keeps a reduction's place has one element.
        rank = max((made.concrete_rank for made in expr.tensor_outputs), default=0)
        for tensor in expr.tensor_inputs if found else ():
            if tensor.concrete_rank < rank:
                broadcast.update(dict.fromkeys(reductions.get(tensor, ())))
        if expr.accumulates:
            found.add(expr)
        if found:
            reductions.update(dict.fromkeys(expr.outputs, found))
    made = map(_normalised, broadcast)
    return tuple(each for each in made if each.are_columns or each.are_rows)


@lru_cache(maxsize=256)
def nested(fusion: Fusion) -> tuple[Nested, ...]:
    """The reductions along the innermost axis with others, along it, of nothing but their results,
    which are used again along all axes: there one kernel reads the rows from the caches.

    Computed once per fusion.
    """
    found: dict[Nested, None] = {}
    before: dict[Val, frozenset[Expr]] = {}  # the first reductions that a value follows from
    after: dict[Val, frozenset[tuple[Expr, Expr]]] = {}  # and those of both
    for expr in fusion.live_exprs():
        firsts = frozenset[Expr]().union(*(before.get(each, ()) for each in expr.inputs))
        pairs = frozenset[tuple[Expr, Expr]]().union(*(after.get(v, ()) for v in expr.inputs))
        rank = max((made.concrete_rank for made in expr.tensor_outputs), default=0)
        found |= {_nested(*pair): None for pair in pairs if rank >= len(_axes(pair[0]))}
        if expr.accumulates and firsts:
            pairs |= {(first, expr) for first in firsts if _is_nested(first, expr)}
        elif expr.accumulates and _is_inner(expr):
            firsts = frozenset([expr])
        if firsts:
            before.update(dict.fromkeys(expr.outputs, firsts))
        if pairs:
            after.update(dict.fromkeys(expr.outputs, pairs))
    return tuple(found)


def _is_nested(first: Expr, then: Expr) -> bool:
    """True if a reduction is of some of the axes that the first keeps, the innermost among them."""
    kept = sum(not axis.is_reduction for axis in _axes(first))
    return _is_inner(then) and len(_axes(then)) == kept


def _nested(first: Expr, then: Expr) -> Nested:
    return Nested(
        _size(then, is_reduced=False),
        product(axis.size for axis in _axes(first)),
        _size(first, is_reduced=True),
        size_in_bytes(first.inputs[0].dtype),
    )


def _axes(reduction: Expr) -> list[IterDomain]:
    """The axes of what is reduced, without those of one element."""
    result = reduction.outputs[0]
    assert isinstance(result, TensorView)
    return [axis for axis in result.domain.logical if not axis.is_broadcast]


def _is_inner(reduction: Expr) -> bool:
    axes = _axes(reduction)
    return bool(axes) and axes[-1].is_reduction


def _size(reduction: Expr, is_reduced: bool) -> IntExpr:
    """The product of the axes that are reduced, or kept."""
    return product(axis.size for axis in _axes(reduction) if axis.is_reduction == is_reduced)


def _normalised(reduction: Expr) -> Normalised:
    axes = _axes(reduction)
    kinds = [axis.is_reduction for axis in axes]
    first = kinds.index(True)  # a reduction of nothing but axes of one element is a squeeze
    return Normalised(
        _size(reduction, is_reduced=False),
        _size(reduction, is_reduced=True),
        product(axis.size for axis in axes[:first]),
        size_in_bytes(reduction.inputs[0].dtype),
        are_columns=not all(kinds[first:]),
        are_rows=sum(kinds) > 1 and kinds[-1],
    )
