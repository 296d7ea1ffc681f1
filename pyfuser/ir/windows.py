"""Windows: where an axis of a slice, a flipped or a padded tensor reads its source."""

from __future__ import annotations

from dataclasses import dataclass

from .scalars import ONE, ZERO, Integer, IntExpr


@dataclass(frozen=True, slots=True, repr=False)
class Window:
    """Where one axis of a WindowOp reads: out[i] = source[offset + step * i], left <= i < stop.

    If `every` (a number) isn't 1, the source is spread, and the fill is between its elements too:
    out[left + every * k] = source[offset + step * k]. The first four fields may be negative.  Where
    nothing is filled, `left` is 0 and `stop` is the output's extent.
    """

    left: IntExpr
    stop: IntExpr
    offset: IntExpr
    step: IntExpr
    every: IntExpr = ONE

    @property
    def is_backward(self) -> bool:
        """True if the source is read from its end."""
        return isinstance(self.step, Integer) and self.step.value < 0

    def covers(self, extent: IntExpr) -> bool:
        """True if nothing is filled, neither around the source nor between its elements."""
        return self.left is ZERO and self.stop is extent and self.every is ONE

    def __str__(self) -> str:
        spread = "" if self.every is ONE else f" every {self.every}"
        return f"[{self.left}, {self.stop}){spread} from {self.offset} by {self.step}"

    __repr__ = __str__
