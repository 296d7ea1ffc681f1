"""The inner persistent scheduler: normalisations along the innermost axis, a row a task.

    [row | other reduced axes | range]  ->  [task: row][serial...][serial][unroll][lanes]

A row is read again for each reduction and for the result, from the caches it is in by then; what is
dear to compute again is kept in a buffer of one row, the rest is recomputed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..ir.fusion import Fusion
from ..ir.scalars import IntExpr, evaluate, product
from ..ir.schedule import ScheduledFusion
from .cascade import chain_extents
from .common import Layouts, fork_outputs, recompute_cheap, reductions
from .pointwise import unroll_factor, widest_bytes
from .reduction import (
    ReductionParameters,
    chain_levels,
    inner_unroll,
    schedule_inner,
    split_axes,
)


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the heuristics need of a fusion beside its sizes: computed once for a fusion."""

    reduced: IntExpr
    chain: tuple[IntExpr, ...]
    unroll: int
    bytes: int


@lru_cache(maxsize=256)
def _facts(fusion: Fusion) -> _Facts:
    layouts = Layouts(fusion)
    axes, _ = split_axes(reductions(fusion)[0], layouts)
    reduced = [axis for axis in axes if axis.is_reduction]
    total = product(axis.extent for axis in reduced)
    chain = chain_extents(reduced, layouts)
    return _Facts(total, chain, max(2, unroll_factor(fusion)), widest_bytes(fusion))


def heuristics(fusion: Fusion, sizes: Mapping[str, int], machine: Any) -> ReductionParameters:
    """Lanes of the machine's vectors; at least two accumulators, to hide the adds' latency."""
    facts = _facts(fusion)
    lanes = machine.lanes(facts.bytes)
    unroll = inner_unroll(evaluate(facts.reduced, sizes), lanes, facts.unroll)
    cascade = chain_levels(facts.chain, sizes, lanes * unroll)
    return ReductionParameters(True, lanes, unroll, 0, 1, cascade=cascade)


def schedule(fusion: Fusion, parameters: ReductionParameters) -> ScheduledFusion:
    """The loops; see the module's text."""
    copy, _ = fusion.clone()
    recompute_cheap(copy)
    scheduled = ScheduledFusion(copy, scheduler="inner_persistent", parameters=parameters)
    fork_outputs(scheduled)
    schedule_inner(scheduled, reductions(copy)[0], Layouts(copy), parameters)
    return scheduled
