"""Gives all outputs of one expression (welford's three) the same schedule.

It is that of the first, or of the first that a user has scheduled.

Runs first in lowering, because an expression is one statement in one place.
"""

from __future__ import annotations

from ..errors import ScheduleError, expected
from ..ir.domains import ParallelType
from ..ir.exprs import Expr
from ..ir.scalars import IntExpr
from ..ir.schedule import ScheduledFusion, TensorSchedule
from ..ir.vals import TensorView
from ..schedule.propagation import Replay

_Loop = tuple[IntExpr, ParallelType]


def schedule_siblings_alike(scheduled: ScheduledFusion) -> ScheduledFusion:
    """Replays the first output's loops on its siblings; they share its compute position."""
    fusion = scheduled.fusion
    for expr in fusion.exprs:
        if len(expr.tensor_outputs) < 2:
            continue
        leader = _leader(scheduled, expr)
        siblings = [tensor for tensor in expr.tensor_outputs if tensor is not leader]
        source = scheduled[leader]
        used = [scheduled[t].compute_at for t in expr.tensor_outputs if t.uses_list]
        position = min(used, default=0)
        source.compute_at = position
        for sibling in siblings:
            own = sibling.domain.logical
            mapping = dict(zip(leader.domain.logical, own, strict=True))
            replay = Replay(fusion.ids, mapping)
            target = scheduled[sibling]
            loop = []
            for axis in source.loop:
                made = replay.axis(axis)
                if made is None:
                    made = fusion.ids.broadcast()
                made.parallel_type = axis.parallel_type
                loop.append(made)
            if target.allocation is not None and len(target.loop) == len(loop):
                new = dict(zip(target.loop, loop, strict=True))
                target.allocation = tuple(new.get(axis, axis) for axis in target.allocation)
            target.loop, target.compute_at = loop, position
    return scheduled


def _leader(scheduled: ScheduledFusion, expr: Expr) -> TensorView:
    """The output whose loops all have.  ScheduleError if users gave them different ones."""
    changed = [t for t in expr.tensor_outputs if _loops(scheduled[t]) != _unscheduled(t)]
    if not scheduled.is_by_hand or not changed:
        return expr.tensor_outputs[0]
    leader = changed[0]
    for tensor in changed[1:]:
        if _loops(scheduled[tensor]) != _loops(scheduled[leader]):
            what = (
                f"T{tensor.name} to have the loops of T{leader.name}, beside which it is computed"
            )
            got = f"{scheduled[tensor].loop} and {scheduled[leader].loop}"
            raise ScheduleError(expected("schedule", what, got))
    return leader


def _loops(schedule: TensorSchedule) -> list[_Loop]:
    return [(axis.extent, axis.parallel_type) for axis in schedule.loop]


def _unscheduled(tensor: TensorView) -> list[_Loop]:
    return [(axis.extent, ParallelType.serial) for axis in tensor.domain.logical]
