"""Part axes: short axes along which a pointwise kernel would repeat what doesn't depend on it.

    stack((g * b * sigmoid(a), g * sigmoid(a)), 1)      [rows, parts: 2, columns]

A loop over all axes in memory order would compute the sigmoid for each part.  With the loop over
the parts around that over the lanes, everything without the axis is computed before it, once, and
stays in registers:

    for row, for vector:  s[lanes] = sigmoid(a)  ->  for part: for lane: result[row, part, vector]

Before the segmenter puts such operations into a kernel of their own it asks `shares_parts` of
analysis/part_axes.py.
"""

from __future__ import annotations

from ..analysis.costs import is_copy, is_expensive, is_root
from ..analysis.part_axes import is_short
from ..ir.domains import IterDomain
from ..ir.exprs import PointwiseOp, RandomOp, WindowOp
from ..ir.fusion import Fusion
from ..ir.schedule import ScheduledFusion
from ..ir.vals import TensorView
from ..ops.op import EXPENSIVE
from .common import Layouts, ordered_axes
from .facts import tensor_exprs


def axis_of_parts(fusion: Fusion, reference: TensorView, layouts: Layouts) -> IterDomain | None:
    """The short axis of the reference whose parts have most in common: expensive operations, or any
    that a stack chooses from.  The innermost axis in memory has lanes of its own.
    """
    space = layouts.space
    short = {space.number(a): a for a in ordered_axes(reference)[:-1] if is_short(a.extent)}
    if not short:
        return None
    everything, cost = space.axes(reference), dict.fromkeys(short, 0)
    chosen: set[int] = set()
    for expr in tensor_exprs(fusion.exprs):
        axes = space.axes(expr.tensor_outputs[0])
        lacking = everything - axes
        if isinstance(expr, WindowOp) and expr.source is None:  # in which part an element is
            chosen |= axes if len(axes) == 1 else set()
        elif isinstance(expr, PointwiseOp | RandomOp) and not is_copy(expr) and len(lacking) == 1:
            (number,) = lacking
            is_dear = is_expensive(expr) or is_root(expr)
            cost[number] = cost.get(number, 0) + (EXPENSIVE if is_dear else 1)
            chosen |= lacking if is_dear else set()
    found = max(short, key=lambda number: cost[number] * (number in chosen))
    return short[found] if found in chosen and cost[found] else None


def around_parts(
    scheduled: ScheduledFusion, reference: TensorView, parts: IterDomain
) -> list[TensorView]:
    """Takes what stands for the axis of parts out of the loops of the computed tensors that lack
    it, so that they are computed around its loop; returns them.
    """
    position = scheduled[reference].loop.index(parts)
    found = []
    for tensor in scheduled.fusion.tensors:
        loop = scheduled[tensor].loop
        if tensor.expr is None or len(loop) <= position + 1:
            continue
        axis = loop[position]
        if axis.is_broadcast and axis.definition is None and axis not in tensor.domain.logical:
            del loop[position]
            found.append(tensor)
    return found
