"""Cuts the kernel into phases where one block needs what another has written.

If a consumer reads a tensor in global scratch from another block than the one that wrote it, the
consumer goes into a later phase.  A tensor in registers or shared memory can't be read that way:
this is an error in the schedule.  A tensor in registers that is read in a later phase moves to
scratch memory; what was computed by every block for itself is then written by one, so phases are
assigned again.

The end of a launch is such a synchronisation.  If the consumer reads only what the blocks along one
axis of the grid have written, it can also be run by the last of these blocks, in the same launch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet

from ..analysis.mapping import consumers
from ..errors import ScheduleError, expected
from ..ir.domains import IterDomain, ParallelType
from ..ir.exprs import Expr, IndexedWrite
from ..ir.kernel import Phase
from ..ir.scalar_functions import maximum
from ..ir.scalars import ONE, ZERO, Integer, IntExpr
from ..ir.schedule import MemoryType, TensorSchedule
from ..ir.vals import TensorView
from ..ops.checking import may_refuse
from .indexing import Indexer


def _thread_loops(indexer: Indexer, tensor: TensorView) -> dict[ParallelType, IntExpr]:
    """The extents of a tensor's iteration loops over grid and block."""
    schedule = indexer.scheduled[tensor]
    found = {}
    for position, axis in enumerate(schedule.loop):
        loop = indexer.structure.loop(tensor, position)
        if loop.parallel_type.is_thread and not axis.is_reduction and loop.extent is not ONE:
            found[loop.parallel_type] = loop.extent
    return found


def _foreign_axes(
    indexer: Indexer, expr: Expr, producer: TensorView, consumer: TensorView
) -> dict[ParallelType, IterDomain]:
    """The grid and block axes of the producer along which the consumer reads another index."""
    loop = indexer.scheduled[producer].loop
    known = indexer.producer_loops(expr, producer, consumer)
    foreign = {}
    for position, axis in enumerate(loop):
        own = indexer.structure.loop(producer, position)
        if not own.parallel_type.is_thread or axis.is_reduction or own.extent is ONE:
            continue
        if position < indexer.scheduled[producer].compute_at:
            continue
        read = known.get(axis, ZERO)
        if read is not own.index:
            foreign[own.parallel_type] = axis
    return foreign


def _make_visible(schedule: TensorSchedule, foreign: Collection[ParallelType]) -> None:
    """Moves a tensor out of memory that its readers don't see, where a scheduler left it there."""
    if any(kind.is_grid for kind in foreign):
        schedule.memory_type = MemoryType.global_
    elif foreign and schedule.memory_type is MemoryType.local:
        schedule.memory_type = MemoryType.shared


def _check_visible(
    producer: TensorView, memory: MemoryType, foreign: Mapping[ParallelType, IterDomain]
) -> None:
    grid = [axis for kind, axis in foreign.items() if kind.is_grid]
    if memory is MemoryType.global_ or not foreign:
        return
    if grid:
        where = "shared memory" if memory is MemoryType.shared else "registers"
        what = f"T{producer.name}, which is in {where}, to be read by the block that wrote it"
        got = f"a read across axis {grid[0]}"
        raise ScheduleError(expected("schedule", what, got, "put it in global memory"))
    if memory is MemoryType.local:
        what = f"T{producer.name}, which is in registers, to be read by the thread that wrote it"
        got = f"a read across axis {next(iter(foreign.values()))}"
        raise ScheduleError(expected("schedule", what, got, "put it in shared memory"))


def assign_phases(indexer: Indexer) -> dict[TensorView, int]:
    """The phase of every computed tensor; moves registers read across phases to scratch."""
    while True:
        phase_of, edges = _phases(indexer)
        moved = {
            producer
            for producer, consumer in edges
            if phase_of[producer] < phase_of[consumer]
            and indexer.scheduled[producer].memory_type is not MemoryType.global_
        }
        if not moved:
            return phase_of
        for tensor in moved:
            indexer.scheduled[tensor].memory_type = MemoryType.global_


