"""The outer persistent scheduler: normalisations along an outer axis, one column block per task.

    [reduced | columns]  ->  [task: columns][serial: rows][unroll][lanes]

A block is unroll * lanes columns wide, so its rows are whole cache lines and its results stay in
registers; the passes after the first find the block in the L2 cache.

On hardware threads: threaded_columns.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..ir.domains import ParallelType
from ..ir.fusion import Fusion
from ..ir.schedule import ScheduledFusion
from ..target.parameters import ReductionParameters
from ..target.target import Target
from ..target.thread_parameters import ThreadedReduction
from .cascade import rfactor_blocks, split_chain
from .common import (
    Layouts,
    fork_outputs,
    merge_adjacent,
    merge_range,
    parallelize_positions,
    reductions,
)
from .inlining import inline_most
from .propagation import transform_like
from .recomputation import recompute_cheap
from .reduced_axes import split_axes
from .reduction import reduction_facts
from .threaded_columns import schedule_columns


def heuristics(fusion: Fusion, sizes: Mapping[str, int], target: Target) -> ReductionParameters:
    """The target's decisions."""
    return target.outer_persistent(reduction_facts(fusion), sizes)


def candidates(
    fusion: Fusion, chosen: ReductionParameters, sizes: Mapping[str, int], target: Target
) -> Sequence[object]:
    """Other parameters that are worth measuring."""
    return target.candidates(reduction_facts(fusion), chosen, sizes, is_persistent=True)


def schedule(fusion: Fusion, parameters: ReductionParameters) -> ScheduledFusion:
    """The loops; see the module's docstring."""
    copy, _ = fusion.clone()
    recompute_cheap(copy, parameters.keeps, keeps_reads=parameters.keeps_reads)
    scheduled = ScheduledFusion(copy, scheduler="outer_persistent", parameters=parameters)
    if isinstance(parameters, ThreadedReduction):
        schedule_columns(scheduled, parameters)
        return scheduled
    schedule_outer(scheduled, parameters)
    return scheduled


def schedule_outer(scheduled: ScheduledFusion, parameters: ReductionParameters) -> None:
    """[columns: task][serial: rows][unroll][lanes]; the columns may be apart in memory."""
    fork_outputs(scheduled)
    layouts = Layouts(scheduled.fusion)
    reference = reductions(scheduled.fusion)[0]
    own = scheduled[reference]
    axes, _ = split_axes(reference, layouts)
    kept = [a for a in axes if not a.is_reduction]
    own.loop = [*kept, *(a for a in axes if a.is_reduction)]
    inner = merge_adjacent(scheduled, reference, layouts, 0, len(kept))
    merge_range(scheduled, reference, 0, inner)
    outer = 1 if inner else 0
    merge_adjacent(scheduled, reference, layouts, outer + 1, len(own.loop))
    own.split(outer, parameters.lanes)
    own.split(outer, parameters.unroll)
    last = len(own.loop) - 1
    own.reorder({outer + 1: last - 1, outer + 2: last})
    counts = split_chain(scheduled, reference, outer + 1, last - 1, parameters.cascade)
    last = outer + sum(counts) + 2
    kinds = {
        outer: ParallelType.grid_x,
        last - 1: ParallelType.unroll,
        last: ParallelType.block_x,
    }
    if outer:
        kinds[0] = ParallelType.grid_y
    transform_like(scheduled, reference)
    parallelize_positions(scheduled, reference, kinds)
    for tensor in reductions(scheduled.fusion):
        rfactor_blocks(scheduled, tensor, outer + 1, counts)
    inline_most(scheduled)
