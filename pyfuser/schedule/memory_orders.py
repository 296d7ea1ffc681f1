"""The order of a tensor's axes in memory, and what reshapes make of it.

A reshape computes nothing: what it reads lies in memory in the order of its results' axes too, as
long as it merges only axes that are one range there.  So two axes that a reshape makes may be
merged in a loop if they are neighbours in that order, and no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..analysis.iteration_space import Step


@dataclass(frozen=True, slots=True)
class MemoryOrder:
    """axes        axis numbers, outermost first, without broadcasts
    contiguous  those that form one range with the next one inside, or have stride 1
    repeated    those of stride 0, with which others form no range
    windowed    those read through a window: no range with the one outside
    stepped     those read in steps: no range with the one inside
    """

    axes: tuple[int, ...]
    contiguous: frozenset[int] = frozenset()
    repeated: frozenset[int] = frozenset()
    windowed: frozenset[int] = frozenset()
    stepped: frozenset[int] = frozenset()

    def has(self, *axes: int) -> bool:
        """True if all of these axes are among its own."""
        return all(axis in self.axes for axis in axes)

    def merges(self, outer: int, inner: int) -> bool:
        """True if two of its axes are one range in memory."""
        if inner in self.windowed or outer in self.stepped:
            return False
        if outer in self.repeated or inner in self.repeated:
            return outer in self.repeated and inner in self.repeated
        is_next = self.axes.index(inner) == self.axes.index(outer) + 1
        return outer in self.contiguous and is_next

    def runs_along(self, axis: int) -> bool:
        """True if an axis is innermost and without gaps."""
        return self.axes[-1:] == (axis,) and axis in self.contiguous and axis not in self.stepped

    def merged(self, outer: int, inner: int, axis: int) -> MemoryOrder | None:
        """With one axis in place of two; None if these aren't neighbours that are one range."""
        place = self.axes.index(outer) if outer in self.axes else -1
        if self.axes[place : place + 2] != (outer, inner) or not self.merges(outer, inner):
            return None
        return MemoryOrder(
            (*self.axes[:place], axis, *self.axes[place + 2 :]),
            _renamed(self.contiguous - {outer}, {inner: (axis,)}),
            _renamed(self.repeated - {outer}, {inner: (axis,)}),
            _renamed(self.windowed, {outer: (axis,)}),
            _renamed(self.stepped, {inner: (axis,)}),
        )

    def split(self, axis: int, outer: int, inner: int) -> MemoryOrder | None:
        """With two axes in place of one; None if it isn't among its own."""
        if not self.has(axis):
            return None
        place = self.axes.index(axis)
        is_range = () if axis in self.repeated else (outer,)
        return MemoryOrder(
            (*self.axes[:place], outer, inner, *self.axes[place + 1 :]),
            _renamed(self.contiguous, {axis: (inner,)}).union(is_range),
            _renamed(self.repeated, {axis: (outer, inner)}),
            _renamed(self.windowed, {axis: (outer,)}),
            _renamed(self.stepped, {axis: (inner,)}),
        )

    def reshaped(self, steps: Iterable[Step]) -> Iterator[MemoryOrder]:
        """The orders after each step of reshapes that it can take, in the steps' order."""
        order = self
        for step in steps:
            match step.inputs, step.outputs:
                case (outer, inner), (axis,):
                    made = order.merged(outer, inner, axis)
                case (axis,), (outer, inner):
                    made = order.split(axis, outer, inner)
                case _:  # one of the axes is a broadcast
                    made = None
            if made is not None:
                order = made
                yield made


def _renamed(axes: frozenset[int], names: dict[int, tuple[int, ...]]) -> frozenset[int]:
    return frozenset(name for axis in axes for name in names.get(axis, (axis,)))


def backwards(steps: Iterable[Step]) -> list[Step]:
    """The steps that undo these, the last one first."""
    return [Step(each.index, each.outputs, each.inputs) for each in reversed([*steps])]
