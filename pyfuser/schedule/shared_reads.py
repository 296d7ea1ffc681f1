"""Reads an input once for all results: those that share nothing but inputs get loops in common.

Loops are shared along computed tensors (`inlining`), so the results of `x.sum(0), x.amax(0)` would
have loops of their own, each of which reads x; out of the caches, that takes twice the time.  A
copy of x in a register is a computed tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..ir.disjoint_sets import DisjointSets
from ..ir.schedule import ScheduledFusion
from ..ir.vals import TensorView
from .rewrite import cache_after

Copies = Sequence[TensorView]


def with_shared_reads(
    build: Callable[[bool], tuple[ScheduledFusion, Copies]],
) -> ScheduledFusion:
    """What `build(True)` makes with copies, or `build(False)` without.

    A copy that isn't computed in the innermost loop of its readers would be in memory.
    """
    scheduled, copies = build(True)
    inlined = [scheduled[copy].compute_at == len(scheduled[copy].loop) for copy in copies]
    return scheduled if all(inlined) else build(False)[0]


def share_reads(scheduled: ScheduledFusion) -> Copies:
    """Copies the inputs that are read for results which share no computed tensor."""
    fusion = scheduled.fusion
    results: DisjointSets[TensorView] = DisjointSets()
    for expr in fusion.exprs:
        joined = [*expr.tensor_outputs, *(t for t in expr.tensor_inputs if t.expr is not None)]
        for tensor in joined[1:]:
            results.join(joined[0], tensor)
    chosen = []
    for source in fusion.input_tensors:
        readers = [expr for expr in source.uses_list if source in expr.aligned_inputs]
        read_for = {results.find(tensor) for expr in readers for tensor in expr.tensor_outputs}
        if source.axes and len(read_for) > 1:
            chosen.append(source)
    return [cache_after(scheduled, source) for source in chosen]
