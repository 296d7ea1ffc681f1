"""The inner persistent scheduler: normalisations along the innermost axis, one row per task.

    [row | other reduced axes | range]  ->  [task: row][serial...][serial][unroll][lanes]

A row is read again for each reduction and for the result, from the caches, where it is by then.
Values that are expensive to recompute are kept in a buffer of one row; the rest is recomputed.

To a processor, short rows are columns: each lane has a row (outer_persistent.py).

On hardware threads: threaded_rows.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from ..ir.fusion import Fusion
from ..ir.schedule import ScheduledFusion
from ..target.parameters import ReductionFacts, ReductionParameters
from ..target.target import Target
from ..target.thread_parameters import ThreadedReduction
from .common import Layouts, fork_outputs, reductions
from .nested_rows import is_nested, nested_facts, schedule_nested
from .outer_persistent import schedule_outer
from .recomputation import recompute_cheap
from .reduction import reduction_facts, schedule_inner
from .threaded_rows import schedule_rows


def heuristics(fusion: Fusion, sizes: Mapping[str, int], target: Target) -> ReductionParameters:
    """The target's decisions."""
    return target.inner_persistent(_facts(fusion), sizes)


def candidates(
    fusion: Fusion, chosen: ReductionParameters, sizes: Mapping[str, int], target: Target
) -> Sequence[object]:
    """Other parameters that are worth measuring."""
    return target.candidates(_facts(fusion), chosen, sizes, is_persistent=True)


@lru_cache(maxsize=256)
def _facts(fusion: Fusion) -> ReductionFacts:
    return nested_facts(fusion) if is_nested(fusion) else reduction_facts(fusion)


def schedule(fusion: Fusion, parameters: ReductionParameters) -> ScheduledFusion:
    """The loops; see the module's docstring."""
    copy, _ = fusion.clone()
    recompute_cheap(copy, parameters.keeps, keeps_reads=parameters.keeps_reads)
    scheduled = ScheduledFusion(copy, scheduler="inner_persistent", parameters=parameters)
    if is_nested(fusion):
        fork_outputs(scheduled)
        schedule_nested(scheduled, parameters)
        return scheduled
    if isinstance(parameters, ThreadedReduction):
        schedule_rows(scheduled, parameters)
        return scheduled
    if not parameters.inner:
        schedule_outer(scheduled, parameters)
        return scheduled
    fork_outputs(scheduled)
    schedule_inner(scheduled, reductions(copy)[0], Layouts(copy), parameters)
    return scheduled
