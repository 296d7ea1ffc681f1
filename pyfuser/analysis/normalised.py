"""Rows and columns that a definition normalises: it reduces axes, and reads the result again along
them.

Columns are those of an axis inside which another one lies.  Of rows, only those of several axes are
listed: a plan is made for rough sizes, whose product says little.

Asked before layouts are known, of the order of the axes in the definition.  It tells the target the
sizes (`SizeInfo.splits_columns`, `splits_rows`); an answer that a layout makes wrong costs speed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ..dtypes import size_in_bytes
from ..ir.exprs import BroadcastOp, Expr
from ..ir.fusion import Fusion
from ..ir.scalars import IntExpr, product
from ..ir.vals import TensorView, Val


@dataclass(frozen=True, slots=True)
class Normalised:
    """`length` elements of each of so many rows or columns are reduced, of some bytes each.

    `are_columns` if an axis that is kept lies inside one that is reduced, `are_rows` if several
    axes are reduced and the innermost one is among them.  Both may be true.
    """

    count: IntExpr
    length: IntExpr
    bytes_each: int
    are_columns: bool
    are_rows: bool


@lru_cache(maxsize=256)
def normalised(fusion: Fusion) -> tuple[Normalised, ...]:
    """The rows and columns whose reductions are broadcast, so that they may be read again.

    Computed once per fusion: every new plan asks.
    """
    reductions: dict[Val, set[Expr]] = {}  # by what depends on them
    broadcast: dict[Expr, None] = {}
    for expr in fusion.live_exprs():
        found = set().union(*(reductions.get(each, ()) for each in expr.inputs))
        if isinstance(expr, BroadcastOp):
            broadcast.update(dict.fromkeys(found))
        if expr.accumulates:
            found.add(expr)
        if found:
            reductions.update(dict.fromkeys(expr.outputs, found))
    made = map(_normalised, broadcast)
    return tuple(each for each in made if each.are_columns or each.are_rows)


def _normalised(reduction: Expr) -> Normalised:
    result = reduction.outputs[0]
    assert isinstance(result, TensorView)
    axes = result.domain.logical
    kinds = [axis.is_reduction for axis in axes if not axis.is_broadcast]
    return Normalised(
        product(axis.size for axis in axes if not axis.is_reduction),
        product(axis.size for axis in axes if axis.is_reduction),
        size_in_bytes(reduction.inputs[0].dtype),
        are_columns=True in kinds and not all(kinds[kinds.index(True) :]),
        are_rows=sum(kinds) > 1 and kinds[-1],
    )
