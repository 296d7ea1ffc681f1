"""Transposed inputs through a stage: whole rows of a task's tile are transposed, then stored.

    squares, stages:  as in tiles.py
    the rest:         [tasks][row][serial][unroll][lanes]
    outputs:          [tasks][row][columns of the chunk]

A step over square tiles reads other inputs, and writes, a vector of each of many rows: jumps that
no prefetcher follows, and parts of cache lines if rows don't begin with one.  With what it
transposes in a buffer, a task goes along its rows.  They are any range of the inputs' memory, also
one that is several in the output's.  A row of results is put together, too, and stored by whole
cache lines.  If no other input is read along the rows, the results are computed square by square,
and they are the stages; not those of half precision, whose conversions between the reads of two
squares leave fewer of them in flight (measured on a Zen 5: 1.0 to 2 times as long, in float32 0.75
to 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..analysis.costs import is_copy
from ..dtypes import compute_dtype
from ..ir.domains import IterDomain, ParallelType, Split
from ..ir.schedule import MemoryType, ScheduledFusion
from ..ir.vals import TensorView
from ..target.parameters import PointwiseParameters
from .common import Layouts, prefetch_rows
from .inlining import inline_most
from .rewrite import cache_after, cache_before
from .tiles import Matrix, loop_like, read_along_rows, split_into_squares

# Measured on a Granite Rapids, out of cache, x + y.t() in float32 and bfloat16: without fetching
# 1.2 to 1.6 times as long, by 2 rows 1.0 to 1.3 times, by 8 rows the same.
_ROWS_AHEAD = 4


def staged_matrix(
    reference: TensorView, row_axis: IterDomain, transposed: list[TensorView], layouts: Layouts
) -> Matrix:
    """The rows are one range in the memory of the transposed inputs, in the inputs' order, and end
    with `row_axis`; the columns are one range in all leaves."""
    matrix = Matrix.of(reference, row_axis, layouts)
    number = layouts.space.number
    left = {
        number(axis): axis
        for axis in matrix.axes
        if not axis.is_broadcast and axis not in matrix.columns
    }
    inputs = [leaf for leaf in layouts.leaves if leaf.tensor in transposed]
    inner = number(row_axis)
    order = inputs[0].order_in({*left, inner}).axes
    rows = [row_axis]
    for outer in reversed(order[: order.index(inner)]):
        if outer not in left or not all(leaf.merges(outer, inner) for leaf in inputs):
            break
        rows.insert(0, left[outer])
        inner = outer
    return replace(matrix, rows=rows)


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
    matrix = staged_matrix(reference, row_axis, transposed, layouts)
    squares = [cache_after(scheduled, tensor) for tensor in transposed]
    outputs = [v for v in dict.fromkeys(scheduled.fusion.outputs) if isinstance(v, TensorView)]
    outputs = [output for output in outputs if output.expr is not None]
    are_alone = (
        not _other_matrices(layouts, matrix, transposed)
        and not _are_narrow(transposed)
        and _are_whole(outputs, reference)
    )
    stages = [] if are_alone else [cache_after(scheduled, square) for square in squares]
    results = {output: _result(scheduled, output, stages) for output in outputs}
    result = results[reference]  # which has the reference's axes now
    others = [tensor for tensor in scheduled.fusion.tensors if tensor not in outputs]
    if are_alone:
        stages = list(dict.fromkeys(results.values()))
        _schedule_squares(scheduled, result, matrix, squares, others, stages, parameters)
    else:
        both = [*squares, *stages]
        _schedule_squares(scheduled, result, matrix, squares, both, stages, parameters)
        others = [tensor for tensor in others if tensor not in both]
        _schedule_rows(scheduled, result, matrix, others, parameters)
    read = {leaf.tensor: leaf.tensor for leaf in layouts.leaves if leaf.tensor.expr is None}
    for tensor, before in (read | results).items():
        if tensor not in transposed:
            prefetch_rows(scheduled, layouts, row_axis, tensor, before.axes, _ROWS_AHEAD)
    of = dict(zip(result.axes, reference.axes, strict=True))
    _schedule_outputs(scheduled, reference, matrix.along(of), outputs, parameters)
    inline_most(scheduled)


def _schedule_squares(
    scheduled: ScheduledFusion,
    result: TensorView,
    matrix: Matrix,
    squares: Sequence[TensorView],
    tensors: list[TensorView],
    stages: Sequence[TensorView],
    parameters: PointwiseParameters,
) -> None:
    """`tensors`: the squares, which are read along the rows, the stages, which have whole rows, and
    what is computed in between."""
    inside = matrix.split_into_tasks(scheduled, result, parameters.tile, parameters.chunk)
    split_into_squares(scheduled, result, inside, parameters)
    loop_like(scheduled, result, tensors)
    for square in squares:
        read_along_rows(scheduled, square, inside)
    for stage in stages:
        own = scheduled[stage]
        column, row = own.loop[inside : inside + 2]
        own.memory_type = MemoryType.shared
        own.allocation = (_whole(row), _whole(_whole(column)))
        own.padding = parameters.lanes * parameters.unroll


def _schedule_rows(
    scheduled: ScheduledFusion,
    result: TensorView,
    matrix: Matrix,
    tensors: list[TensorView],
    parameters: PointwiseParameters,
) -> None:
    """[tasks][row][serial][unroll][lanes]"""
    own = scheduled[result]
    inside = matrix.split_into_tasks(scheduled, result, parameters.tile, parameters.chunk)
    own.split(inside + 1, parameters.lanes)
    own.split(inside + 1, parameters.unroll)
    own.parallelize(inside + 2, ParallelType.unroll)
    own.parallelize(inside + 3, ParallelType.block_x)
    loop_like(scheduled, result, tensors)


def _schedule_outputs(
    scheduled: ScheduledFusion,
    reference: TensorView,
    matrix: Matrix,
    outputs: list[TensorView],
    parameters: PointwiseParameters,
) -> None:
    """[tasks][row][columns of the chunk: one copy]"""
    inside = matrix.split_into_tasks(scheduled, reference, parameters.tile, parameters.chunk)
    scheduled[reference].parallelize(inside + 1, ParallelType.block_x)
    loop_like(scheduled, reference, outputs)


def _are_narrow(tensors: Sequence[TensorView]) -> bool:
    """True if they are computed in another dtype than they have."""
    return any(compute_dtype(tensor.dtype) is not tensor.dtype for tensor in tensors)


def _are_whole(outputs: Sequence[TensorView], reference: TensorView) -> bool:
    """True if all outputs have an element for each of the reference's."""
    return all(each.concrete_rank == reference.concrete_rank for each in outputs)


def _other_matrices(
    layouts: Layouts, matrix: Matrix, transposed: Sequence[TensorView]
) -> list[TensorView]:
    """Other inputs that have both rows and columns."""
    number = layouts.space.number
    rows, columns = ({number(axis) for axis in axes} for axes in (matrix.rows, matrix.columns))
    return [
        leaf.tensor
        for leaf in layouts.leaves
        if leaf.tensor.expr is None
        and leaf.tensor not in transposed
        and not rows.isdisjoint(leaf.order_in(rows | columns).axes)
        and not columns.isdisjoint(leaf.order_in(rows | columns).axes)
    ]


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


def _whole(axis: IterDomain) -> IterDomain:
    """The axis of which this one is a part."""
    assert isinstance(axis.definition, Split)
    return axis.definition.input_id
