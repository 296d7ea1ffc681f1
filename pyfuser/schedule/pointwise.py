"""The pointwise scheduler: computes every output element once, with intermediates in registers.

    reference output, in memory order:  [outer axes | innermost range]
    1-D:   [range]         ->  [task: chunk][serial][unroll][lanes]
    2-D:   [outer][range]  ->  [task: row][serial][unroll][lanes]
    few rows:              ->  [task: row][task: chunk][serial][unroll][lanes]
    short rows:            ->  [task: rows][row][serial][unroll][lanes]
    a few columns:         ->  [outer][task: chunk of rows][rows: serial][columns][rows: lanes]
    an axis of parts:      ->  as without it, and [parts] around [lanes]

The innermost range is made of as many axes as form one range in memory in all inputs and outputs
(the break point: a bias along the rows makes the fusion 2-D).  What all parts of a tensor have in
common is computed once, around the loop over them (part_axes.py).  On hardware threads:
threaded_pointwise.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial

from ..dtypes import is_integer, size_in_bytes
from ..errors import InternalError, expected
from ..ir.domains import IterDomain, ParallelType
from ..ir.exprs import VIEWS, FullOp, GatherOp, IotaOp, PointwiseOp, WindowOp
from ..ir.fusion import Fusion
from ..ir.scalars import ONE, IntExpr, product
from ..ir.schedule import ScheduledFusion
from ..ir.vals import TensorView
from ..target.parameters import PointwiseFacts, PointwiseParameters
from ..target.target import Target
from ..target.thread_parameters import ThreadedPointwise
from . import threaded_pointwise
from .common import (
    Layouts,
    fork_outputs,
    functions_each,
    leaves,
    merge_adjacent,
    merge_range,
    ordered_axes,
    parallelize_positions,
    prefetch_inputs,
    prefetch_rows,
    range_to,
    touched_bytes,
    work_each,
)
from .facts import examine, reference_tensor
from .inlining import inline_most, inline_tasks
from .part_axes import around_parts, axis_of_parts
from .propagation import transform_like
from .shared_reads import Copies, share_reads, with_shared_reads
from .vectors import vector_bytes, vector_steps

# Measured on a Zen 5, out of cache, heads of 64 and 80 elements exchanged with positions: 0.5 to
# 0.9 of the time of fetching 4096 bytes ahead, rows of 130 bytes 0.8; 8 rows gave less.
_ROWS_AHEAD = 16


def reference_output(fusion: Fusion) -> TensorView:
    """The output from whose axes all tensors can be indexed."""
    found = reference_tensor(examine(fusion))
    if found is None:
        raise InternalError(expected("pointwise", "a reference output", "a fusion without"))
    return found


def widest_bytes(fusion: Fusion) -> int:
    """Bytes of the widest computed element; an index, or one element, usually serves many."""
    return widest_of(fusion, (t for t in fusion.tensors if not _is_one_element(t)))


def widest_of(fusion: Fusion, tensors: Iterable[TensorView]) -> int:
    """Bytes of the widest computed element of some tensors.

    Positions, and whole numbers that follow from them alone, don't count unless they are stored:
    the bounds of a mask or a distance are few instructions beside the elements that are moved.
    """
    positions = _positions(fusion)
    dtypes = {each.dtype for each in tensors if not _is_index(each) and each not in positions}
    return max((max(4, size_in_bytes(d)) for d in dtypes), default=4)


def _positions(fusion: Fusion) -> set[TensorView]:
    """The whole numbers in registers that follow from positions alone."""
    found: set[TensorView] = set()
    for expr in fusion.exprs:
        is_counted = isinstance(expr, (IotaOp, FullOp, PointwiseOp, *VIEWS))
        if is_counted and found.issuperset(expr.tensor_inputs):
            found.update(expr.tensor_outputs)
    outputs = set(fusion.outputs)
    return {each for each in found if is_integer(each.dtype) and each not in outputs}


def _is_one_element(tensor: TensorView) -> bool:
    return all(axis.is_broadcast for axis in tensor.domain.root_or_logical)


def _is_index(tensor: TensorView) -> bool:
    """True for an input that is only used as an index of gathers."""
    return tensor.expr is None and all(
        isinstance(reader, GatherOp) and reader.source is not tensor for reader in tensor.uses_list
    )


@lru_cache(maxsize=256)
def pointwise_facts(fusion: Fusion, has_parts: bool = True) -> PointwiseFacts:
    """The input of the heuristics; computed once per fusion.

    Its rows are without the axis of parts, if the schedule `has_parts`.
    """
    reference, layouts = reference_output(fusion), Layouts(fusion)
    axes = ordered_axes(reference)
    if has_parts:
        parts = axis_of_parts(fusion, reference, layouts)
        axes = [axis for axis in axes if axis is not parts]
    inner = range_to(axes[-1], axes, layouts) if axes else []
    outer = axes[: len(axes) - len(inner)]
    rank = reference.concrete_rank
    rows, columns = product(a.size for a in outer), product(a.size for a in inner)
    groups = product(a.size for a in outer[:-1]) if len(outer) > 1 else None
    along = layouts.space.of(inner)
    varying = [t for t in fusion.tensors if not along.isdisjoint(layouts.space.axes(t))]
    narrowest = min((size_in_bytes(t.dtype) for t in leaves(fusion) if t.axes), default=4)
    return PointwiseFacts(
        rows,
        columns,
        groups,
        None,
        widest_of(fusion, varying),
        narrowest,
        vector_bytes(layouts, axes),
        sum(leaf.tensor.expr is None and len(leaf.own.axes) == rank for leaf in layouts.leaves)
        + sum(layouts.number(axes[-1]) in read.own.axes for read in layouts.reads if axes),
        work_each(fusion),
        functions_each(fusion),
        touched_bytes(fusion),
        vector_steps(layouts, axes),
        product(a.size for a in (range_to(outer[-1], outer, layouts) if outer else [])),
        joined=_ends_of_parts(fusion, layouts, inner),
        stored=sum(
            leaf.tensor.expr is not None and len(leaf.own.axes) == rank for leaf in layouts.leaves
        ),
        apart=layouts.apart(outer[-1], inner[0]) if outer else 0,
    )


def _ends_of_parts(
    fusion: Fusion, layouts: Layouts, inner: Sequence[IterDomain]
) -> tuple[IntExpr, ...]:
    """Where what is inside of a window, and filled elsewhere, begins and ends along a range."""
    found: list[IntExpr] = []
    for expr in fusion.exprs:
        if not isinstance(expr, WindowOp) or expr.name != "pad":
            continue
        roots = expr.tensor_outputs[0].domain.root_or_logical
        windows = {layouts.number(a): w for a, w in zip(roots, expr.windows, strict=True) if w}
        step: IntExpr = ONE
        for axis in reversed(inner):
            window = windows.get(layouts.number(axis))
            if window is not None:
                found += [window.left * step, window.stop * step]
            step = step * axis.size
    return tuple(dict.fromkeys(found))


def heuristics(fusion: Fusion, sizes: Mapping[str, int], target: Target) -> PointwiseParameters:
    """The target's decisions."""
    return target.pointwise(pointwise_facts(fusion), sizes)


