"""Disjoint sets: items that were declared to be the same, and a representative of each set.

Used for loops that tensors share, axes that are the same, equal sizes, and connected nodes.  The
caller chooses the representative: the first argument of `join` keeps its own.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class DisjointSets(Generic[T]):
    """Disjoint sets of items; an item that was never joined is a set of its own."""

    def __init__(self) -> None:
        self._above: dict[T, T] = {}

    def find(self, item: T) -> T:
        """The representative of an item's set."""
        above = self._above
        root = above.get(item)
        if root is None:
            return item
        if root not in above:
            return root
        while (up := above.get(root)) is not None:
            root = up
        while (up := above.get(item)) is not None:  # the next call finds it in one step
            above[item] = root
            item = up
        return root

    def join(self, kept: T, gone: T) -> None:
        """Joins two sets; the representative of the set of `kept` represents both."""
        self.link(self.find(kept), self.find(gone))

    def link(self, kept: T, gone: T) -> None:
        """Joins two sets, given their representatives."""
        if kept != gone:
            self._above[gone] = kept

    @property
    def joined(self) -> Iterable[T]:
        """The items that another item represents."""
        return self._above.keys()
