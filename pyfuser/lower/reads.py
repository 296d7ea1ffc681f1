"""How the statement of a read or write accesses memory at computed positions.

A source is a parameter of the kernel, so any of its elements can be addressed: a window's element
is at `offset + step * i` of its axis, a gather's where the index points.  A window that is filled
around, or spread, is read under a condition.  `indexing` gives the index of each axis of the
output; `memory` asks this module for the operand.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ScheduleError, expected
from ..ir.bounds import proves_at_most
from ..ir.domains import IterDomain
from ..ir.exprs import GatherOp, ReadOp, WindowOp, WriteOp
from ..ir.kernel import Less, Predicate
from ..ir.scalars import (
    ONE,
    ZERO,
    FloorDiv,
    Integer,
    IntExpr,
    ceil_div,
    floor_div,
    mod,
    terms_of,
)
from ..ir.vals import TensorView
from ..ir.windows import Window
from .indexing import Indexer, Indices


def check_source(expr: ReadOp, inputs: Sequence[object]) -> None:
    """Raises ScheduleError unless the source is in memory before the kernel runs."""
    source = expr.source
    if source is not None and source not in inputs:
        what = f"the source of {expr.name}, T{source.name}, to be an input"
        raise ScheduleError(expected("schedule", what, "a tensor that the kernel computes"))


def read_indices(indexer: Indexer, output: TensorView) -> list[IntExpr]:
    """The index of each axis of a read's output; 0 along broadcast axes."""
    indices, _ = indexer.indices(output)
    roots = output.domain.root_or_logical
    return [ZERO if axis.is_broadcast else indices[axis] for axis in roots]


def window_axes(expr: WindowOp, source: TensorView, positions: list[IntExpr]) -> Indices:
    """The index of each axis of the source."""
    found: dict[IterDomain, IntExpr] = {}
    for axis, window, i in zip(source.axes, expr.windows, positions, strict=True):
        if window is not None and window.every is not ONE:
            i = floor_div(_raised(window, i), window.every) - _lift(window)
        found[axis] = i if window is None else window.offset + window.step * i
    return found


def inside(expr: WindowOp, output: TensorView, positions: list[IntExpr]) -> Predicate:
    """The condition for being inside the windows, without parts that always hold."""
    conditions: list[Less] = []
    if len(expr.inputs) == 1:
        return ()
    for axis, window, i in zip(output.axes, expr.windows, positions, strict=True):
        if window is not None:
            conditions += _bounds(window, axis.size, i)
    return tuple(dict.fromkeys(conditions))


def _bounds(window: Window, extent: IntExpr, i: IntExpr) -> list[Less]:
    found = []
    if not proves_at_most(window.left, ZERO):
        found.append(_at_least(i, window.left))
    if not proves_at_most(extent, window.stop):
        found.append(_below(i, window.stop))
    if window.every is not ONE:
        found.append(Less(mod(_raised(window, i), window.every), ONE))
    return found


def _raised(window: Window, i: IntExpr) -> IntExpr:
    """i - left plus a multiple of `every`, so that no negative number is divided."""
    return i - window.left + _lift(window) * window.every


def _lift(window: Window) -> IntExpr:
    """At least left / every."""
    is_known = isinstance(window.left, Integer)
    return ceil_div(window.left, window.every) if is_known else window.left


def _at_least(i: IntExpr, bound: IntExpr) -> Less:
    """i >= bound; the quotient of a merged axis is compared before it is divided."""
    divided, by = _quotient(i)
    return Less(bound * by, divided + 1)


def _below(i: IntExpr, bound: IntExpr) -> Less:
    divided, by = _quotient(i)
    return Less(divided, bound * by)


def _quotient(i: IntExpr) -> tuple[IntExpr, IntExpr]:
    """(a, b) if i is a // b, also if multiples of b were divided before; (i, 1) for others."""
    for atoms, coefficient in terms_of(i):
        match atoms:
            case (FloorDiv() as divided,) if coefficient == 1:
                return divided.a + (i - divided) * divided.b, divided.b
    return i, ONE


def gather_axes(expr: GatherOp, source: TensorView, positions: list[IntExpr]) -> Indices:
    """The index of each axis of the source; 0 for the one that is indexed."""
    pairs = zip(source.axes, expr.source_axes, strict=True)
    return {axis: ZERO if place is None else positions[place] for axis, place in pairs}


def gather_predicate(expr: GatherOp, output: TensorView) -> Predicate:
    """The conditions on sizes under which a gather, at a valid index, reads inside its source.

    An index may be shorter than the source along other axes, but not longer.
    """
    source = expr.source
    assert source is not None
    conditions = []
    roots = output.domain.root_or_logical
    for axis, place in zip(source.axes, expr.source_axes, strict=True):
        if place is None or axis.extent is ONE:
            continue
        if not proves_at_most(roots[place].size, axis.extent):
            conditions.append(Less(roots[place].size, axis.extent + 1))
    return tuple(dict.fromkeys(conditions))


def gather_inside(expr: GatherOp, by_user: bool) -> Predicate:
    """That the indexed axis has elements: a scheduler accepts no other source, a user may."""
    assert expr.source is not None
    size = expr.source.axes[expr.dim].size
    return (Less(ZERO, size),) if by_user and not isinstance(size, Integer) else ()


def written_axes(expr: WriteOp, positions: list[IntExpr]) -> Indices:
    """The index of each axis of the target; 0 for the one that is indexed."""
    pairs = zip(expr.target.axes, expr.base_axes, strict=True)
    return {axis: ZERO if place is None else positions[place] for axis, place in pairs}


def write_predicate(expr: WriteOp, output: TensorView) -> Predicate:
    """The conditions on sizes under which a write, at a valid index, is inside its target."""
    conditions, roots = [], output.domain.root_or_logical
    for axis, place in zip(expr.target.axes, expr.base_axes, strict=True):
        if place is not None and not proves_at_most(roots[place].size, axis.size):
            conditions.append(Less(roots[place].size, axis.size + 1))
    return tuple(dict.fromkeys(conditions))