def candidates(
    fusion: Fusion, chosen: PointwiseParameters, sizes: Mapping[str, int], target: Target
) -> Sequence[object]:
    """Other parameters that are worth measuring."""
    return target.candidates(pointwise_facts(fusion), chosen, sizes)


def schedule(
    fusion: Fusion,
    parameters: PointwiseParameters,
    scheduler: str = "pointwise",
    has_parts: bool = True,
) -> ScheduledFusion:
    """The loops; see the module's docstring.  `has_parts` as the facts had for the parameters."""
    if isinstance(parameters, ThreadedPointwise):
        copy, cloner = fusion.clone()
        reference = cloner.values[reference_output(fusion)]
        assert isinstance(reference, TensorView)
        scheduled = ScheduledFusion(copy, scheduler=scheduler, parameters=parameters)
        threaded_pointwise.schedule_vectors(scheduled, reference, parameters)
        return scheduled
    return with_shared_reads(partial(_schedule, fusion, parameters, scheduler, has_parts))


def _schedule(
    fusion: Fusion,
    parameters: PointwiseParameters,
    scheduler: str,
    has_parts: bool,
    shares_reads: bool,
) -> tuple[ScheduledFusion, Copies]:
    """The loops, and the copies of inputs if reads are shared."""
    copy, cloner = fusion.clone()
    reference = cloner.values[reference_output(fusion)]
    assert isinstance(reference, TensorView)
    scheduled = ScheduledFusion(copy, scheduler=scheduler, parameters=parameters)
    fork_outputs(scheduled)
    prefetch_inputs(scheduled, parameters.prefetch)
    copies = share_reads(scheduled) if shares_reads else ()
    layouts = Layouts(copy)
    parts = axis_of_parts(copy, reference, layouts) if has_parts else None
    if parameters.rows and parameters.prefetch:
        _prefetch_apart(scheduled, reference, parts, layouts)
    own = scheduled[reference]
    own.loop = [axis for axis in ordered_axes(reference) if axis is not parts]
    if not own.loop:
        inline_most(scheduled)
        return scheduled, copies
    inner = merge_adjacent(scheduled, reference, layouts, 0, len(own.loop))
    if parameters.across:
        kinds = _lanes_across(scheduled, reference, layouts, inner, parameters)
    else:
        kinds = _lanes_along(scheduled, reference, inner, parameters)
    steps = [kinds.get(place, ParallelType.serial) for place in range(len(own.loop))]
    once: Sequence[TensorView] = ()
    if parts is None:
        transform_like(scheduled, reference)
    else:
        place = len(steps) - (2 if parameters.across else 1)
        own.loop.insert(place, parts)
        transform_like(scheduled, reference)
        once = around_parts(scheduled, reference, parts)
        kinds = dict(enumerate([*steps[:place], ParallelType.unroll, *steps[place:]]))
    others = [tensor for tensor in copy.tensors if tensor not in once]
    parallelize_positions(scheduled, reference, kinds, others)
    for tensor in once:
        for axis, kind in zip(scheduled[tensor].loop, steps, strict=False):
            axis.parallel_type = kind
    inline_tasks(scheduled)
    return scheduled, copies


