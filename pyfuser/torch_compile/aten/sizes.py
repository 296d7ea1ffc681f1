"""Sizes: from the sizes and numbers in aten arguments to extents and scalars of a fusion.

A region's structure contains a size only if it is 0 or 1, or the length of short rows in memory,
which decides how a kernel reads them.  Any other number is looked up among the extents of the
tensors seen so far (equal numbers share), and one that isn't found becomes an Int scalar input of
the fusion, whose value the caller passes.

Invariant: `values[i]` is the value to pass for `inputs[i]`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ...dtypes import DataType
from ...ir.fusion import Fusion
from ...ir.scalars import Integer, IntExpr
from ...ir.vals import Scalar
from ..sizes import MOST_OF_SHORT_ROW

Size = int | torch.SymInt
Key = Any  # an int, or a sympy expression


def size_key(size: Size) -> Key:
    """The key of a size, common to equal sizes: the number, or the symbolic expression.

    An expression that a guard of the graph fixes to 1, such as that of a slice which broadcasts, is
    the number 1, because the metadata that depends on it assumes so.
    """
    if isinstance(size, torch.SymInt):
        known = size.node.maybe_as_int()
        if known is None:
            return 1 if statically_known_true(size == 1) else size.node.expr
        return known
    return int(size)


def short_row(value: torch.Tensor) -> list[int]:
    """The dimensions whose elements follow each other in memory, if they are known to be few.

    Innermost first: [5, 3] are a row of 15, of [9, 3] only the 3 are one.
    """
    found: list[int] = []
    elements = 1
    known = [
        (stride, dim)
        for dim, (size, stride) in enumerate(zip(value.shape, value.stride(), strict=True))
        if isinstance(size, int) and isinstance(stride, int) and size > 1
    ]
    for stride, dim in sorted(known):
        size = value.shape[dim]
        if stride != elements or elements * size > MOST_OF_SHORT_ROW:
            break
        found.append(dim)
        elements *= size
    return found


def is_one(size: Size) -> bool:
    """True for a size that is 1 for all inputs."""
    return bool(size_key(size) == 1)


class Sizes:
    """The sizes that one fusion knows, and the scalars that it needs as inputs."""

    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion
        self.inputs: list[Scalar] = []
        self.values: list[Any] = []
        self._known: dict[Key, IntExpr] = {}
        self._entries: dict[IntExpr, Scalar] = {}
        self._numbers: dict[Key, Scalar] = {}

    def learn(self, size: Size, extent: IntExpr) -> None:
        """Records that an axis of this extent has this size; a number counts, or the first one."""
        if isinstance(extent, Integer):
            self._known[size_key(size)] = extent
        else:
            self._known.setdefault(size_key(size), extent)

    def entry(self, size: Size) -> int | Scalar:
        """A size for the builders."""
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
        """A symbolic number that need not be a size: an index, a factor."""
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
