"""Transposed inputs through a stage: whole rows of a task's tile are transposed, then computed.

    tiles, stages:  [outer][task: tile][task: chunk][columns][rows][unroll][lanes]
    the rest:       [outer][task: tile][task: chunk][row][serial][lanes]
    outputs:        [outer][task: tile][task: chunk][row][columns of the chunk]

A step over square tiles reads other inputs, and writes, a vector of each of many rows: jumps that
no prefetcher follows, and parts of cache lines if rows don't begin with one.  With what it
transposes in a buffer, a task goes along its rows.  They are any range of the inputs' memory, also
one that is several in the output's.  A row of results is put together, too, and stored by whole
cache lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..analysis.costs import is_copy
from ..ir.domains import IterDomain, ParallelType, Split
from ..ir.schedule import MemoryType, ScheduledFusion
from ..ir.vals import TensorView
from ..target.parameters import PointwiseParameters
from .common import Layouts, merge_rows_and_columns, ordered_axes, range_to
from .inlining import inline_most
from .propagation import parallelize_like, transform_like
from .rewrite import cache_after, cache_before

# Measured on a Granite Rapids, out of cache, x + y.t() in float32 and bfloat16: without fetching
# 1.2 to 1.6 times as long, by 2 rows 1.0 to 1.3 times, by 8 rows the same.
_ROWS_AHEAD = 4

_TASKS = (ParallelType.grid_z, ParallelType.grid_x, ParallelType.grid_y)


def staged_rows_and_columns(
    axes: Sequence[IterDomain], row_axis: IterDomain, transposed: list[TensorView], layouts: Layouts
) -> tuple[list[IterDomain], list[IterDomain]]:
    """The rows that are one range in the memory of the transposed inputs and end with `row_axis`,
    in the inputs' order, and the columns, one range in all leaves."""
    real = [axis for axis in axes if not axis.is_broadcast]
    columns = range_to(real[-1], real, layouts)
    number = layouts.space.number
    left = {number(axis): axis for axis in real if axis not in columns}
    inputs = [leaf for leaf in layouts.leaves if leaf.tensor in transposed]
    order, inner = inputs[0].order, number(row_axis)
    rows = [row_axis]
    for outer in reversed(order[: order.index(inner)]):
        if outer not in left or not all(leaf.merges(outer, inner) for leaf in inputs):
            break
        rows.insert(0, left[outer])
        inner = outer
    return rows, columns


def schedule_staged(
    scheduled: ScheduledFusion,
    reference: TensorView,
    row_axis: IterDomain,
    transposed: list[TensorView],
    layouts: Layouts,
    parameters: PointwiseParameters,
) -> None:
    """The loops; see the module's docstring.  `row_axis` is the reference axis along which the
    transposed inputs are contiguous."""
    axes = ordered_axes(reference)
    matrix = _Matrix(axes, *staged_rows_and_columns(axes, row_axis, transposed, layouts))
    tiles = [cache_after(scheduled, tensor) for tensor in transposed]
    stages = [cache_after(scheduled, tile) for tile in tiles]
    outputs = [v for v in dict.fromkeys(scheduled.fusion.outputs) if isinstance(v, TensorView)]
    outputs = [output for output in outputs if output.expr is not None]
    results = {output: _result(scheduled, output, stages) for output in outputs}
    result = results[reference]  # which has the reference's axes now
    _schedule_squares(scheduled, result, matrix, tiles, stages, parameters)
    done = {*tiles, *stages, *outputs}
    others = [tensor for tensor in scheduled.fusion.tensors if tensor not in done]
    _schedule_rows(scheduled, result, matrix, others, parameters)
    _fetch_rows_ahead(scheduled, layouts, row_axis, transposed)
    of = dict(zip(result.axes, reference.axes, strict=True))
    _schedule_outputs(scheduled, reference, matrix.along(of), outputs, parameters)
    inline_most(scheduled)


@dataclass(frozen=True, slots=True)
class _Matrix:
    """The axes of a tensor in memory order, and which of them are its rows and columns."""

    axes: Sequence[IterDomain]
    rows: Sequence[IterDomain]
    columns: Sequence[IterDomain]

    def along(self, of: Mapping[IterDomain, IterDomain]) -> _Matrix:
        """The same of another tensor."""
        return _Matrix(*([of[a] for a in each] for each in (self.axes, self.rows, self.columns)))

    def split_into_tasks(
        self, scheduled: ScheduledFusion, tensor: TensorView, parameters: PointwiseParameters
    ) -> int:
        """[outer][task: tile][task: chunk][rows of the tile][columns of the chunk]; returns the
        position of the rows."""
        own = scheduled[tensor]
        own.loop = list(self.axes)
        first = merge_rows_and_columns(scheduled, tensor, self.rows, self.columns)
        own.split(first, parameters.tile)
        own.split(first + 2, parameters.chunk)
        own.reorder({first + 1: first + 2})
        for position, kind in enumerate(_TASKS[-first - 2 :]):
            own.parallelize(position, kind)
        return first + 2