def _phases(
    indexer: Indexer,
) -> tuple[dict[TensorView, int], list[tuple[TensorView, TensorView]]]:
    """The phase of every computed tensor where they are now, and the (producer, consumer) pairs."""
    structure, scheduled = indexer.structure, indexer.scheduled
    cluster = {
        t: structure.place(t, 0) if scheduled[t].loop else (t, -1) for t in structure.tensors
    }
    edges: list[tuple[TensorView, TensorView, int]] = []
    own = {t: _thread_loops(indexer, t).keys() for t in structure.tensors}
    launched = set[ParallelType]().union(*own.values())
    needing = _needing(indexer, own)
    for producer in structure.tensors:
        for expr, consumer in consumers(producer):
            if consumer not in structure.extents:
                continue
            foreign = _foreign_axes(indexer, expr, producer, consumer)
            if not scheduled.is_by_hand:
                _make_visible(scheduled[producer], foreign)
            memory = scheduled[producer].memory_type
            _check_visible(producer, memory, foreign)
            # A tensor in global memory with no loop over a grid axis is written by one block; any
            # other tensor is computed by all blocks, though what they compute may be of no use.
            readers: AbstractSet[ParallelType] = own[consumer]
            if cluster[producer] == cluster[consumer]:
                readers = needing[consumer]
            elif scheduled[consumer].memory_type is not MemoryType.global_:
                readers = launched
            crosses = any(kind.is_grid for kind in (*foreign, *(readers - own[producer])))
            later = int(memory is MemoryType.global_ and crosses)
            edges.append((producer, consumer, later))
    phase = dict.fromkeys(set(cluster.values()), 0)
    for _ in range(len(structure.tensors) + 1):
        changed = False
        for producer, consumer, sync in edges:
            wanted = phase[cluster[producer]] + sync
            if phase[cluster[consumer]] < wanted:
                if cluster[producer] == cluster[consumer]:
                    what = f"T{consumer.name} not to share loops with T{producer.name}"
                    raise ScheduleError(
                        expected("schedule", what, "a read across blocks inside a shared loop")
                    )
                phase[cluster[consumer]] = wanted
                changed = True
        if not changed:
            break
    else:
        producer, consumer = next((p, c) for p, c, sync in edges if sync)
        what = f"T{consumer.name} to come after the grid-wide sync after T{producer.name}"
        got = "loops shared with tensors on both sides of it"
        raise ScheduleError(expected("schedule", what, got, "inline less"))
    phase_of = {tensor: phase[cluster[tensor]] for tensor in structure.tensors}
    return phase_of, [(producer, consumer) for producer, consumer, _ in edges]


def _needing(
    indexer: Indexer, own: Mapping[TensorView, AbstractSet[ParallelType]]
) -> dict[TensorView, set[ParallelType]]:
    """The axes along which blocks need a tensor: those of its `own` loops, and of what they compute
    from it before it is in memory.

    What refuses values needs right ones in every block that computes it.
    """
    launched = set[ParallelType]().union(*own.values())
    found: dict[TensorView, set[ParallelType]] = {}
    for tensor in reversed(indexer.structure.tensors):
        refuses = tensor.expr is not None and may_refuse(tensor.expr)
        found[tensor] = set(launched if refuses else own[tensor])
        if indexer.scheduled[tensor].memory_type is not MemoryType.global_:
            readers = (consumer for _, consumer in consumers(tensor))
            found[tensor] |= set().union(*(found.get(each, set()) for each in readers))
    return found


def last_block_axis(
    indexer: Indexer, phase_of: Mapping[TensorView, int], phases: Sequence[Phase]
) -> ParallelType | None:
    """The axis along which the last block of the phase before can run the last of `phases`.

    None if it can't: if a block reads what blocks elsewhere along the other axes have written, if
    it needs other threads, or if memory is overwritten that blocks may still have to read.
    """
    number, scheduled = len(phases) - 1, indexer.scheduled
    if number == 0 or phases[-2].last_along is not None or scheduled.fusion.overwritten:
        return None
    before, after = phases[-2:]
    axes = [kind for kind in before.grid if kind not in after.grid]
    is_rest = all(before.grid.get(kind) is extent for kind, extent in after.grid.items())
    if len(axes) != 1 or not is_rest or not _has_threads(before, after):
        return None
    for tensor in indexer.structure.tensors:
        if phase_of[tensor] < number - 1:
            continue
        # What is written once along another axis is written by one block for all.
        is_stored = scheduled[tensor].memory_type is MemoryType.global_
        if is_stored and not after.grid.keys() <= _thread_loops(indexer, tensor).keys():
            return None
        if isinstance(tensor.expr, IndexedWrite):
            return None
        for expr, consumer in consumers(tensor):
            if phase_of[tensor] == number or phase_of.get(consumer) != number:
                continue
            foreign = _foreign_axes(indexer, expr, tensor, consumer)
            if any(kind.is_grid and kind is not axes[0] for kind in foreign):
                return None
    return axes[0]


def _has_threads(before: Phase, after: Phase) -> bool:
    """True if a block of the phase before has the threads that the phase after needs."""
    if not all(isinstance(extent, Integer) for extent in before.block.values()):
        return False
    own = {kind: before.block.get(kind, ONE) for kind in after.block}
    return all(maximum(own[kind], extent) is own[kind] for kind, extent in after.block.items())
