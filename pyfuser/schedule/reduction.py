"""The reduction scheduler: one or more reductions over the same axes, and the ops around them.

For inner reductions (over the innermost axis in memory), tasks are rows:

    [row | other reduced axes | range]  ->  [task: row][serial...][serial][unroll][lanes]
    rfactor of the serial loops: unroll * lanes partial results stay in registers; rfactor of the
    unrolled loop adds those vectors, so that lanes are combined only once per row

Where what follows from a row's results takes long beside the row (the logarithm of a log-softmax),
a task is as many rows as a vector has lanes, and that is computed for all of them:

    the rows' results     [task: rows][row][serial...][serial][unroll][lanes]
    what follows          [task: rows][lanes]
    what has all axes     [task: rows][row][serial...][serial][unroll][lanes]

For outer reductions (the innermost axis is kept), tasks are blocks of columns. Several rows are
added in registers before they are added to the block's results, which stay in the L1 cache. So are
inner reductions of short rows, whose columns are steps apart in memory:

    [reduced | columns]  ->  [task: columns][serial: rows][serial][lanes][unroll: rows]

If there are few tasks, the reduced axes are split over the grid too, with partial results in
scratch memory.

On hardware threads: threaded_rows.py and threaded_columns.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial

from ..analysis.costs import is_expensive
from ..dtypes import size_in_bytes
from ..ir.domains import IterDomain, ParallelType
from ..ir.fusion import Fusion
from ..ir.scalars import ZERO, IntExpr, product
from ..ir.schedule import ScheduledFusion
from ..ir.vals import TensorView
from ..target.parameters import ReductionFacts, ReductionParameters
from ..target.target import Target
from ..target.thread_parameters import ThreadedReduction
from .cascade import chain_extents, rfactor_blocks, split_chain
from .common import (
    Layouts,
    fork_outputs,
    functions_each,
    is_reduction,
    merge_adjacent,
    merge_range,
    parallelize_positions,
    prefetch_inputs,
    range_to,
    reductions,
    touched_bytes,
    work_each,
)
from .facts import tensor_exprs
from .inlining import inline_most
from .pointwise import widest_of
from .propagation import transform_like
from .recomputation import kept_rows, recompute_cheap
from .reduced_axes import (
    after_columns,
    after_reductions,
    arrange,
    repeated_input,
    split_axes,
    weights,
)
from .rewrite import rfactor
from .shared_reads import Copies, share_reads, with_shared_reads
from .threaded_columns import schedule_columns
from .threaded_rows import schedule_rows
from .vectors import vector_bytes, vector_steps
from .whole_ranges import corresponding, whole_ranges


@lru_cache(maxsize=256)
def reduction_facts(fusion: Fusion, reference: TensorView | None = None) -> ReductionFacts:
    """The input of the heuristics for a fusion with reductions; computed once per fusion.

    They are about the axes of `reference`, or of any reduction if all have the same.
    """
    found = reductions(fusion)
    layouts = Layouts(fusion)
    reference = reference or found[0]
    axes, inner = split_axes(reference, layouts)
    others = [tensor for tensor in found if split_axes(tensor, layouts)[1] != inner]
    reduced = [axis for axis in axes if axis.is_reduction]
    alike = [axis for axis in axes if axis.is_reduction == inner]
    innermost = range_to(alike[-1], alike, layouts) if alike else []
    kept = [axis for axis in axes if not axis.is_reduction]
    across = range_to(kept[-1], kept, layouts) if kept and inner else []
    along = layouts.space.of(innermost)
    varying = [t for t in fusion.tensors if not along.isdisjoint(layouts.space.axes(t))]
    return ReductionFacts(
        inner,
        product(axis.extent for axis in kept),
        product(axis.extent for axis in reduced),
        chain_extents(reduced, layouts),
        widest_of(fusion, varying),
        len(found),
        work_each(fusion),
        functions_each(fusion),
        touched_bytes(fusion),
        product(axis.extent for axis in innermost),
        vector_bytes(layouts, axes),
        kept_rows(fusion, reference, after_columns(fusion, layouts, others)),
        len(weights(layouts, axes)),
        vector_steps(layouts, axes),
        product(axis.extent for axis in across),
        _repeated_bytes(layouts, axes),
        _functions_of_results(fusion, layouts, kept),
    )


def _functions_of_results(fusion: Fusion, layouts: Layouts, kept: Sequence[IterDomain]) -> int:
    """How many functions such as exp have only the axes that reductions keep."""
    alone = layouts.space.of(kept)
    functions = [each for each in tensor_exprs(fusion.exprs) if is_expensive(each)]
    return sum(layouts.space.axes(each.tensor_outputs[0]) == alone for each in functions)


def _repeated_bytes(layouts: Layouts, axes: list[IterDomain]) -> IntExpr:
    """The bytes of the input that rows read again."""
    found = repeated_input(layouts, axes)
    if found is None:
        return ZERO
    tensor, _ = found
    return product(axis.extent for axis in tensor.axes) * size_in_bytes(tensor.dtype)


def heuristics(fusion: Fusion, sizes: Mapping[str, int], target: Target) -> ReductionParameters:
    """The target's decisions."""
    return target.reduction(reduction_facts(fusion), sizes)


