"""The loops of scatters, for the greedy scheduler: over the values, with what computes them.

The scheduler's copy of a scatter is a write: its target is the memory of the result, which holds
the base when the kernel starts, and its own axes are those of the values. Values that go to one
element do so in order if the scattered axes are loops:

    [other | scattered | columns]  ->  [task: other][task: columns][serial: scattered]
                                       [serial][unroll][lanes]
    [other | scattered]            ->  [task: other][serial: scattered]

No two tasks or lanes then write one element, and the result doesn't depend on the number of
threads. Hardware threads may also share all axes, which combines values in any order:

    [other | scattered | columns]  ->  [grid: everything][block]
                                       [grid_y: other, scattered][grid_x][unroll][block: columns]

Before:  T4[d, c] = scatter(T0, T1, T2[n, c], dim=0)
After:   T5[n, c] = write(T4, T1, T2[n, c], dim=0), in the loops of T5
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from ..dtypes import size_in_bytes
from ..ir.domains import IterDomain, ParallelType, TensorDomain
from ..ir.exprs import ScatterOp, WriteOp
from ..ir.fusion import Fusion
from ..ir.scalars import product
from ..ir.schedule import ScheduledFusion
from ..ir.vals import TensorView
from ..target.parameters import ScatterFacts, ScatterParameters
from ..target.target import Target
from .common import (
    Layouts,
    first_of_range,
    fork_outputs,
    merge_range,
    parallelize_positions,
    prefetch_inputs,
    touched_bytes,
    work_each,
)
from .inlining import inline_most
from .pointwise import widest_bytes, widest_of
from .propagation import transform_like


def has_scatters(fusion: Fusion) -> bool:
    """True if the fusion has a scatter."""
    return any(isinstance(expr, ScatterOp) for expr in fusion.exprs)


def replace_scatters(fusion: Fusion) -> list[TensorView]:
    """Replaces each scatter of a scheduler's own copy by a write; returns the writes' outputs."""
    found = []
    for expr in [e for e in fusion.exprs if isinstance(e, ScatterOp)]:
        target = expr.output
        assert isinstance(target, TensorView)
        fusion.remove_expr(expr)
        target.expr = None
        fusion.add_input(target)
        axes = [fusion.ids.new(axis.size, axis.iter_type) for axis in expr.value.axes]
        contiguity = [None if axis.is_broadcast else True for axis in axes]
        written = fusion.new_tensor(TensorDomain(axes, contiguity), target.dtype)
        inputs = (target, expr.index, expr.value)
        fusion.add_expr(WriteOp(inputs, (written,), *expr.attributes()))
        _replace_output(fusion, target, written)
        found.append(written)
    return found


def _replace_output(fusion: Fusion, old: TensorView, new: TensorView) -> None:
    fusion.outputs = [new if value is old else value for value in fusion.outputs]
    if old in fusion.aliases:
        fusion.aliases[new] = fusion.aliases.pop(old)
    if old in fusion.hidden_outputs:
        fusion.hidden_outputs = fusion.hidden_outputs - {old} | {new}


def axes_of(
    written: TensorView, layouts: Layouts
) -> tuple[list[IterDomain], list[IterDomain], list[IterDomain]]:
    """(other axes, the innermost ones that are one range, scattered axes in their order)."""
    assert isinstance(written.expr, WriteOp)
    scattered = [written.axes[place] for place in written.expr.scattered]
    order = layouts.memory_order(written.axes)
    outer = [axis for axis in order if axis not in scattered]
    if not outer or order[-1] in scattered:
        return outer, [], scattered
    first = first_of_range(order, len(order) - 1, layouts)
    columns = order[max([first, *(order.index(axis) + 1 for axis in scattered)]) :]
    return [axis for axis in outer if axis not in columns], columns, scattered


@lru_cache(maxsize=256)
def scatter_facts(fusion: Fusion) -> ScatterFacts:
    """The input of the heuristics; computed once per fusion."""
    copy, _ = fusion.clone()
    written = replace_scatters(copy)
    layouts = Layouts(copy)
    outer, columns, scattered = axes_of(written[0], layouts)
    along = layouts.space.of(columns)
    varying = [t for t in copy.tensors if not along.isdisjoint(layouts.space.axes(t))]
    combined = [t for t in written if isinstance(t.expr, WriteOp) and t.expr.how != "set"]
    return ScatterFacts(
        product(axis.size for axis in outer),
        product(axis.size for axis in scattered),
        product(axis.size for axis in columns) if columns else None,
        widest_of(copy, varying) if columns else widest_bytes(copy),
        min((size_in_bytes(tensor.dtype) for tensor in combined), default=None),
        work_each(copy),
        touched_bytes(copy),
    )


def heuristics(fusion: Fusion, sizes: Mapping[str, int], target: Target) -> ScatterParameters:
    """The target's decisions."""
    return target.scatter(scatter_facts(fusion), sizes)


