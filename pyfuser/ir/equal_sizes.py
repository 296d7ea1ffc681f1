"""Sizes that a definition forces to be equal, as classes with one representative each.

Adding two tensors makes their sizes equal.  Loops can be shared only between equal extents, so
lowering replaces symbols by their `representatives`.  The pass that gives equal sizes one symbol
uses the classes, and so does the verifier, which treats equal sizes as one.
"""

from __future__ import annotations

from collections.abc import Iterable

from .disjoint_sets import DisjointSets
from .scalar_queries import substitute
from .scalars import IntExpr, Symbol


def _rank(extent: IntExpr) -> tuple[bool, bool, int, str]:
    """Constants first, then i0, i1, ..., i10, then computed sizes."""
    is_computed = not isinstance(extent, Symbol)
    return (not extent.is_constant, is_computed, len(str(extent)), str(extent))


class SizeClasses:
    """Classes of equal sizes; the first by rank represents its class."""

    def __init__(self) -> None:
        self._sets: DisjointSets[IntExpr] = DisjointSets()

    def find(self, extent: IntExpr) -> IntExpr:
        """The representative of a size."""
        return self._sets.find(extent)

    @property
    def replaced(self) -> list[IntExpr]:
        """The sizes that another one represents."""
        return list(self._sets.joined)

    def join(self, a: IntExpr, b: IntExpr) -> None:
        """Makes two sizes equal.

        Two different constants can't be equal: the pair stays, and the check fails at run time.
        """
        first, second = sorted((self.find(a), self.find(b)), key=_rank)
        if not second.is_constant:
            self._sets.join(first, second)


def representatives(pairs: Iterable[tuple[IntExpr, IntExpr]]) -> dict[Symbol, IntExpr]:
    """Symbol -> its representative; symbols that represent themselves are absent.

    A constant represents all symbols equal to it; an expression of other symbols represents a
    symbol equal to it.
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
    """The representative of any size, however it is written, given the pairs of equal sizes."""

    def __init__(self, pairs: Iterable[tuple[IntExpr, IntExpr]]) -> None:
        listed = list(pairs)
        self._symbols = representatives(listed)
        self._classes = SizeClasses()
        for a, b in listed:
            self._classes.join(substitute(a, self._symbols), substitute(b, self._symbols))

    def find(self, size: IntExpr) -> IntExpr:
        """The size that represents this one and all sizes equal to it."""
        return self._classes.find(substitute(size, self._symbols))
