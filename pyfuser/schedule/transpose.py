"""The transpose scheduler: pointwise fusions with inputs that run along another axis in memory.

    [task: outer][task: tile][task: chunk][columns][rows][unroll][lanes]

An input whose memory runs along another axis than the output's is read in square tiles, along its
own memory, and transposed in registers or through shared memory.  Where tiles aren't worth it, the
loops are those of the pointwise scheduler.  Stored row by row: staged_tiles.py.  On hardware
threads: threaded_tiles.py, vector_tiles.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from ..dtypes import size_in_bytes
from ..ir.domains import IterDomain, ParallelType
from ..ir.fusion import Fusion
from ..ir.scalars import product
from ..ir.schedule import ScheduledFusion
from ..ir.vals import TensorView
from ..target.parameters import PointwiseFacts, PointwiseParameters
from ..target.target import Target
from ..target.thread_parameters import ThreadedPointwise
from . import pointwise, staged_tiles, threaded_tiles
from .common import (
    Layouts,
    fork_outputs,
    ordered_axes,
    parallelize_positions,
    prefetch_inputs,
)
from .inlining import inline_most
from .pointwise import reference_output
from .propagation import transform_like
from .rewrite import cache_after
from .tiles import Matrix, loop_like, read_along_rows, split_into_squares
from .vector_tiles import schedule_vector_tiles
from .vectors import vector_bytes


@lru_cache(maxsize=256)
def _facts(fusion: Fusion) -> PointwiseFacts:
    reference, layouts = reference_output(fusion), Layouts(fusion)
    found = transposed_inputs(reference, layouts)
    facts = pointwise.pointwise_facts(fusion, has_parts=found is None)
    if found is None:
        return facts
    matrices = (
        Matrix.of(reference, found[0], layouts),
        staged_tiles.staged_matrix(reference, *found, layouts),
    )
    transposed, staged = (product(axis.size for axis in each.rows) for each in matrices)
    squares = _squares(reference, found[1], layouts)
    tiles = sum(size_in_bytes(tensor.dtype) for tensor in found[1])
    return replace(
        facts,
        transposed=transposed,
        staged=staged,
        squares=squares,
        tiles=tiles,
        follow=_follow_each_other(reference, *found, layouts),
    )


def _follow_each_other(
    reference: TensorView, row_axis: IterDomain, transposed: list[TensorView], layouts: Layouts
) -> bool:
    """True if a transposed input's rows are next to each other for neighbours along the columns."""
    axes = ordered_axes(reference)
    columns, rows = layouts.number(axes[-1]), layouts.number(row_axis)
    numbers = [layouts.number(axis) for axis in axes]
    orders = [leaf.order_in(numbers) for leaf in layouts.leaves if leaf.tensor in transposed]
    return all(order.axes[-2:] == (columns, rows) for order in orders)


def _squares(reference: TensorView, transposed: list[TensorView], layouts: Layouts) -> int:
    """Bytes of an element of the transposed inputs if all tensors can be moved in vectors."""
    sizes = {size_in_bytes(tensor.dtype) for tensor in transposed}
    widest = vector_bytes(layouts, ordered_axes(reference), transposed)
    is_one_size = sizes == {widest} and not any(t.has_expanded_axis for t in transposed)
    return widest if is_one_size and not layouts.reads else 0


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
        order = leaf.order_in(numbers)
        if leaf.tensor.expr is not None or len(order.axes) < 2:
            continue
        rows, last = order.axes[-2:]
        axis = numbers.get(last)
        if axis is None or rows not in numbers or axis is axes[-1]:
            continue
        if order.runs_along(last) and layouts.number(axes[-1]) in order.axes:
            found.setdefault(axis, []).append(leaf.tensor)
    if not found:
        return None
    return max(found.items(), key=lambda item: len(item[1]))


def schedule(fusion: Fusion, parameters: PointwiseParameters) -> ScheduledFusion:
    """The loops; see the module's docstring."""
    if not parameters.tile:
        has_parts = _facts(fusion).transposed is None
        return pointwise.schedule(fusion, parameters, "transpose", has_parts)
    copy, cloner = fusion.clone()
    reference = cloner.values[reference_output(fusion)]
    assert isinstance(reference, TensorView)
    scheduled = ScheduledFusion(copy, scheduler="transpose", parameters=parameters)
    fork_outputs(scheduled)
    prefetch_inputs(scheduled, parameters.prefetch)
    layouts = Layouts(copy)
    found = transposed_inputs(reference, layouts)
    assert found is not None
    if parameters.across:
        _schedule_short_rows(scheduled, reference, found[0], layouts, parameters)
    elif isinstance(parameters, ThreadedPointwise):
        if parameters.squares:
            schedule_vector_tiles(scheduled, reference, *found, parameters)
            return scheduled
        threaded_tiles.schedule_tiles(scheduled, reference, *found, layouts, parameters)
    elif parameters.staged:
        staged_tiles.schedule_staged(scheduled, reference, *found, layouts, parameters)
    else:
        _schedule_tiles(scheduled, reference, *found, layouts, parameters)
    return scheduled


def _schedule_short_rows(
    scheduled: ScheduledFusion,
    reference: TensorView,
    row_axis: IterDomain,
    layouts: Layouts,
    parameters: PointwiseParameters,
) -> None:
    """[outer: task][chunk of columns: task][columns: serial][rows][columns: lanes].

    The rows of a vector of columns are read together, and put into the lanes in registers.
    """
    own = scheduled[reference]
    rows = Matrix.of(reference, row_axis, layouts).merge(scheduled, reference)
    own.split(rows + 1, parameters.chunk)
    own.split(rows + 2, parameters.lanes)
    own.reorder({rows: rows + 2})
    kinds = {rows: ParallelType.grid_x, rows + 3: ParallelType.block_x}
    if rows:
        kinds[0] = ParallelType.grid_y
    transform_like(scheduled, reference)
    parallelize_positions(scheduled, reference, kinds)
    inline_most(scheduled)


def _schedule_tiles(
    scheduled: ScheduledFusion,
    reference: TensorView,
    row_axis: IterDomain,
    transposed: list[TensorView],
    layouts: Layouts,
    parameters: PointwiseParameters,
) -> None:
    """Square by square, stored at once.

    Tasks follow each other along the rows: they read on in the memory of the transposed inputs,
    where the last task's pages and the rest of its cache lines are.  If a task takes all rows, the
    loops over rows and columns are interchanged.
    """
    matrix = Matrix.of(reference, row_axis, layouts)
    squares = [cache_after(scheduled, tensor) for tensor in transposed]
    inside = matrix.split_into_tasks(scheduled, reference, parameters.tile, parameters.chunk)
    split_into_squares(scheduled, reference, inside, parameters)
    if parameters.rows:
        scheduled[reference].reorder({inside: inside + 1})
    loop_like(scheduled, reference, scheduled.fusion.tensors)
    for square in squares:
        read_along_rows(scheduled, square, inside)
    inline_most(scheduled)
