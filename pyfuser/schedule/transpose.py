"""The transpose scheduler: pointwise fusions with inputs that run along another axis in memory.

    [task: outer][task: tile][task: chunk][columns][rows][unroll][lanes]

An input whose memory runs along another axis than the output's is read in square tiles, along its
own memory, and transposed in registers or through shared memory.  Where tiles aren't worth it, the
loops are those of the pointwise scheduler.  Stored row by row: staged_tiles.py.  On hardware
threads: threaded_tiles.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from ..ir.domains import IterDomain, ParallelType
from ..ir.fusion import Fusion
from ..ir.scalars import product
from ..ir.schedule import MemoryType, ScheduledFusion
from ..ir.vals import TensorView
from ..target.parameters import PointwiseFacts, PointwiseParameters
from ..target.target import Target
from ..target.thread_parameters import ThreadedPointwise
from . import pointwise, staged_tiles, threaded_tiles
from .common import (
    Layouts,
    fork_outputs,
    merge_rows_and_columns,
    ordered_axes,
    parallelize_positions,
    prefetch_inputs,
    range_to,
    rows_and_columns,
)
from .inlining import inline_most
from .pointwise import reference_output
from .propagation import transform_like
from .rewrite import cache_after


@lru_cache(maxsize=256)
def _facts(fusion: Fusion) -> PointwiseFacts:
    reference, layouts = reference_output(fusion), Layouts(fusion)
    found, facts = transposed_inputs(reference, layouts), pointwise.pointwise_facts(fusion)
    if found is None:
        return facts
    axes = ordered_axes(reference)
    rows = range_to(found[0], axes, layouts)
    longer, _ = staged_tiles.staged_rows_and_columns(axes, *found, layouts)
    transposed, staged = (product(axis.size for axis in each) for each in (rows, longer))
    return replace(facts, transposed=transposed, staged=staged)


def heuristics(fusion: Fusion, sizes: Mapping[str, int], target: Target) -> PointwiseParameters:
    """The target's decisions."""
    return target.pointwise(_facts(fusion), sizes)


def candidates(
    fusion: Fusion, chosen: PointwiseParameters, sizes: Mapping[str, int], target: Target
) -> Sequence[object]:
    """Other parameters that are worth measuring."""
    return target.candidates(_facts(fusion), chosen, sizes)


def transposed_inputs(
    reference: TensorView, layouts: Layouts
) -> tuple[IterDomain, list[TensorView]] | None:
    """(the reference axis that is contiguous in their memory, the inputs), or None."""
    axes = ordered_axes(reference)
    numbers = {layouts.number(axis): axis for axis in axes}
    found: dict[IterDomain, list[TensorView]] = {}
    for leaf in layouts.leaves:
        if leaf.tensor.expr is not None or not leaf.order or not leaf.contiguous[leaf.order[-1]]:
            continue
        axis = numbers.get(leaf.order[-1])
        rows = numbers.get(leaf.order[-2]) if len(leaf.order) > 1 else None
        if axis is None or rows is None or axis is axes[-1]:
            continue
        if layouts.number(axes[-1]) in leaf.contiguous:
            found.setdefault(axis, []).append(leaf.tensor)
    if not found:
        return None
    return max(found.items(), key=lambda item: len(item[1]))


def schedule(fusion: Fusion, parameters: PointwiseParameters) -> ScheduledFusion:
    """The loops; see the module's docstring."""
    if not parameters.tile:
        return pointwise.schedule(fusion, parameters, "transpose")
    copy, cloner = fusion.clone()
    reference = cloner.values[reference_output(fusion)]
    assert isinstance(reference, TensorView)
    scheduled = ScheduledFusion(copy, scheduler="transpose", parameters=parameters)
    fork_outputs(scheduled)
    prefetch_inputs(scheduled, parameters.prefetch)
    layouts = Layouts(copy)
    found = transposed_inputs(reference, layouts)
    assert found is not None
    if isinstance(parameters, ThreadedPointwise):
        threaded_tiles.schedule_tiles(scheduled, reference, *found, layouts, parameters)
    elif parameters.staged:
        staged_tiles.schedule_staged(scheduled, reference, *found, layouts, parameters)
    else:
        _schedule_tiles(scheduled, reference, *found, layouts, parameters)
    return scheduled


def _schedule_tiles(
    scheduled: ScheduledFusion,
    reference: TensorView,
    row_axis: IterDomain,
    transposed: list[TensorView],
    layouts: Layouts,
    parameters: PointwiseParameters,
) -> None:
    """[outer][tile][chunk][columns][rows][columns of a line][rows: unroll][columns: lanes]

    Tasks follow each other along the rows: they read on in the memory of the transposed inputs,
    where the last task's pages and the rest of its cache lines are.  If a task takes all rows, the
    loops over rows and columns are interchanged.
    """
    axes = ordered_axes(reference)
    tiles = [cache_after(scheduled, tensor) for tensor in transposed]
    own = scheduled[reference]
    own.loop = list(axes)
    rows = merge_rows_and_columns(scheduled, reference, *rows_and_columns(axes, row_axis, layouts))
    own.split(rows, parameters.tile)
    own.split(rows + 2, parameters.chunk)
    own.split(rows + 1, parameters.lanes)
    own.split(rows + 4, parameters.lanes)
    own.split(rows + 4, parameters.unroll)
    # [outer][tile][rows][rows unroll][chunk][columns][columns of a line][lanes]
    own.reorder({rows + 1: rows + 3, rows + 2: rows + 5, rows + 3: rows + 1, rows + 4: rows + 2})
    if parameters.rows:
        own.reorder({rows + 2: rows + 3})
    kinds = {
        rows: ParallelType.grid_x,
        rows + 1: ParallelType.grid_y,
        rows + 4: ParallelType.unroll,
        rows + 5: ParallelType.unroll,
        rows + 6: ParallelType.block_x,
    }
    if rows:
        kinds[0] = ParallelType.grid_z
    transform_like(scheduled, reference)
    parallelize_positions(scheduled, reference, kinds)
    for tile in tiles:
        schedule = scheduled[tile]
        schedule.memory_type = MemoryType.shared
        schedule.reorder({rows + 5: rows + 6})
        schedule.parallelize(rows + 5, ParallelType.unroll)
        schedule.parallelize(rows + 6, ParallelType.block_x)
    inline_most(scheduled)
