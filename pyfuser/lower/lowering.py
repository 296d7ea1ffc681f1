"""ScheduledFusion -> Kernel: the passes of lowering, in order.

    grid reductions in two -> loop structure -> indices -> phases -> nests -> buffer reuse
    -> barriers -> peeling

Works on a copy of the scheduled fusion, so that the caller's handles stay valid.
"""

from __future__ import annotations

from ..analysis.extents import representatives
from ..ir.domains import BLOCK, GRID, ParallelType
from ..ir.kernel import (
    Allocate,
    Compute,
    For,
    Kernel,
    Phase,
    Reduce,
    TensorParameter,
    accesses,
    operand_sizes,
    walk,
)
from ..ir.scalars import ONE, IntExpr, Symbol, maximum
from ..ir.schedule import ScheduledFusion
from ..ir.vals import TensorView
from ..target.target import Target
from .barriers import insert_barriers, written_by_some
from .buffer_reuse import reuse_buffers
from .checks import check_schedule, check_threads
from .grid_reductions import split_grid_reductions
from .indexing import Indexer
from .loops import LoopStructure
from .memory import KernelMemory
from .nests import NestBuilder
from .peeling import peel
from .phases import assign_phases
from .siblings import schedule_siblings_alike
from .work import count_runs


def lower(scheduled: ScheduledFusion, target: Target, name: str = "kernel") -> Kernel:
    """The kernel of a schedule for a target.  ScheduleError where the schedule is illegal."""
    scheduled = scheduled.clone(representatives(scheduled.fusion.equal_extents))
    _drop_dead(scheduled)
    split_grid_reductions(scheduled)
    schedule_siblings_alike(scheduled)
    structure = LoopStructure(scheduled)
    check_schedule(scheduled, structure)
    indexer = Indexer(structure, target.threads_are_hardware)
    phase_of = assign_phases(indexer)
    indexer = Indexer(structure, target.threads_are_hardware)
    memory = KernelMemory(indexer)
    builder = NestBuilder(indexer, memory)
    phases, runs = [], []
    for number in range(max(phase_of.values(), default=-1) + 1):
        tensors = [t for t in structure.tensors if phase_of[t] == number]
        body = reuse_buffers(builder.build(tensors))
        grid = _extents(structure, tensors, GRID)
        block = _extents(structure, tensors, BLOCK)
        check_threads(scheduled, block, {})
        runs += count_runs(indexer, tensors, grid)
        if target.threads_are_hardware:
            inputs = {p.buffer for t, p in memory.parameters.items() if not p.is_output}
            body = insert_barriers(body, inputs, written_by_some(body, block))
        phases.append(Phase(grid, block, peel(body)))
    return Kernel(
        name,
        list(memory.parameters.values()),
        list(memory.scalars.values()),
        memory.scratch,
        phases,
        _symbols(list(memory.parameters.values()), phases),
        runs=tuple(runs),
    )


def _symbols(tensors: list[TensorParameter], phases: list[Phase]) -> list[Symbol]:
    """The sizes and strides of the tensors, then what else statements mention."""
    found: dict[Symbol, None] = {}
    for tensor in tensors:
        for expr in (*tensor.sizes, *tensor.strides):
            found |= dict.fromkeys(sorted(expr.symbols, key=str))
    return list(found | dict.fromkeys(sorted(_used_symbols(phases), key=str)))


def _used_symbols(phases: list[Phase]) -> set[Symbol]:
    """The sizes and strides that statements mention; not all of them are those of a tensor."""
    used: set[Symbol] = set()
    indices: set[Symbol] = set()
    for statement in (s for phase in phases for s in walk(phase.body)):
        sizes = [access.index for access in accesses(statement)]
        match statement:
            case For():
                indices.add(statement.index)
                sizes += [statement.start, statement.stop]
            case Allocate(buffer=buffer):
                sizes.append(buffer.size)
            case Compute() | Reduce():
                sizes += [side for less in statement.predicate for side in (less.a, less.b)]
                sizes += operand_sizes(statement.inputs)
        for size in sizes:
            used |= size.symbols
    return used - indices


def _drop_dead(scheduled: ScheduledFusion) -> None:
    fusion = scheduled.fusion
    live = {id(expr) for expr in fusion.live_exprs()}
    for expr in reversed(list(fusion.exprs)):
        if id(expr) not in live:
            fusion.remove_expr(expr)


def _extents(
    structure: LoopStructure, tensors: list[TensorView], kinds: tuple[ParallelType, ...]
) -> dict[ParallelType, IntExpr]:
    """The launch extent of each kind: the largest of its loops."""
    found: dict[ParallelType, IntExpr] = {}
    for tensor in tensors:
        for loop in structure.loops(tensor):
            kind = loop.parallel_type
            if kind in kinds and loop.extent is not ONE:
                known = found.get(kind)
                found[kind] = loop.extent if known is None else maximum(known, loop.extent)
    return {kind: found[kind] for kind in kinds if kind in found}