def candidates(
    fusion: Fusion, chosen: ReductionParameters, sizes: Mapping[str, int], target: Target
) -> Sequence[object]:
    """Other parameters that are worth measuring."""
    return target.candidates(reduction_facts(fusion), chosen, sizes)


def schedule(fusion: Fusion, parameters: ReductionParameters) -> ScheduledFusion:
    """The loops; see the module's docstring."""
    if isinstance(parameters, ThreadedReduction):
        scheduled = _unscheduled(fusion, parameters)
        if parameters.inner:
            schedule_rows(scheduled, parameters)
        else:
            schedule_columns(scheduled, parameters)
        return scheduled
    return with_shared_reads(partial(_schedule, fusion, parameters))


def _unscheduled(fusion: Fusion, parameters: ReductionParameters) -> ScheduledFusion:
    """A copy, in which what is computed after the parts of a reduction shares nothing with them."""
    copy, _ = fusion.clone()
    if parameters.parts > 1:
        recompute_cheap(copy, keeps=False, after=after_reductions(copy))
    return ScheduledFusion(copy, scheduler="reduction", parameters=parameters)


def _schedule(
    fusion: Fusion, parameters: ReductionParameters, shares_reads: bool
) -> tuple[ScheduledFusion, Copies]:
    """The loops, and the copies of inputs if reads are shared."""
    scheduled = _unscheduled(fusion, parameters)
    fork_outputs(scheduled)
    prefetch_inputs(scheduled, parameters.prefetch)
    copies = share_reads(scheduled) if shares_reads else ()
    layouts = Layouts(scheduled.fusion)
    reference = reductions(scheduled.fusion)[0]
    if parameters.inner:
        schedule_inner(scheduled, reference, layouts, parameters)
    else:
        _schedule_outer(scheduled, reference, layouts, parameters)
    return scheduled, copies


def schedule_inner(
    scheduled: ScheduledFusion,
    reference: TensorView,
    layouts: Layouts,
    parameters: ReductionParameters,
) -> None:
    """[row][part][other reduced][serial][unroll][lanes], partial results in registers."""
    ranges = []
    if parameters.whole is not None:
        ranges = whole_ranges(scheduled.fusion, reference, layouts)
    axes, _ = split_axes(reference, layouts)
    rows, others = arrange(scheduled, reference, layouts)
    if parameters.block and any(not a.is_reduction and not a.is_broadcast for a in axes):
        scheduled[reference].split(0, parameters.block)
        rows = 2
    chains = row_loops(scheduled, reference, rows, others, parameters, scheduled.fusion.tensors)
    for first, tensors in ranges:
        assert parameters.whole is not None
        for tensor in tensors:
            scheduled[tensor].loop = list(tensor.domain.logical)
            for axis in tensor.domain.logical:  # a broadcast may have been one of the lanes
                axis.parallel_type = ParallelType.serial
        _arrange_like(scheduled, first, axes, layouts)
        chains |= row_loops(scheduled, first, rows, 0, parameters.whole, tensors)
    most = _rows_in_lanes(scheduled, axes, layouts) if rows > 1 else {}
    for tensor in reductions(scheduled.fusion):
        rfactor_rows(scheduled, tensor, *chains[tensor])
    inline_most(scheduled, most=most)


def _rows_in_lanes(
    scheduled: ScheduledFusion, axes: Sequence[IterDomain], layouts: Layouts
) -> dict[TensorView, int]:
    """Gives numbers of rows, such as what follows from their results, lanes for the rows of a task.

    Returns the tensors that are complete before other loops over these rows begin, with how many
    loops they may share.
    """
    kept = layouts.space.of(axis for axis in axes if not axis.is_reduction)
    computed = [tensor for tensor in scheduled.fusion.tensors if tensor.expr is not None]
    complete = {tensor: 1 for tensor in computed if is_reduction(tensor.expr)}
    lanes: set[TensorView] = set()
    for tensor in reversed(computed):
        loop = scheduled[tensor].loop
        readers = {reader in lanes for e in tensor.uses_list for reader in e.tensor_outputs}
        is_single = len(loop) > 1 and all(axis.is_broadcast for axis in loop[2:])
        is_of_rows = layouts.space.axes(tensor) == kept
        if tensor not in complete and is_single and (is_of_rows or readers == {True}):
            lanes.add(tensor)
            for position, axis in enumerate(loop[1:]):
                axis.parallel_type = ParallelType.serial if position else ParallelType.block_x
            readers.add(True)
        if len(readers) > 1:
            complete[tensor] = 1
    return complete