def _schedule_squares(
    scheduled: ScheduledFusion,
    result: TensorView,
    matrix: _Matrix,
    tiles: Sequence[TensorView],
    stages: Sequence[TensorView],
    parameters: PointwiseParameters,
) -> None:
    """[tasks][columns][rows][columns of a line: unroll][rows: unroll][columns: lanes]

    A tile, which is a square, has its lanes along the rows.
    """
    own = scheduled[result]
    inside = matrix.split_into_tasks(scheduled, result, parameters)
    own.split(inside, parameters.lanes)
    own.split(inside + 2, parameters.lanes)
    own.split(inside + 2, parameters.unroll)
    own.reorder({inside: inside + 1, inside + 1: inside + 3, inside + 2: inside})
    for position in (inside + 2, inside + 3):
        own.parallelize(position, ParallelType.unroll)
    own.parallelize(inside + 4, ParallelType.block_x)
    _like(scheduled, result, [*tiles, *stages])
    for tile, stage in zip(tiles, stages, strict=True):
        column, row = scheduled[stage].loop[inside : inside + 2]
        scheduled[stage].allocation = (_whole(row), _whole(_whole(column)))
        scheduled[stage].padding = parameters.lanes * parameters.unroll
        scheduled[tile].reorder({inside + 3: inside + 4})
        scheduled[tile].parallelize(inside + 3, ParallelType.unroll)
        scheduled[tile].parallelize(inside + 4, ParallelType.block_x)
        for each in (tile, stage):
            scheduled[each].memory_type = MemoryType.shared


def _schedule_rows(
    scheduled: ScheduledFusion,
    result: TensorView,
    matrix: _Matrix,
    tensors: list[TensorView],
    parameters: PointwiseParameters,
) -> None:
    """[tasks][row][serial][unroll][lanes]"""
    own = scheduled[result]
    inside = matrix.split_into_tasks(scheduled, result, parameters)
    own.split(inside + 1, parameters.lanes)
    own.split(inside + 1, parameters.unroll)
    own.parallelize(inside + 2, ParallelType.unroll)
    own.parallelize(inside + 3, ParallelType.block_x)
    _like(scheduled, result, tensors)


def _schedule_outputs(
    scheduled: ScheduledFusion,
    reference: TensorView,
    matrix: _Matrix,
    outputs: list[TensorView],
    parameters: PointwiseParameters,
) -> None:
    """[tasks][row][columns of the chunk: one copy]"""
    inside = matrix.split_into_tasks(scheduled, reference, parameters)
    scheduled[reference].parallelize(inside + 1, ParallelType.block_x)
    _like(scheduled, reference, outputs)


def _result(
    scheduled: ScheduledFusion, output: TensorView, stages: Sequence[TensorView]
) -> TensorView:
    """A row that is stored when it is complete; the output itself if it is a copy of a stage."""
    assert output.expr is not None
    if is_copy(output.expr) and output.expr.inputs[0] in stages:
        return output
    result = cache_before(scheduled, output)
    scheduled[result].memory_type = MemoryType.shared
    return result


def _fetch_rows_ahead(
    scheduled: ScheduledFusion,
    layouts: Layouts,
    row_axis: IterDomain,
    transposed: Sequence[TensorView],
) -> None:
    """Makes reads of inputs row by row fetch ahead along the rows."""
    number = layouts.space.number
    for leaf in layouts.leaves:
        if leaf.tensor.expr is not None or leaf.tensor in transposed:
            continue
        for axis in leaf.tensor.axes:
            if not axis.is_broadcast and number(axis) == number(row_axis):
                schedule = scheduled[leaf.tensor]
                schedule.prefetch, schedule.along = _ROWS_AHEAD, axis


def _like(scheduled: ScheduledFusion, reference: TensorView, tensors: list[TensorView]) -> None:
    """Gives some tensors the reference's loops, and their kinds."""
    if not tensors:
        return
    transform_like(scheduled, reference, tensors)
    parallelize_like(scheduled, reference, tensors=tensors)


def _whole(axis: IterDomain) -> IterDomain:
    """The axis of which this one is a part."""
    assert isinstance(axis.definition, Split)
    return axis.definition.input_id
