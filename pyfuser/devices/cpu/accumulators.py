"""Which accumulators still have the value that they began with.

    T5[0..16] = identity of max
    T5[0..16] max= x                ->     T5[0..16] = x

LLVM removes such a first step for integers, but not for floating maxima: it doesn't know that one
with minus infinity is the other operand, NaN or not.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...ir.kernel import Access, Buffer
from ...ir.scalars import IntExpr
from ...ir.schedule import MemoryType
from .lanes import Lanes
from .scopes import Scope, Scopes

# The index, the lanes, and the scope of an accumulator's elements.
_Place = tuple[IntExpr, tuple[IntExpr, int, bool] | None, Scope]

# What combines with its identity to the other operand, whatever that is: a sum of -0 alone is 0.
_OPS = ("max", "min")


class FreshAccumulators:
    """Local accumulators that were initialised in an open scope, and not written since."""

    def __init__(self, scopes: Scopes) -> None:
        self._scopes = scopes
        self._found: dict[Buffer, _Place] = {}

    def initialised(self, op: str, accesses: Iterable[Access], lanes: Lanes | None) -> None:
        """Notes that all lanes were given the identity of a reduction."""
        for access in accesses:
            if op in _OPS and access.buffer.memory is MemoryType.local:
                self._found[access.buffer] = self._place(access, lanes)

    def written(self, accesses: Iterable[Access]) -> None:
        """Notes that they may have other values."""
        for access in accesses:
            self._found.pop(access.buffer, None)

    def has(self, access: Access, lanes: Lanes | None) -> bool:
        """True if all lanes have the identity; code in a loop runs again, when they don't."""
        return self._found.get(access.buffer) == self._place(access, lanes)

    def _place(self, access: Access, lanes: Lanes | None) -> _Place:
        in_lanes = None if lanes is None else (lanes.base, lanes.count, lanes.mask is None)
        return self._scopes.resolve(access.index), in_lanes, self._scopes.open[-1]
