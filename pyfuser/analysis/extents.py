"""The extents of the loops over a scheduled tensor's axes."""

from __future__ import annotations

from collections.abc import Mapping

from ..ir.domains import IterDomain, Merge, Reverse, Split, Swizzle, history
from ..ir.scalars import ONE, IntExpr
from ..ir.schedule import ScheduledFusion
from ..ir.vals import TensorView


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
    made = scheduled[tensor].made
    extents = dict(promoted)
    for axis in logical:
        extents.setdefault(axis, axis.size if is_output else axis.extent)
    real = {axis for axis in logical if not (axis.is_broadcast and extents[axis] is ONE)}
    real |= promoted.keys()
    for expr in history(made, logical):
        inputs = [extents.setdefault(axis, axis.extent) for axis in expr.inputs]
        match expr:
            case Split():
                rest = scheduled.fusion.ids.known(expr.rest(inputs[0]))
                pair = (rest, expr.factor) if expr.inner_split else (expr.factor, rest)
                if real.isdisjoint(expr.inputs):
                    pair = (ONE, ONE)
                extents[expr.outer_id], extents[expr.inner_id] = pair
            case Merge():
                extents[expr.output_id] = scheduled.fusion.ids.merged(*inputs)
            case Swizzle() | Reverse():
                extents.update(zip(expr.outputs, inputs, strict=True))
        if not real.isdisjoint(expr.inputs):
            real.update(expr.outputs)
    for axis in made:
        extents.setdefault(axis, axis.extent)
    root = tensor.domain.root
    if root is not None:
        for axis in root:
            extents.setdefault(axis, axis.extent)
        for expr in history(logical, root):
            for axis in (*expr.inputs, *expr.outputs):
                extents.setdefault(axis, axis.extent)
    return extents