def _lanes_along(
    scheduled: ScheduledFusion, reference: TensorView, inner: int, parameters: PointwiseParameters
) -> dict[int, ParallelType]:
    """Loops [outer: task][columns: task or serial][unroll][lanes] and their types."""
    own = scheduled[reference]
    kinds: dict[int, ParallelType] = {}
    merge_range(scheduled, reference, 0, inner - parameters.rows)
    has_rows = inner > 0
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
    return kinds


def _prefetch_apart(
    scheduled: ScheduledFusion, reference: TensorView, parts: IterDomain | None, layouts: Layouts
) -> None:
    """Makes reads of rows that don't follow each other in memory fetch rows ahead.

    What follows a row in memory isn't read next, and no prefetcher follows jumps from page to page.
    """
    axes = [axis for axis in ordered_axes(reference) if axis is not parts]
    columns = range_to(axes[-1], axes, layouts)
    row, number = axes[-len(columns) - 1], layouts.space.number
    for leaf in layouts.leaves:
        if leaf.tensor.expr is None and not leaf.merges(number(row), number(columns[0])):
            prefetch_rows(scheduled, layouts, row, leaf.tensor, leaf.tensor.axes, _ROWS_AHEAD)


def _lanes_across(
    scheduled: ScheduledFusion,
    reference: TensorView,
    layouts: Layouts,
    inner: int,
    parameters: PointwiseParameters,
) -> dict[int, ParallelType]:
    """Loops [outer][chunk of rows: task][rows: serial][columns][rows: lanes] and their types."""
    own = scheduled[reference]
    rows = merge_adjacent(scheduled, reference, layouts, 0, inner)
    merge_range(scheduled, reference, 0, rows)
    position = 1 if rows else 0
    own.split(position, parameters.chunk)
    own.split(position + 1, parameters.lanes)
    own.reorder({position + 2: position + 3})
    kinds = {position: ParallelType.grid_x, position + 3: ParallelType.block_x}
    if parameters.unroll > 1:
        kinds[position + 2] = ParallelType.unroll
    if rows:
        kinds[0] = ParallelType.grid_y
    return kinds
