"""The inner persistent scheduler: normalisations along the innermost axis, a row a task.

    [row | other reduced axes | range]  ->  [task: row][serial...][serial][unroll][lanes]

A row is read again for each reduction and for the result, from the caches it is in by then; what is
dear to compute again is kept in a buffer of one row, the rest is recomputed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..ir.fusion import Fusion
from ..ir.schedule import ScheduledFusion
from .common import Layouts, fork_outputs, recompute_cheap, reductions
from .pointwise import unroll_factor, widest_bytes
from .reduction import ReductionParameters, schedule_inner


def heuristics(fusion: Fusion, sizes: Mapping[str, int], machine: Any) -> ReductionParameters:
    """Lanes of the machine's vectors; at least two accumulators, to hide the adds' latency."""
    del sizes
    unroll = max(2, unroll_factor(fusion))
    return ReductionParameters(True, machine.lanes(widest_bytes(fusion)), unroll, 0, 1)


def schedule(fusion: Fusion, parameters: ReductionParameters) -> ScheduledFusion:
    """The loops; see the module's text."""
    copy, _ = fusion.clone()
    recompute_cheap(copy)
    scheduled = ScheduledFusion(copy, scheduler="inner_persistent", parameters=parameters)
    fork_outputs(scheduled)
    schedule_inner(scheduled, reductions(copy)[0], Layouts(copy), parameters)
    return scheduled