def schedule(fusion: Fusion, parameters: ScatterParameters) -> ScheduledFusion:
    """The loops; see the module's docstring."""
    copy, _ = fusion.clone()
    reference = replace_scatters(copy)[0]
    scheduled = ScheduledFusion(copy, scheduler="greedy", parameters=parameters)
    fork_outputs(scheduled)
    prefetch_inputs(scheduled, parameters.prefetch)
    layouts = Layouts(copy)
    if parameters.is_concurrent:
        kinds = _shared_loops(scheduled, reference, layouts, parameters)
    else:
        kinds = _ordered_loops(scheduled, reference, layouts, parameters)
    transform_like(scheduled, reference)
    parallelize_positions(scheduled, reference, kinds)
    inline_most(scheduled)
    return scheduled


_IN_ROWS = (
    ParallelType.grid_y,
    ParallelType.grid_x,
    ParallelType.unroll,
    ParallelType.block_x,
)


def _shared_loops(
    scheduled: ScheduledFusion,
    reference: TensorView,
    layouts: Layouts,
    parameters: ScatterParameters,
) -> dict[int, ParallelType]:
    own = scheduled[reference]
    own.loop = layouts.memory_order(reference.axes)
    if not parameters.has_rows:
        merge_range(scheduled, reference, 0, len(own.loop))
        own.split(0, parameters.block)
        return {0: ParallelType.grid_x, 1: ParallelType.block_x}
    _, columns, _ = axes_of(reference, layouts)
    rows = len(own.loop) - len(columns)
    merge_range(scheduled, reference, rows, len(own.loop))
    merge_range(scheduled, reference, 0, rows)
    own.split(1, parameters.block)
    own.split(1, parameters.unroll)
    return dict(enumerate(_IN_ROWS))


def _ordered_loops(
    scheduled: ScheduledFusion,
    reference: TensorView,
    layouts: Layouts,
    parameters: ScatterParameters,
) -> dict[int, ParallelType]:
    outer, columns, scattered = axes_of(reference, layouts)
    own = scheduled[reference]
    own.loop = [*outer, *columns, *scattered]
    merge_range(scheduled, reference, len(outer), len(outer) + len(columns))
    merge_range(scheduled, reference, 0, len(outer))
    if not columns:
        kinds = {0: ParallelType.grid_x} if outer else {}
        if outer and parameters.block > 1:
            own.split(0, parameters.block)
            kinds[1] = ParallelType.block_x
        if scattered and parameters.unroll > 1:
            own.split(-1, parameters.unroll)
            kinds[len(own.loop) - 1] = ParallelType.unroll
        return kinds
    kinds = {0: ParallelType.grid_y} if outer else {}
    position = len(kinds)
    kinds[position] = ParallelType.grid_x
    own.split(position, parameters.block)
    own.split(position + 1, parameters.lanes)
    own.split(position + 1, parameters.unroll)
    own.reorder({position + 4 + i: position + 1 + i for i in range(len(scattered))})
    position += 1 + len(scattered)
    kinds[position + 1] = ParallelType.unroll
    kinds[position + 2] = ParallelType.block_x
    return kinds
