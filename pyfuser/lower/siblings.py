"""Gives all outputs of one expression (welford's three) the schedule of the first.

Runs before the loop structure is computed, because an expression is one statement in one place.
"""

from __future__ import annotations

from ..ir.schedule import ScheduledFusion
from ..schedule.propagation import Replay


def schedule_siblings_alike(scheduled: ScheduledFusion) -> ScheduledFusion:
    """Replays the first output's loops on its siblings; they share its compute position."""
    fusion = scheduled.fusion
    for expr in fusion.exprs:
        if len(expr.tensor_outputs) < 2:
            continue
        leader, *siblings = expr.tensor_outputs
        source = scheduled[leader]
        used = [scheduled[t].compute_at for t in expr.tensor_outputs if t.uses_list]
        if not siblings:
            continue
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
            target.loop, target.compute_at = loop, position
    return scheduled
