"""The greedy scheduler: scans along one axis, with what feeds them and what reads their results;
and scatters, with what feeds them (scatters.py).

If the scanned axis is innermost in memory, a task takes a row, and the scan goes through the lanes:

    [row | scanned]              ->  [task: row][serial][unroll][lanes]

Otherwise the lanes are columns, each with a running result of its own:

    [other | scanned | columns]  ->  [task: other][task: columns][serial: scanned]
                                     [serial][unroll][lanes]

The loop over the scanned axis of a reversed scan begins at its last element.

Every tensor is computed in the loop that its readers share, so each input is read once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from ..dtypes import size_in_bytes
from ..ir.domains import IterDomain, ParallelType
from ..ir.exprs import ScanOp
from ..ir.fusion import Fusion
from ..ir.scalars import ONE, product
from ..ir.schedule import ScheduledFusion
from ..ir.vals import TensorView
from ..ops.table import SCANS
from ..target.parameters import ScanFacts, ScanParameters, ScatterParameters
from ..target.target import Target
from . import scatters
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
from .pointwise import widest_bytes
from .propagation import transform_like


def scanned_tensors(fusion: Fusion) -> list[TensorView]:
    """The result of every scan, in order."""
    return [expr.tensor_outputs[0] for expr in fusion.exprs if isinstance(expr, ScanOp)]


def scanned_axis(tensor: TensorView) -> IterDomain:
    """The axis of a scan's result along which elements are combined."""
    assert isinstance(tensor.expr, ScanOp)
    return tensor.expr.scanned


def columns_of(tensor: TensorView, layouts: Layouts) -> tuple[list[IterDomain], list[IterDomain]]:
    """(the axes outside, the innermost axes that are one range) of all but the scanned axis.

    There are no columns if the scanned axis is innermost in memory.
    """
    scanned = scanned_axis(tensor)
    order = layouts.memory_order(tensor.axes)
    if order[-1] is scanned:
        return order[:-1], []
    others = [axis for axis in order if axis is not scanned]
    first = first_of_range(others, len(others) - 1, layouts)
    return others[:first], others[first:]


@lru_cache(maxsize=256)
def scan_facts(fusion: Fusion) -> ScanFacts:
    """The input of the heuristics; computed once per fusion."""
    found = scanned_tensors(fusion)
    outer, columns = columns_of(found[0], Layouts(fusion))
    dtypes = [SCANS[t.expr.op].running_dtype(t.dtype) for t in found if isinstance(t.expr, ScanOp)]
    return ScanFacts(
        not columns,
        product(axis.size for axis in outer),
        scanned_axis(found[0]).size,
        product(axis.size for axis in columns) if columns else ONE,
        widest_bytes(fusion),
        sum(map(size_in_bytes, dtypes)),
        work_each(fusion),
        touched_bytes(fusion),
    )


def heuristics(
    fusion: Fusion, sizes: Mapping[str, int], target: Target
) -> ScanParameters | ScatterParameters:
    """The target's decisions."""
    if scatters.has_scatters(fusion):
        return scatters.heuristics(fusion, sizes, target)
    return target.greedy(scan_facts(fusion), sizes)


def candidates(
    fusion: Fusion,
    chosen: ScanParameters | ScatterParameters,
    sizes: Mapping[str, int],
    target: Target,
) -> Sequence[object]:
    """Other parameters that are worth measuring."""
    has_scatters = scatters.has_scatters(fusion)
    facts = scatters.scatter_facts(fusion) if has_scatters else scan_facts(fusion)
    return target.candidates(facts, chosen, sizes)


def schedule(fusion: Fusion, parameters: ScanParameters | ScatterParameters) -> ScheduledFusion:
    """The loops; see the module's docstring."""
    if isinstance(parameters, ScatterParameters):
        return scatters.schedule(fusion, parameters)
    copy, _ = fusion.clone()
    scheduled = ScheduledFusion(copy, scheduler="greedy", parameters=parameters)
    fork_outputs(scheduled)
    prefetch_inputs(scheduled, parameters.prefetch)
    layouts = Layouts(copy)
    reference = scanned_tensors(copy)[0]
    assert isinstance(reference.expr, ScanOp)
    outer, columns = columns_of(reference, layouts)
    own = scheduled[reference]
    own.loop = [*outer, *columns, scanned_axis(reference)]
    if reference.expr.is_reversed:
        own.reverse(-1)
    merge_range(scheduled, reference, len(outer), len(outer) + len(columns))
    merge_range(scheduled, reference, 0, len(outer))
    position = 1 if outer else 0
    kinds = {0: ParallelType.grid_x} if outer else {}
    if columns:
        if outer:
            kinds[0] = ParallelType.grid_y
        kinds[position] = ParallelType.grid_x
        own.split(position, parameters.block)
        own.split(position + 1, parameters.lanes)
        own.split(position + 1, parameters.unroll)
        own.reorder({position + 4: position + 1})
        position += 2
    else:
        own.split(position, parameters.lanes)
        own.split(position, parameters.unroll)
    kinds[position + 1] = ParallelType.unroll
    kinds[position + 2] = ParallelType.block_x
    transform_like(scheduled, reference)
    parallelize_positions(scheduled, reference, kinds)
    inline_most(scheduled)
    return scheduled
