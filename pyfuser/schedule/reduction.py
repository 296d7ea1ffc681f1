"""The reduction scheduler: one or more reductions over the same axes, and what is around them.

Inner (the innermost axis in memory is reduced), rows are tasks:

    [row | other reduced axes | range]  ->  [task: row][serial...][serial][unroll][lanes]
    rfactor of the serial loops: unroll * lanes partial results stay in registers; rfactor of the
    unrolled loop adds those vectors, so that lanes are added across once a row

Outer (the innermost axis is kept), tasks are blocks of columns; several rows are added in registers
before they are added to the block's results, which stay in the L1 cache:

    [reduced | columns]  ->  [task: columns][serial: rows][serial][lanes][unroll: rows]

With few tasks the reduced axes are cut over the grid too, into partial results in scratch memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..ir.domains import IterDomain, ParallelType
from ..ir.fusion import Fusion
from ..ir.scalars import IntExpr, evaluate, product
from ..ir.schedule import ScheduledFusion
from ..ir.vals import TensorView
from .cascade import Levels, chain_extents, levels, rfactor_blocks, split_chain
from .common import (
    Layouts,
    fork_outputs,
    merge_adjacent,
    parallelize_positions,
    prefetch_distance,
    prefetch_inputs,
    reductions,
)
from .inlining import inline_most
from .pointwise import widest_bytes
from .propagation import transform_like
from .rewrite import rfactor


@dataclass(frozen=True, slots=True)
class ReductionParameters:
    """inner      the innermost axis is reduced
    lanes      elements of one vector
    unroll     vectors (inner) or rows (outer) a step, written out
    block      columns a task takes (outer)
    parts      pieces that the reduced axes are cut into over the grid; 1: they are not
    prefetch   bytes that reads fetch ahead
    cascade    where the chain of a sum's additions is cut (schedule/cascade.py)
    """

    inner: bool
    lanes: int
    unroll: int
    block: int
    parts: int
    prefetch: int = 0
    cascade: Levels = ()


def split_axes(tensor: TensorView, layouts: Layouts) -> tuple[list[IterDomain], bool]:
    """The axes of a reduction in memory order, and whether the innermost is reduced."""
    axes = layouts.memory_order(tensor.domain.logical)
    return axes, bool(axes) and axes[-1].is_reduction


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the heuristics need of a fusion beside its sizes: computed once for a fusion."""

    inner: bool
    kept: IntExpr
    reduced: IntExpr
    chain: tuple[IntExpr, ...]
    bytes: int
    count: int


@lru_cache(maxsize=256)
def _facts(fusion: Fusion) -> _Facts:
    found = reductions(fusion)
    layouts = Layouts(fusion)
    axes, inner = split_axes(found[0], layouts)
    kept = product(a.extent for a in axes if not a.is_reduction)
    reduced = [a for a in axes if a.is_reduction]
    total = product(a.extent for a in reduced)
    chain = chain_extents(reduced, layouts)
    return _Facts(inner, kept, total, chain, widest_bytes(fusion), len(found))


def heuristics(fusion: Fusion, sizes: Mapping[str, int], machine: Any) -> ReductionParameters:
    """Tasks for every core several times over; results of an outer reduction in half of L1."""
    facts = _facts(fusion)
    kept, reduced = evaluate(facts.kept, sizes), evaluate(facts.reduced, sizes)
    lanes = machine.lanes(facts.bytes)
    parts = 2 * machine.cores  # more make more partial results, and gained nothing
    prefetch = prefetch_distance(fusion, sizes, machine)
    enough_work = kept * reduced >= 64 << 10  # less is done before another thread has woken up
    if facts.inner:
        few = kept < 2 * machine.cores
        unroll = inner_unroll(reduced, lanes)
        parts = parts if few and enough_work else 1
        cascade = chain_levels(facts.chain, sizes, lanes * unroll * parts)
        return ReductionParameters(True, lanes, unroll, 0, parts, prefetch, cascade)
    # a power of two of columns whose results take at most half of the L1 cache
    most = min(machine.l1_bytes // 2 // (facts.bytes * facts.count), kept, 2048)
    block = lanes
    while block * 2 <= most:
        block *= 2
    few = kept < 2 * machine.cores * block
    parts = parts if few and enough_work else 1
    cascade = chain_levels(facts.chain, sizes, 4 * parts)
    return ReductionParameters(False, lanes, 4, block, parts, prefetch, cascade)


def chain_levels(chain: Sequence[IntExpr], sizes: Mapping[str, int], step: int) -> Levels:
    """Where to cut a chain that takes `step` elements of its innermost loop at once."""
    *others, innermost = (evaluate(extent, sizes) for extent in chain)
    return levels([*others, -(-innermost // step)])


def inner_unroll(reduced: int, lanes: int, most: int = 8) -> int:
    """Accumulators a row: eight hide an add's latency; a short row shouldn't be all tail."""
    unroll = most
    while unroll > 1 and unroll * lanes * (8 if unroll > 4 else 1) > reduced:
        unroll //= 2
    return unroll


def schedule(fusion: Fusion, parameters: ReductionParameters) -> ScheduledFusion:
    """The loops; see the module's text."""
    copy, _ = fusion.clone()
    scheduled = ScheduledFusion(copy, scheduler="reduction", parameters=parameters)
    fork_outputs(scheduled)
    prefetch_inputs(scheduled, parameters.prefetch)
    layouts = Layouts(copy)
    reference = reductions(copy)[0]
    if parameters.inner:
        schedule_inner(scheduled, reference, layouts, parameters)
    else:
        _schedule_outer(scheduled, reference, layouts, parameters)
    return scheduled


def arrange(scheduled: ScheduledFusion, reference: TensorView, layouts: Layouts) -> tuple[int, int]:
    """Loops [kept axes, merged][other reduced axes][innermost reduced range] of a reduction.

    Returns (number of kept loops: 0 or 1, number of other reduced loops).
    """
    own = scheduled[reference]
    axes, _ = split_axes(reference, layouts)
    kept = [a for a in axes if not a.is_reduction]
    reduced = [a for a in axes if a.is_reduction]
    own.loop = [*kept, *reduced]
    for _ in range(len(kept) - 1):
        own.merge(0)
    rows = 1 if kept else 0
    inner = merge_adjacent(scheduled, reference, layouts, rows, len(own.loop))
    return rows, inner - rows


def schedule_inner(
    scheduled: ScheduledFusion,
    reference: TensorView,
    layouts: Layouts,
    parameters: ReductionParameters,
) -> None:
    """[row][other reduced][part][serial][unroll][lanes], partial results in registers."""
    own = scheduled[reference]
    rows, others = arrange(scheduled, reference, layouts)
    kinds: dict[int, ParallelType] = {0: ParallelType.grid_x} if rows else {}
    position = rows + others
    if parameters.parts > 1:
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
    transform_like(scheduled, reference)
    parallelize_positions(scheduled, reference, kinds)
    for tensor in reductions(scheduled.fusion):
        left = rfactor_blocks(scheduled, tensor, start, counts)
        rfactor(scheduled, tensor, list(range(start, start + left)))
        rfactor(scheduled, tensor, [start])
    inline_most(scheduled)


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
    for _ in range(inner - 1):
        own.merge(0)
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
