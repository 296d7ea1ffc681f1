"""Splits reductions across the grid in two: partial results in scratch memory, then the rest.

Runs first in lowering, because it rewrites the computation (by rfactor) and so adds a tensor.  A
reduction axis whose loop is shared with a producer runs as that one's does.

Before:  T1[i | rblockIdx.x, r] = sum(T0)
After:   T2[i | iblockIdx.x, r] = sum(T0)     T2 in global scratch
         T1[i | r] = sum(T2)                  in the next phase, after a grid-wide sync
"""

from __future__ import annotations

from ..analysis.mapping import consumers
from ..ir.domains import IterDomain, ParallelType
from ..ir.schedule import MemoryType, ScheduledFusion
from ..ir.vals import TensorView
from ..schedule.rewrite import rfactor_results


def _is_grid_reduction(axis: IterDomain) -> bool:
    return axis.is_reduction and axis.parallel_type.is_grid


def _mark_shared_loops(scheduled: ScheduledFusion) -> None:
    """Makes serial reduction axes run over the grid if they share a loop that does."""
    kinds: dict[tuple[TensorView, int], ParallelType] = {}
    for tensor in scheduled.fusion.tensors:  # producers come first
        schedule = scheduled[tensor]
        for position in range(schedule.compute_at):
            kind = schedule.loop[position].parallel_type
            if kind is ParallelType.serial:
                kind = kinds.get((tensor, position), kind)
            if not kind.is_grid:
                continue
            for expr, consumer in consumers(tensor):
                kinds[consumer, position] = kind
                axis = scheduled[consumer].loop[position]
                if expr.accumulates and axis.is_reduction:
                    axis.parallel_type = kind


def split_grid_reductions(scheduled: ScheduledFusion) -> ScheduledFusion:
    """Rewrites every reduction whose loops run over the grid; changes `scheduled` in place."""
    _mark_shared_loops(scheduled)
    for expr in list(scheduled.fusion.exprs):
        if not expr.accumulates:
            continue
        tensor = expr.tensor_outputs[0]
        loop = scheduled[tensor].loop
        if not any(map(_is_grid_reduction, loop)):
            continue
        inner = [i for i, a in enumerate(loop) if a.is_reduction and not a.parallel_type.is_grid]
        if inner:
            partials = rfactor_results(scheduled, tensor, inner)
        else:
            partials = tuple(t for t in expr.tensor_inputs if t.expr is not None)
        for partial in partials:
            scheduled[partial].memory_type = MemoryType.global_
            scheduled[partial].compute_at = 0  # it is complete only after the grid-wide sync
        for output in expr.tensor_outputs:
            for axis in scheduled[output].loop:
                if _is_grid_reduction(axis):
                    axis.parallel_type = ParallelType.serial
    return scheduled
