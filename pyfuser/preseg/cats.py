"""Cats as passes see them: a chain of pads, each of which is the fill of the next one.

T5 = pad(T3 [3], 0.0, [0, 3) from 0)  ->  T6 = pad(T4 [5], T5, [3, 8) from -3)     cat(T3, T4)
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.exprs import Expr, WindowOp
from ..ir.scalars import ONE, ZERO, IntExpr
from ..ir.vals import Scalar, TensorView, Val
from ..ir.windows import Window

Column = tuple[Val, ...]


@dataclass(frozen=True, slots=True)
class Parts:
    """The values that a cat joins along a dimension."""

    tensors: Column
    dim: int


def parts_of(expr: Expr) -> Parts | None:
    """What a chain of pads that ends with the expression joins; None if it isn't a cat."""
    if not isinstance(expr, WindowOp):
        return None
    found: list[Val] = []
    current: Val = expr.output
    assert isinstance(current, TensorView)
    dims = [d for d, window in enumerate(expr.windows) if window is not None]
    if len(expr.inputs) != 2 or len(dims) != 1:
        return None
    (dim,) = dims
    end: IntExpr = current.axes[dim].size
    while isinstance(current, TensorView) and isinstance(current.expr, WindowOp):
        pad = current.expr
        places = [d for d, window in enumerate(pad.windows) if window is not None]
        window = pad.windows[dim] if places == [dim] and len(pad.inputs) == 2 else None
        if window is None or not _is_side_by_side(window, end):
            return None
        found.insert(0, pad.inputs[0])
        end, current = window.left, pad.inputs[1]
    is_whole = end is ZERO and len(found) > 1 and isinstance(current, Scalar)
    return Parts(tuple(found), dim) if is_whole else None


def _is_side_by_side(window: Window, end: IntExpr) -> bool:
    """True if the window shows its source from the first element on, and stops at `end`."""
    is_plain = window.step is ONE and window.every is ONE
    return is_plain and window.stop is end and window.offset is window.left * -1