def rfactor_rows(
    scheduled: ScheduledFusion, tensor: TensorView, start: int, counts: Sequence[int]
) -> None:
    """Makes partial results of a row's reduction: of blocks, of the unrolled vectors, of lanes.

    The chain of loops that it combines begins at `start`; `counts` has its levels.
    """
    left = rfactor_blocks(scheduled, tensor, start, counts)
    rfactor(scheduled, tensor, list(range(start, start + left)))
    rfactor(scheduled, tensor, [start])


def _arrange_like(
    scheduled: ScheduledFusion, tensor: TensorView, axes: Sequence[IterDomain], layouts: Layouts
) -> None:
    """Loops [kept axes, merged][reduced axes, merged], with both in the order of the given axes."""
    own = scheduled[tensor]
    found = corresponding(tensor, axes, layouts)
    broadcast = [axis for axis in own.loop if axis not in found]
    own.loop = [*broadcast, *sorted(found, key=lambda axis: axis.is_reduction)]
    kept = sum(not axis.is_reduction for axis in own.loop)
    merge_range(scheduled, tensor, 0, kept)
    merge_range(scheduled, tensor, min(kept, 1), len(own.loop))


def row_loops(
    scheduled: ScheduledFusion,
    reference: TensorView,
    rows: int,
    others: int,
    parameters: ReductionParameters,
    tensors: Sequence[TensorView],
) -> dict[TensorView, tuple[int, list[int]]]:
    """Splits the loops [row][other reduced][range] of some tensors, as the reference's.

    Returns where the chain of loops starts that the reductions among them combine, and its levels.
    """
    own = scheduled[reference]
    kinds: dict[int, ParallelType] = {0: ParallelType.grid_x} if rows else {}
    position = rows + others
    if parameters.parts > 1 and parameters.outermost:
        own.split(position, parameters.lanes)
        own.split(position, parameters.unroll)
        own.split(rows, parameters.parts, inner_split=False)
        kinds[rows] = ParallelType.grid_y if rows else ParallelType.grid_x
        start, position = rows + 1, position + 2
    elif parameters.parts > 1:
        own.split(position, parameters.lanes * parameters.unroll)
        own.split(position, parameters.parts, inner_split=False)
        own.split(position + 2, parameters.lanes)
        own.reorder({position: rows})
        kinds[rows] = ParallelType.grid_y if rows else ParallelType.grid_x
        start, position = rows + 1, position + 2
    else:
        own.split(position, parameters.lanes)
        own.split(position, parameters.unroll)
        start, position = rows, position + 1
    counts = split_chain(scheduled, reference, start, position, parameters.cascade)
    position = start + sum(counts)
    kinds[position] = ParallelType.unroll
    kinds[position + 1] = ParallelType.block_x
    transform_like(scheduled, reference, tensors)
    parallelize_positions(scheduled, reference, kinds, tensors)
    return {tensor: (start, counts) for tensor in tensors if is_reduction(tensor.expr)}


def _schedule_outer(
    scheduled: ScheduledFusion,
    reference: TensorView,
    layouts: Layouts,
    parameters: ReductionParameters,
) -> None:
    """[columns: task][part][rows][columns: serial][lanes][rows: unroll]."""
    own = scheduled[reference]
    axes, _ = split_axes(reference, layouts)
    kept = [a for a in axes if not a.is_reduction]
    reduced = [a for a in axes if a.is_reduction]
    own.loop = [*kept, *reduced]
    inner = merge_adjacent(scheduled, reference, layouts, 0, len(kept))
    merge_range(scheduled, reference, 0, inner)
    outer = 1 if inner else 0  # kept axes that can't join the columns
    first = outer + 1
    last = merge_adjacent(scheduled, reference, layouts, first, len(own.loop))
    kinds: dict[int, ParallelType] = {outer: ParallelType.grid_x}
    if outer:
        kinds[0] = ParallelType.grid_y
    own.split(last, parameters.unroll)
    unrolled = last + 1
    if parameters.parts > 1:
        own.split(last, parameters.parts, inner_split=False)
        own.reorder({last: first})
        kinds[first] = ParallelType.grid_z
        unrolled += 1
    own.split(outer, parameters.block)
    own.split(outer + 1, parameters.lanes)
    unrolled += 2
    # [outer][columns task][columns serial][lanes][part][rows...][rows unrolled]
    own.reorder({outer + 1: unrolled - 2, outer + 2: unrolled - 1})
    start = outer + 2 if parameters.parts > 1 else outer + 1
    counts = split_chain(scheduled, reference, start, unrolled - 2, parameters.cascade)
    unrolled = start + sum(counts) + 2
    kinds[unrolled - 1] = ParallelType.block_x
    kinds[unrolled] = ParallelType.unroll
    transform_like(scheduled, reference)
    parallelize_positions(scheduled, reference, kinds)
    for tensor in reductions(scheduled.fusion):
        rfactor(scheduled, tensor, [unrolled])
        rfactor_blocks(scheduled, tensor, start, counts)
    inline_most(scheduled)
