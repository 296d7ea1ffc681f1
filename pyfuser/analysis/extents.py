"""Which symbolic sizes a definition forces to be equal, and how long loops over axes are.

Adding two tensors makes their sizes equal; one symbol then represents the whole class, and a
constant represents all symbols equal to it.  Loops can be shared only between equal extents, so
this runs before anything that compares extents.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..ir.domains import IterDomain, Merge, Split, history
from ..ir.scalar_queries import substitute
from ..ir.scalars import ONE, Integer, IntExpr, Symbol, ceil_div
from ..ir.schedule import ScheduledFusion
from ..ir.vals import TensorView


def _preference(expr: IntExpr) -> tuple[int, int, str]:
    kind = 0 if isinstance(expr, Integer) else 1 if isinstance(expr, Symbol) else 2
    return kind, len(str(expr)), str(expr)


def representatives(pairs: Iterable[tuple[IntExpr, IntExpr]]) -> dict[Symbol, IntExpr]:
    """Symbol -> its representative; symbols that represent themselves are absent."""
    chosen: dict[Symbol, IntExpr] = {}

    def resolve(expr: IntExpr) -> IntExpr:
        while True:
            replaced = substitute(expr, chosen)
            if replaced is expr:
                return expr
            expr = replaced

    for a, b in pairs:
        keep, drop = sorted((resolve(a), resolve(b)), key=_preference)
        if isinstance(keep, Symbol) and not isinstance(drop, Symbol):
            keep, drop = drop, keep  # a tensor as long as two others together
        if keep is not drop and isinstance(drop, Symbol) and drop not in keep.symbols:
            chosen[drop] = keep
    return {symbol: resolve(symbol) for symbol in chosen}


def effective_extents(
    scheduled: ScheduledFusion, tensor: TensorView, promoted: Mapping[IterDomain, IntExpr]
) -> dict[IterDomain, IntExpr]:
    """The extent of every axis of a tensor as loops see it.

    Expanded axes of an output are iterated in full, because the output is materialised.  A
    broadcast that shares no loop with a real axis runs once, however it was split.  The parts of a
    real axis, even one that a split left with a single iteration, have the extents that they have
    in the other tensors.
    """
    is_output = tensor in scheduled.fusion.outputs
    logical = tensor.domain.logical
    loop = scheduled[tensor].loop
    extents = dict(promoted)
    for axis in logical:
        extents.setdefault(axis, axis.size if is_output else axis.extent)
    real = {axis for axis in logical if not (axis.is_broadcast and extents[axis] is ONE)}
    real |= promoted.keys()
    for expr in history(loop, logical):
        inputs = [extents.setdefault(axis, axis.extent) for axis in expr.inputs]
        match expr:
            case Split():
                rest = ceil_div(inputs[0], expr.factor)
                pair = (rest, expr.factor) if expr.inner_split else (expr.factor, rest)
                if real.isdisjoint(expr.inputs):
                    pair = (ONE, ONE)
                extents[expr.outer_id], extents[expr.inner_id] = pair
            case Merge():
                extents[expr.output_id] = inputs[0] * inputs[1]
            case _:
                extents[expr.out_x_id], extents[expr.out_y_id] = inputs
        if not real.isdisjoint(expr.inputs):
            real.update(expr.outputs)
    for axis in loop:
        extents.setdefault(axis, axis.extent)
    root = tensor.domain.root
    if root is not None:
        for axis in root:
            extents.setdefault(axis, axis.extent)
        for expr in history(logical, root):
            for axis in (*expr.inputs, *expr.outputs):
                extents.setdefault(axis, axis.extent)
    return extents
