"""Sizes that a definition forces to be equal, as classes with one size that stands for each.

Adding two tensors makes their sizes equal.  The pass that gives them one symbol asks for the
classes, and so does the verifier, for which such sizes count as one.
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


class EqualSizes:
    """What stands for any size, however it is written, given the pairs of equal ones."""

    def __init__(self, pairs: Iterable[tuple[IntExpr, IntExpr]]) -> None:
        self._symbols: dict[Symbol, IntExpr] = {}
        listed = list(pairs)
        classes = SizeClasses()
        for pair in listed:
            classes.join(*pair)
        for known in classes.replaced:
            if isinstance(known, Symbol):
                self._symbols[known] = classes.find(known)
        self._classes = SizeClasses()
        for a, b in listed:
            self._classes.join(substitute(a, self._symbols), substitute(b, self._symbols))

    def find(self, size: IntExpr) -> IntExpr:
        """The size that stands for this one and all that are equal to it."""
        return self._classes.find(substitute(size, self._symbols))
