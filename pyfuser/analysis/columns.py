"""Columns that a definition normalises: it reduces an axis inside which another one lies, and reads
the result again along the reduced axis.

Asked before layouts are known, of the order of the axes in the definition.  It tells the target the
sizes of the columns (`SizeInfo.splits_columns`); an answer that a layout makes wrong costs speed.
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
class Columns:
    """`length` elements of each column are reduced, `elements` in all, of some bytes each."""

    length: IntExpr
    elements: IntExpr
    bytes_each: int


@lru_cache(maxsize=256)
def normalised_columns(fusion: Fusion) -> tuple[Columns, ...]:
    """The columns whose reductions are broadcast, so that they may be read again.

    Computed once per fusion: every new plan asks.
    """
    reductions: dict[Val, set[Expr]] = {}  # by what depends on them
    broadcast: dict[Expr, None] = {}
    for expr in fusion.live_exprs():
        found = set().union(*(reductions.get(each, ()) for each in expr.inputs))
        if isinstance(expr, BroadcastOp):
            broadcast.update(dict.fromkeys(found))
        if expr.accumulates and _reduces_outer(expr):
            found.add(expr)
        if found:
            reductions.update(dict.fromkeys(expr.outputs, found))
    return tuple(map(_columns, broadcast))


def _reduces_outer(reduction: Expr) -> bool:
    """True if an axis that the reduction keeps comes after one that it reduces."""
    result = reduction.outputs[0]
    assert isinstance(result, TensorView)
    kinds = [axis.is_reduction for axis in result.domain.logical if not axis.is_broadcast]
    return True in kinds and not all(kinds[kinds.index(True) :])


def _columns(reduction: Expr) -> Columns:
    result = reduction.outputs[0]
    assert isinstance(result, TensorView)
    axes = result.domain.logical
    return Columns(
        product(axis.size for axis in axes if axis.is_reduction),
        product(axis.size for axis in axes),
        size_in_bytes(reduction.inputs[0].dtype),
    )
