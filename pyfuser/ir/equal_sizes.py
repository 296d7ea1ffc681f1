"""Sizes that a definition forces to be equal, as classes with one size that stands for each.

Adding two tensors makes their sizes equal.  Loops can be shared only between equal extents, so
lowering puts `representatives` in place of symbols; the pass that gives such sizes one symbol asks
for the classes, and for the verifier they count as one.
"""

from __future__ import annotations

from collections.abc import Iterable

from .disjoint_sets import DisjointSets
from .scalar_queries import substitute
from .scalars import IntExpr, Symbol


def _rank(extent: IntExpr) -> tuple[bool, bool, int, str]:
    """Constants first, then i0, i1, ..., i10, then what is computed."""
    is_computed = not isinstance(extent, Symbol)
    return (not extent.is_constant, is_computed, len(str(extent)), str(extent))


class SizeClasses:
    """Sizes that are equal; the first by rank stands for each class."""

    def __init__(self) -> None:
        self._sets: DisjointSets[IntExpr] = DisjointSets()

    def find(self, extent: IntExpr) -> IntExpr:
        """What stands for a size."""
        return self._sets.find(extent)

    @property
    def replaced(self) -> list[IntExpr]:
        """The sizes that another one stands for."""
        return list(self._sets.joined)

    def join(self, a: IntExpr, b: IntExpr) -> None:
        """Makes two sizes equal.

        Two different constants can't be: the pair stays and fails when it is bound.
        """
        first, second = sorted((self.find(a), self.find(b)), key=_rank)
        if not second.is_constant:
            self._sets.join(first, second)


def representatives(pairs: Iterable[tuple[IntExpr, IntExpr]]) -> dict[Symbol, IntExpr]:
    """Symbol -> what stands for it; symbols that stand for themselves are absent.

    A constant stands for all symbols that are equal to it, and what is computed from other symbols
    for one that is equal to that.
    """
    chosen: dict[Symbol, IntExpr] = {}

    def resolve(expr: IntExpr) -> IntExpr:
        while True:
            replaced = substitute(expr, chosen)
            if replaced is expr:
                return expr
            expr = replaced

    for a, b in pairs:
        keep, drop = sorted((resolve(a), resolve(b)), key=_rank)
        if isinstance(keep, Symbol) and not isinstance(drop, Symbol):
            keep, drop = drop, keep  # a tensor as long as two others together
        if keep is not drop and isinstance(drop, Symbol) and drop not in keep.symbols:
            chosen[drop] = keep
    return {symbol: resolve(symbol) for symbol in chosen}


class EqualSizes:
    """What stands for any size, however it is written, given the pairs of equal ones."""

    def __init__(self, pairs: Iterable[tuple[IntExpr, IntExpr]]) -> None:
        listed = list(pairs)
        self._symbols = representatives(listed)
        self._classes = SizeClasses()
        for a, b in listed:
            self._classes.join(substitute(a, self._symbols), substitute(b, self._symbols))

    def find(self, size: IntExpr) -> IntExpr:
        """The size that stands for this one and all that are equal to it."""
        return self._classes.find(substitute(size, self._symbols))
