"""Sizes: from the sizes and numbers that aten arguments name to extents and scalars of a fusion.

A region's structure never holds a size: a number is looked up among the extents of the tensors seen
so far (equal numbers share), and what isn't found becomes an Int scalar input of the fusion whose
value the caller hands in.  Only 0 and 1 stay constants: they decide the structure.
Invariant: `values[i]` is what `inputs[i]` has to be given.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ...dtypes import DataType
from ...ir.fusion import Fusion
from ...ir.scalars import Integer, IntExpr
from ...ir.vals import Scalar

Size = int | torch.SymInt
Key = Any  # an int, or a sympy expression


def size_key(size: Size) -> Key:
    """What two equal sizes share: the number, or the symbolic expression.

    An expression that a guard of the graph holds at 1, such as that of a slice which broadcasts, is
    the number 1: the metadata that follows from it says so.
    """
    if isinstance(size, torch.SymInt):
        known = size.node.maybe_as_int()
        if known is None:
            return 1 if statically_known_true(size == 1) else size.node.expr
        return known
    return int(size)


def is_one(size: Size) -> bool:
    """True for a size that is 1 whatever the inputs."""
    return bool(size_key(size) == 1)


class Sizes:
    """The sizes that one fusion knows, and the scalars it asks for."""

    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion
        self.inputs: list[Scalar] = []
        self.values: list[Any] = []
        self._known: dict[Key, IntExpr] = {}
        self._entries: dict[IntExpr, Scalar] = {}
        self._numbers: dict[Key, Scalar] = {}

    def learn(self, size: Size, extent: IntExpr) -> None:
        """Remembers that an axis of this extent has this size; the first one counts."""
        self._known.setdefault(size_key(size), extent)

    def entry(self, size: Size) -> int | Scalar:
        """A size as the builders take it."""
        key = size_key(size)
        if isinstance(key, int) and key in (0, 1):
            return key
        extent = self._known.get(key)
        if extent is None:
            extent = self._known[key] = self.fusion.new_extent()
            self._entries[extent] = self._ask(size, DataType.Int, extent)
        entry = self._entries.get(extent)
        if entry is None:
            number = extent.value if isinstance(extent, Integer) else None
            entry = self.fusion.new_scalar(DataType.Int, constant=number, extent=extent)
            self._entries[extent] = entry
        return entry

    def number(self, value: torch.SymInt | torch.SymFloat) -> Scalar:
        """A symbolic number that needn't be a size: an index, a factor."""
        if isinstance(value, torch.SymInt) and size_key(value) in self._known:
            entry = self.entry(value)
            if isinstance(entry, Scalar):
                return entry
        key = value.node.expr
        if key not in self._numbers:
            dtype = DataType.Int if isinstance(value, torch.SymInt) else DataType.Double
            self._numbers[key] = self._ask(value, dtype, None)
        return self._numbers[key]

    def plain(self, value: int) -> Scalar:
        """A number of the program that isn't a size, as an input instead of a constant."""
        key = ("plain", value)
        if key not in self._numbers:
            self._numbers[key] = self._ask(value, DataType.Int, None)
        return self._numbers[key]

    def _ask(self, value: Any, dtype: DataType, extent: IntExpr | None) -> Scalar:
        scalar = self.fusion.new_scalar(dtype, extent=extent)
        self.inputs.append(scalar)
        self.values.append(value)
        return scalar
