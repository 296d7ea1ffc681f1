"""Rows whose parts are reduced, and then the results of these: the gradient of a group norm.

    the parts' results    [task: row][parts][serial][unroll][lanes]
    the row's results     [task: row][parts]
    what follows          [task: row][parts][serial][unroll][lanes]

A group norm's gradient needs two sums over each channel's image, for the gradients of its weights,
and of these, times the weights, two sums over the channels of a group, for that of its input.  In
one task both images are in the caches when they are read again.
"""

from __future__ import annotations

from dataclasses import replace

from ..analysis.iteration_space import IterationSpace
from ..ir.fusion import Fusion
from ..ir.scalars import ONE
from ..ir.schedule import ScheduledFusion
from ..ir.vals import TensorView
from ..target.parameters import ReductionFacts, ReductionParameters
from .cascade import rfactor_each, split_each
from .common import Layouts, merge_adjacent, merge_range, reductions
from .inlining import inline_most
from .reduced_axes import split_axes
from .reduction import reduction_facts, rfactor_rows, row_loops


def is_nested(fusion: Fusion) -> bool:
    """True if some reductions keep fewer axes than others."""
    space = IterationSpace.of_fusion(fusion)
    return len({space.axes(tensor) for tensor in reductions(fusion)}) > 1


def parts_reduction(fusion: Fusion, layouts: Layouts) -> TensorView:
    """The first of the reductions that keep most axes: those of the parts of rows."""
    return max(reductions(fusion), key=lambda tensor: len(layouts.space.axes(tensor)))


def nested_facts(fusion: Fusion) -> ReductionFacts:
    """The input of the heuristics: facts about the parts, which have no lanes for a part each."""
    facts = reduction_facts(fusion, parts_reduction(fusion, Layouts(fusion)))
    return replace(facts, across=ONE)


def schedule_nested(scheduled: ScheduledFusion, parameters: ReductionParameters) -> None:
    """The loops; see the module's docstring."""
    fusion = scheduled.fusion
    layouts = Layouts(fusion)
    found = reductions(fusion)
    reference = parts_reduction(fusion, layouts)
    parts = layouts.space.axes(reference)
    rows = parts.intersection(*(layouts.space.axes(tensor) for tensor in found))
    axes, _ = split_axes(reference, layouts)
    kept = [axis for axis in axes if not axis.is_reduction]
    kept.sort(key=lambda axis: layouts.number(axis) not in rows)
    own = scheduled[reference]
    own.loop = [*kept, *(axis for axis in axes if axis.is_reduction)]
    merge_range(scheduled, reference, 0, len(rows))
    first = min(len(rows), 1)
    start = first + len(kept) - len(rows)
    start += split_each(scheduled, reference, first, start)
    inner = merge_adjacent(scheduled, reference, layouts, start, len(own.loop))
    chains = row_loops(scheduled, reference, start, inner - start, parameters, fusion.tensors)
    for tensor in found:
        if layouts.space.axes(tensor) == parts:
            rfactor_rows(scheduled, tensor, *chains[tensor])
        else:
            rfactor_each(scheduled, tensor)
    inline_most(scheduled)
