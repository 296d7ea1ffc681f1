"""The inner-outer persistent scheduler: rows normalised and their columns added up, in one pass.

The backward of a layer norm needs sums over each row, which the row's results use, and sums over
all rows for each column.  A task processes a block of rows; for each row it computes the row's sums
and results, and adds the row to the task's own sums of columns.  A second phase adds up those:

    rows and their results       [task][rows of the task][columns: serial][unroll][lanes]
    the task's sums of columns   the same loops; one result per column and task, in scratch memory
    sums of columns              [columns: task][tasks: serial][lanes], after all tasks

Everything is read from memory once; with two kernels, one for rows and one for columns, twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache

from ..ir.domains import ParallelType
from ..ir.fusion import Fusion
from ..ir.schedule import MemoryType, ScheduledFusion
from ..ir.vals import TensorView
from ..target.parameters import InnerOuterFacts, InnerOuterParameters
from ..target.target import Target
from ..target.thread_parameters import ThreadedReduction
from .cascade import rfactor_blocks, split_chain
from .common import Layouts, fork_outputs, parallelize_positions, private_inputs
from .inlining import inline_most
from .propagation import parallelize_like, transform_like
from .recomputation import recompute_cheap
from .reduced_axes import (
    after_columns,
    arrange,
    arrange_columns,
    kept_places,
    rows_and_columns,
)
from .reduction import reduction_facts
from .rewrite import cache_after, rfactor, rfactor_results
from .threaded_rows_and_columns import schedule_rows_and_columns


@lru_cache(maxsize=256)
def inner_outer_facts(fusion: Fusion) -> InnerOuterFacts:
    """The input of the heuristics; computed once per fusion."""
    layouts = Layouts(fusion)
    inner, outer = rows_and_columns(fusion, layouts)
    return InnerOuterFacts(reduction_facts(fusion, inner[0]), len(outer))


def heuristics(fusion: Fusion, sizes: Mapping[str, int], target: Target) -> InnerOuterParameters:
    """The target's decisions."""
    return target.inner_outer_persistent(inner_outer_facts(fusion), sizes)


def candidates(
    fusion: Fusion, chosen: InnerOuterParameters, sizes: Mapping[str, int], target: Target
) -> Sequence[object]:
    """Other parameters that are worth measuring."""
    return target.candidates(inner_outer_facts(fusion), chosen, sizes)


def schedule(fusion: Fusion, parameters: InnerOuterParameters) -> ScheduledFusion:
    """The loops; see the module's docstring."""
    copy, _ = fusion.clone()
    scheduled = ScheduledFusion(copy, scheduler="inner_outer_persistent", parameters=parameters)
    if isinstance(parameters.rows, ThreadedReduction):
        rows = parameters.rows
        recompute_cheap(copy, rows.keeps, _after_columns(copy), keeps_reads=rows.keeps_reads)
        schedule_rows_and_columns(scheduled, rows, _after_columns(copy))
        scheduled.least_blocks = rows.resident
        return scheduled
    _copy_inputs(scheduled)
    recompute_cheap(copy, parameters.rows.keeps, _after_columns(copy))
    fork_outputs(scheduled)
    layouts = Layouts(copy)
    inner, outer = rows_and_columns(copy, layouts)
    after = after_columns(copy, layouts, outer)
    places = kept_places(outer[0], layouts)
    _schedule_rows(scheduled, inner, outer, layouts, parameters)
    _schedule_columns(scheduled, outer, places, parameters, after)
    inline_most(scheduled)
    return scheduled


def _after_columns(fusion: Fusion) -> set[TensorView]:
    layouts = Layouts(fusion)
    return after_columns(fusion, layouts, rows_and_columns(fusion, layouts)[1])


def _copy_inputs(scheduled: ScheduledFusion) -> None:
    """Makes the reductions of rows and of columns that read an input read one copy of it.

    The copy is what makes them share their loops.
    """
    private = private_inputs(scheduled.fusion)
    for tensor in scheduled.fusion.input_tensors:
        is_read = any(expr.source is not tensor for expr in tensor.uses_list)
        if is_read and tensor not in private:
            cache_after(scheduled, tensor)


def _schedule_rows(
    scheduled: ScheduledFusion,
    inner: Sequence[TensorView],
    outer: Sequence[TensorView],
    layouts: Layouts,
    parameters: InnerOuterParameters,
) -> None:
    """[task][rows: blocks][rows][other reduced][serial][unroll][lanes] for all tensors."""
    rows, reference = parameters.rows, inner[0]
    own = scheduled[reference]
    _, others = arrange(scheduled, reference, layouts)
    own.split(0, rows.parts, inner_split=False)
    position = 2 + others
    own.split(position, rows.lanes)
    own.split(position, rows.unroll)
    in_task = split_chain(scheduled, reference, 1, 2, parameters.columns)
    start = 1 + sum(in_task)
    counts = split_chain(scheduled, reference, start, start + others + 1, rows.cascade)
    position = start + sum(counts)
    kinds = {
        0: ParallelType.grid_x,
        position: ParallelType.unroll,
        position + 1: ParallelType.block_x,
    }
    transform_like(scheduled, reference)
    parallelize_positions(scheduled, reference, kinds)
    for tensor in inner:
        left = rfactor_blocks(scheduled, tensor, start, counts)
        rfactor(scheduled, tensor, list(range(start, start + left)))
        rfactor(scheduled, tensor, [start])
    for tensor in outer:
        left = rfactor_blocks(scheduled, tensor, 1, in_task)
        for partial in rfactor_results(scheduled, tensor, list(range(1, 1 + left))):
            scheduled[partial].memory_type = MemoryType.global_


def _schedule_columns(
    scheduled: ScheduledFusion,
    outer: Sequence[TensorView],
    places: Sequence[int],
    parameters: InnerOuterParameters,
    after: AbstractSet[TensorView],
) -> None:
    """[columns: task][tasks of rows][lanes] for the sums of columns and what follows from them."""
    reference = outer[0]
    own = scheduled[reference]
    arrange_columns(scheduled, reference, places, after)
    own.split(0, parameters.rows.lanes)
    own.reorder({1: len(own.loop) - 1})
    own.parallelize(0, ParallelType.grid_x)
    own.parallelize(len(own.loop) - 1, ParallelType.block_x)
    own_tensors = [t for t in scheduled.fusion.tensors if t in after]
    transform_like(scheduled, reference, own_tensors)
    parallelize_like(scheduled, reference, tensors=own_tensors)
