"""The pointwise scheduler: computes every output element once, with intermediates in registers.

    reference output, in memory order:  [outer axes | innermost range]
    1-D:   [range]         ->  [task: chunk][serial][unroll][lanes]
    2-D:   [outer][range]  ->  [task: row][serial][unroll][lanes]
    few rows:              ->  [task: row][task: chunk][serial][unroll][lanes]
    short rows:            ->  [task: rows][row][serial][unroll][lanes]
    transposed inputs:     ->  [task: outer][task: tile][task: chunk][serial][serial][unroll][lanes]

The innermost range is made of as many axes as form one range in memory in all inputs and outputs
(the break point: a bias along the rows makes the fusion 2-D).  An input whose memory runs along
another axis is read in square tiles, along its own memory, and transposed through shared memory.

On hardware threads: threaded_pointwise.py and threaded_tiles.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from ..dtypes import size_in_bytes
from ..errors import InternalError, expected
from ..ir.domains import IterDomain, ParallelType
from ..ir.exprs import GatherOp
from ..ir.fusion import Fusion
from ..ir.scalars import IntExpr, product
from ..ir.schedule import MemoryType, ScheduledFusion
from ..ir.vals import TensorView
from ..target.parameters import PointwiseFacts, PointwiseParameters
from ..target.target import Target
from ..target.thread_parameters import ThreadedPointwise
from . import threaded_pointwise, threaded_tiles
from .acceptance import examine, reference_tensor
from .common import (
    Layouts,
    fork_outputs,
    leaves,
    merge_adjacent,
    merge_range,
    ordered_axes,
    parallelize_positions,
    prefetch_inputs,
    range_to,
    touched_bytes,
    work_each,
)
from .inlining import inline_most
from .propagation import transform_like
from .rewrite import cache_after
from .vectors import vector_bytes


def reference_output(fusion: Fusion) -> TensorView:
    """The output from whose axes all tensors can be indexed."""
    found = reference_tensor(examine(fusion))
    if found is None:
        raise InternalError(expected("pointwise", "a reference output", "a fusion without"))
    return found


def widest_bytes(fusion: Fusion) -> int:
    """Bytes of the widest computed element; an index usually serves many elements."""
    dtypes = {t.dtype for t in fusion.tensors if not _is_index(t)}
    return max((max(4, size_in_bytes(d)) for d in dtypes), default=4)


def _is_index(tensor: TensorView) -> bool:
    """True for an input that is only used as an index of gathers."""
    return tensor.expr is None and all(
        isinstance(reader, GatherOp) and reader.source is not tensor for reader in tensor.uses_list
    )


@lru_cache(maxsize=256)
def _facts(fusion: Fusion) -> PointwiseFacts:
    reference, layouts = reference_output(fusion), Layouts(fusion)
    axes = ordered_axes(reference)
    inner = range_to(axes[-1], axes, layouts) if axes else []
    outer = axes[: len(axes) - len(inner)]
    rank = sum(not axis.is_broadcast for axis in axes)
    rows, columns = product(a.size for a in outer), product(a.size for a in inner)
    groups = product(a.size for a in outer[:-1]) if len(outer) > 1 else None
    transposed = transposed_inputs(reference, layouts)
    extent: IntExpr | None = None
    extent_of_range: IntExpr | None = None
    if transposed is not None:
        extent = transposed[0].size
        extent_of_range = product(a.size for a in range_to(transposed[0], axes, layouts))
    narrowest = min((size_in_bytes(t.dtype) for t in leaves(fusion) if t.axes), default=4)
    return PointwiseFacts(
        rows,
        columns,
        groups,
        extent,
        extent_of_range,
        widest_bytes(fusion),
        narrowest,
        vector_bytes(layouts, axes),
        sum(leaf.tensor.expr is None and len(leaf.order) == rank for leaf in layouts.leaves),
        work_each(fusion),
        touched_bytes(fusion),
    )


def heuristics(fusion: Fusion, sizes: Mapping[str, int], target: Target) -> PointwiseParameters:
    """The target's decisions."""
    return target.pointwise(_facts(fusion), sizes)


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
    copy, cloner = fusion.clone()
    reference = cloner.values[reference_output(fusion)]
    assert isinstance(reference, TensorView)
    scheduled = ScheduledFusion(copy, scheduler="pointwise", parameters=parameters)
    if isinstance(parameters, ThreadedPointwise) and not parameters.tile:
        threaded_pointwise.schedule_vectors(scheduled, reference, parameters)
        return scheduled
    fork_outputs(scheduled)
    prefetch_inputs(scheduled, parameters.prefetch)
    layouts = Layouts(copy)
    own = scheduled[reference]
    own.loop = list(ordered_axes(reference))
    if not own.loop:
        inline_most(scheduled)
        return scheduled
    if parameters.tile:
        found = transposed_inputs(reference, layouts)
        assert found is not None
        if isinstance(parameters, ThreadedPointwise):
            threaded_tiles.schedule_tiles(scheduled, reference, *found, layouts, parameters)
        else:
            _schedule_tiles(scheduled, reference, *found, parameters)
        return scheduled
    inner = merge_adjacent(scheduled, reference, layouts, 0, len(own.loop))
    merge_range(scheduled, reference, 0, inner - parameters.rows)
    has_rows = inner > 0
    kinds: dict[int, ParallelType] = {}
    position = 0
    if has_rows:
        kinds[0] = ParallelType.grid_x
        position = 1 + parameters.rows
    if parameters.chunk:
        own.split(position, parameters.chunk)
        kinds[position] = ParallelType.grid_x
        if has_rows:
            kinds[0] = ParallelType.grid_y
        position += 1
    own.split(position, parameters.lanes)
    own.split(position, parameters.unroll)
    kinds[position + 1] = ParallelType.unroll
    kinds[position + 2] = ParallelType.block_x
    transform_like(scheduled, reference)
    parallelize_positions(scheduled, reference, kinds)
    inline_most(scheduled)
    return scheduled


def _schedule_tiles(
    scheduled: ScheduledFusion,
    reference: TensorView,
    row_axis: IterDomain,
    transposed: list[TensorView],
    parameters: PointwiseParameters,
) -> None:
    """[outer][tile][chunk][columns][rows][columns of a line][rows: unroll][columns: lanes]"""
    tiles = [cache_after(scheduled, tensor) for tensor in transposed]
    own = scheduled[reference]
    *outer, column_axis = [axis for axis in own.loop if axis is not row_axis]
    own.loop = [*outer, row_axis, column_axis]
    merge_range(scheduled, reference, 0, len(outer))
    rows = 1 if outer else 0
    own.split(rows, parameters.tile)
    own.split(rows + 1, parameters.lanes)
    own.split(rows + 3, parameters.chunk)
    own.split(rows + 4, parameters.lanes)
    own.split(rows + 4, parameters.unroll)
    # [outer][tile][rows][rows unroll][chunk][columns][columns of a line][lanes]
    own.reorder({rows + 1: rows + 3, rows + 2: rows + 5, rows + 3: rows + 1, rows + 4: rows + 2})
    kinds = {
        rows: ParallelType.grid_y,
        rows + 1: ParallelType.grid_x,
        rows + 5: ParallelType.unroll,
        rows + 6: ParallelType.block_x,
    }
    if outer:
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
