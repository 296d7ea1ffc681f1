"""Sizes that a definition forces to be equal, as classes with one representative each.

Adding two tensors makes their sizes equal.  The pass that gives equal sizes one symbol uses these
classes, and so does the verifier, which treats equal sizes as one.
"""

from __future__ import annotations

from collections.abc import Iterable

from .scalar_queries import substitute
from .scalars import IntExpr, Symbol


def _rank(extent: IntExpr) -> tuple[bool, bool, int, str]:
    """Constants first, then i0, i1, ..., i10, then computed sizes."""
    is_computed = not isinstance(extent, Symbol)
    return (not extent.is_constant, is_computed, len(str(extent)), str(extent))


class SizeClasses:
    """Classes of equal sizes; the first by rank represents its class."""

    def __init__(self) -> None:
        self.parent: dict[IntExpr, IntExpr] = {}

    def find(self, extent: IntExpr) -> IntExpr:
        """The representative of a size."""
        root = extent
        while (up := self.parent.get(root, root)) is not root:
            root = up
        while extent is not root:
            self.parent[extent], extent = root, self.parent[extent]
        return root

    def join(self, a: IntExpr, b: IntExpr) -> None:
        """Makes two sizes equal.

        Two different constants can't be equal: the pair stays, and the check fails at run time.
        """
        first, second = sorted((self.find(a), self.find(b)), key=_rank)
        if first is not second and not second.is_constant:
            self.parent[second] = first


class EqualSizes:
    """The representative of any size, however it is written, given the pairs of equal sizes."""

    def __init__(self, pairs: Iterable[tuple[IntExpr, IntExpr]]) -> None:
        self._symbols: dict[Symbol, IntExpr] = {}
        listed = list(pairs)
        classes = SizeClasses()
        for pair in listed:
            classes.join(*pair)
        for known in list(classes.parent):
            if isinstance(known, Symbol):
                self._symbols[known] = classes.find(known)
        self._classes = SizeClasses()
        for a, b in listed:
            self._classes.join(substitute(a, self._symbols), substitute(b, self._symbols))

    def find(self, size: IntExpr) -> IntExpr:
        """The size that represents this one and all sizes equal to it."""
        return self._classes.find(substitute(size, self._symbols))
