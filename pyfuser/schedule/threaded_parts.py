"""What reductions along rows and columns share on hardware threads: copies, parts of a chain."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.domains import ParallelType
from ..ir.scalar_functions import maximum
from ..ir.scalars import ONE, as_expr, ceil_div
from ..ir.schedule import MemoryType, ScheduledFusion
from ..ir.vals import TensorView
from ..target.thread_parameters import ThreadedReduction
from .common import fork_outputs
from .propagation import parallelize_like, transform_like
from .reduced_axes import after_reductions
from .rewrite import cache_after, cache_before, rfactor_results
from .vectors import Copies, make_vector

# Partial results that a thread reads before it combines them: each is a round trip to the second
# cache, which the combination of means would make one after the other.
PARTS_AT_ONCE = 4


def copies_of(scheduled: ScheduledFusion, parameters: ThreadedReduction) -> Copies:
    """The copies of inputs and outputs that the parameters ask for."""
    if parameters.copies:
        after = after_reductions(scheduled.fusion) if parameters.parts > 1 else frozenset()
        return Copies.of(scheduled, parameters.vector, after)
    fork_outputs(scheduled)
    return Copies()


def store_partials(
    scheduled: ScheduledFusion, tensor: TensorView, axes: Sequence[int]
) -> dict[TensorView, TensorView]:
    """Splits a reduction in two, whose partial results, over `axes`, are stored in scratch memory.

    Returns the stored tensors, each with the tensor in registers that it is a copy of.
    """
    stored: dict[TensorView, TensorView] = {}
    for partial in rfactor_results(scheduled, tensor, axes):
        result = cache_before(scheduled, partial)
        transform_like(scheduled, result, [partial])
        parallelize_like(scheduled, result, tensors=[partial])
        scheduled[partial].memory_type = MemoryType.global_
        stored[partial] = result
    return stored


def combine_parts(
    scheduled: ScheduledFusion,
    tensor: TensorView,
    threads: int,
    part: int,
    kind: ParallelType,
    width: int,
) -> dict[TensorView, int]:
    """Splits the reduction of the loops at `part` and `threads` in two: the threads of a block have
    a result for each part, in scratch memory, and those of one block along `kind`, of which there
    are `width`, reduce the parts.  No block needs more threads than those of the parts have, so
    the last of these can do it.

    Returns the positions past which the new tensors mustn't be inlined.  If the tensor has a loop
    inside that of the threads, its results are moved as vectors, which is its innermost loop.

    Before:  T1[row | part, thread] = sum(T0)
    After:   T2[row, part | thread] = sum(T0)  T3[row, part] = set(T2)  in scratch memory
             T4[row, parts, part] = set(T3)  T1[row | parts, part] = sum(T4)
    """
    stored = store_partials(scheduled, tensor, [threads])
    parts = scheduled[tensor].loop[part].extent
    scheduled[tensor].split(part, width)
    scheduled[tensor].parallelize(part + 1, kind)
    is_more = maximum(parts, width) is not as_expr(width)
    if is_more:
        # A thread adds up its parts, of which it reads several, before the threads combine theirs.
        count = ceil_div(parts, width)
        scheduled[tensor].split(part, min(count.value, PARTS_AT_ONCE) if count.is_constant else 1)
        scheduled[tensor].parallelize(part + 1, ParallelType.unroll)
        tensor = rfactor_results(scheduled, tensor, [part, part + 1])[0]
    last = len(scheduled[tensor].loop) - 1
    has_vector = last > part + 1 + is_more and scheduled[tensor].loop[last].extent is not ONE
    limits: dict[TensorView, int] = {}
    for partial, result in stored.items():
        limits |= {partial: 0, result: part + 1}
        if is_more or has_vector:
            copy = cache_after(scheduled, partial)
            transform_like(scheduled, tensor, [copy])
            parallelize_like(scheduled, tensor, tensors=[copy])
            limits[copy] = part + 1
        if has_vector:
            for each in (partial, copy):
                make_vector(scheduled, each, len(scheduled[each].loop) - 1)
    return limits
