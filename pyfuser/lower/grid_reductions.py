"""Splits reductions across the grid in two: partial results in scratch memory, then the rest.

Runs early in lowering, because it rewrites the computation (by rfactor) and so adds a tensor.  A
reduction axis whose loop is shared runs as the tensors' do that share it.

Before:  T1[i | rblockIdx.x, r] = sum(T0)
After:   T2[i | iblockIdx.x, r] = sum(T0)     T2 in global scratch
         T1[i | r] = sum(T2)                  in the next phase, after a grid-wide sync
"""

from __future__ import annotations

from ..analysis.mapping import consumers
from ..ir.disjoint_sets import DisjointSets
from ..ir.domains import IterDomain, ParallelType
from ..ir.schedule import MemoryType, ScheduledFusion
from ..ir.vals import TensorView
from ..schedule.rewrite import rfactor_results


def _is_grid_reduction(axis: IterDomain) -> bool:
    return axis.is_reduction and axis.parallel_type.is_grid


def _mark_shared_loops(scheduled: ScheduledFusion) -> None:
    """Makes serial reduction axes run over the grid if they share a loop that does."""
    loops: DisjointSets[tuple[TensorView, int]] = DisjointSets()
    for tensor in scheduled.fusion.tensors:
        for position in range(scheduled[tensor].compute_at):
            for _, consumer in consumers(tensor):
                loops.join((tensor, position), (consumer, position))
        if tensor.expr is not None:
            first = tensor.expr.tensor_outputs[0]
            for position in range(len(scheduled[tensor].loop)):
                loops.join((first, position), (tensor, position))
    kinds: dict[tuple[TensorView, int], ParallelType] = {}
    for tensor in scheduled.fusion.tensors:
        for position, axis in enumerate(scheduled[tensor].loop):
            if axis.parallel_type.is_grid:
                kinds[loops.find((tensor, position))] = axis.parallel_type
    for tensor in scheduled.fusion.tensors:
        if tensor.expr is None or not tensor.expr.accumulates:
            continue
        for position, axis in enumerate(scheduled[tensor].loop):
            kind = kinds.get(loops.find((tensor, position)))
            if kind is not None and axis.is_reduction and axis.parallel_type is ParallelType.serial:
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
