"""Disjoint sets: which things were said to be one, and which of them stands for each set.

For loops that tensors share, axes that are one, equal sizes, nodes that touch.  Who stands for a
set is the caller's choice: `join` says which of two stays.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class DisjointSets(Generic[T]):
    """Sets of things; what was never joined is a set of its own."""

    def __init__(self) -> None:
        self._above: dict[T, T] = {}

    def find(self, item: T) -> T:
        """What stands for the set of an item."""
        above = self._above
        root = item
        while (up := above.get(root)) is not None:
            root = up
        while (up := above.get(item)) is not None:  # the next one finds it in one step
            above[item] = root
            item = up
        return root

    def join(self, kept: T, gone: T) -> None:
        """Makes two sets one, for which stands what stood for the set of `kept`."""
        kept, gone = self.find(kept), self.find(gone)
        if kept != gone:
            self._above[gone] = kept

    @property
    def joined(self) -> Iterable[T]:
        """The items that something else stands for."""
        return self._above.keys()
