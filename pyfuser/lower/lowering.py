"""ScheduledFusion -> Kernel: the passes of lowering, in order.

SCHEDULE_PASSES rewrite the schedule, `build_nests` turns it into a kernel (loop structure, indices,
phases, nests), and KERNEL_PASSES transform the kernel.  `show --stage lower` lists the passes, and
`--after PASS` prints the result of one.  Lowering works on a copy of the scheduled fusion, so the
caller's handles stay valid.
"""

from __future__ import annotations

from collections.abc import Callable

from ..ir.domains import BLOCK, GRID, ParallelType
from ..ir.equal_sizes import representatives
from ..ir.kernel import (
    Allocate,
    Compute,
    For,
    If,
    Kernel,
    Phase,
    Reduce,
    Scan,
    Scatter,
    TensorParameter,
)
from ..ir.kernel_queries import (
    accesses,
    may_refuse,
    operand_sizes,
    walk,
)
from ..ir.scalar_functions import maximum
from ..ir.scalars import ONE, IntExpr, Symbol
from ..ir.schedule import MemoryType, ScheduledFusion
from ..ir.vals import TensorView
from ..ir.verify import verify_kernel, verify_scheduled
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
from .phases import assign_phases, last_block_axis
from .siblings import schedule_siblings_alike
from .windows import split_short_loops
from .work import count_runs

AfterPass = Callable[[str, object], None]  # the name of a pass, and its result


def lower(
    scheduled: ScheduledFusion,
    target: Target,
    name: str = "kernel",
    after: AfterPass | None = None,
    verify: bool = False,
) -> Kernel:
    """The kernel of a schedule for a target.  Raises ScheduleError if the schedule is illegal.

    `after(name, noun)` is called after each pass; with `verify` each pass's result is verified.
    """
    scheduled = scheduled.clone(representatives(scheduled.fusion.equal_extents))
    for rewrite in SCHEDULE_PASSES:
        rewrite(scheduled)
        if verify:
            verify_scheduled(scheduled)
        if after is not None:
            after(rewrite.__name__, scheduled)
    kernel = build_nests(scheduled, target, name)
    if after is not None:
        after(build_nests.__name__, kernel)
    for change in KERNEL_PASSES:
        change(kernel, target)
        if verify:
            verify_kernel(kernel)
        if after is not None:
            after(change.__name__, kernel)
    return kernel


def drop_dead(scheduled: ScheduledFusion) -> None:
    """Removes what no output needs."""
    fusion = scheduled.fusion
    live = {id(expr) for expr in fusion.live_exprs()}
    for expr in reversed(list(fusion.exprs)):
        if id(expr) not in live:
            fusion.remove_expr(expr)


def build_nests(scheduled: ScheduledFusion, target: Target, name: str) -> Kernel:
    """Loops, indices, memory and statements: the noun changes here."""
    structure = LoopStructure(scheduled)
    check_schedule(scheduled, structure, target.threads_are_hardware)
    indexer = Indexer(structure, target.threads_are_hardware)
    phase_of = assign_phases(indexer)  # may move tensors to other memory: their indices change
    indexer = Indexer(structure, target.threads_are_hardware)
    memory = KernelMemory(indexer)
    builder = NestBuilder(indexer, memory)
    phases, runs = [], []
    for number in range(max(phase_of.values(), default=-1) + 1):
        tensors = [t for t in structure.tensors if phase_of[t] == number]
        grid = _extents(structure, tensors, GRID)
        block = _extents(structure, tensors, BLOCK)
        body = builder.build(tensors)
        check_threads(scheduled, block, {})
        runs += count_runs(indexer, tensors, grid)
        phases.append(Phase(grid, block, body))
        if target.threads_are_hardware:
            phases[-1].last_along = last_block_axis(indexer, phase_of, phases)
    tensors_, scalars = list(memory.parameters.values()), list(memory.scalars.values())
    found = (c for tensor in structure.tensors for c in indexer.size_conditions(tensor))
    conditions = tuple(dict.fromkeys(found))
    statements = [s for phase in phases for s in walk(phase.body)]
    return Kernel(
        name,
        tensors_,
        scalars,
        memory.scratch,
        phases,
        runs=tuple(runs),
        conditions=conditions,
        most_registers=scheduled.most_registers,
        least_blocks=scheduled.least_blocks,
        may_refuse=any(map(may_refuse, statements)),
        has_an_order_of_threads=any(isinstance(s, Scatter) and s.is_concurrent for s in statements),
    )


def share_buffers(kernel: Kernel, target: Target) -> None:
    """Lets buffers reuse memory that is no longer read."""
    for phase in kernel.phases:
        phase.body = reuse_buffers(phase.body)
    name_symbols(kernel, target)


def synchronise(kernel: Kernel, target: Target) -> None:
    """Inserts barriers if threads run concurrently."""
    if not target.threads_are_hardware:
        return
    inputs = {tensor.buffer for tensor in kernel.tensors if not tensor.is_output}
    for phase in kernel.phases:
        partial = written_by_some(phase.body, phase.block)
        phase.body = insert_barriers(phase.body, inputs, partial, phase.block)


def peel_loops(kernel: Kernel, target: Target) -> None:
    """Separates the last iterations from loops whose predicates hold in all the others.

    Where threads are not hardware, also the parts of a cat.
    """
    for phase in kernel.phases:
        phase.body = peel(phase.body, at_windows=not target.threads_are_hardware)
        if not target.threads_are_hardware:
            phase.body = split_short_loops(phase.body)


def name_symbols(kernel: Kernel, target: Target) -> None:
    """Sets the sizes and strides that the kernel takes as arguments."""
    del target
    kernel.symbols = _symbols(kernel.tensors, kernel.phases)


# Passes before and after the schedule becomes a kernel.
SCHEDULE_PASSES: tuple[Callable[[ScheduledFusion], object], ...] = (
    drop_dead,
    schedule_siblings_alike,
    split_grid_reductions,
)
KERNEL_PASSES: tuple[Callable[[Kernel, Target], None], ...] = (
    share_buffers,
    synchronise,
    peel_loops,
    name_symbols,
)


def _symbols(tensors: list[TensorParameter], phases: list[Phase]) -> list[Symbol]:
    """The sizes and strides of the tensors, then the other symbols that statements mention."""
    found: dict[Symbol, None] = {}
    for tensor in tensors:
        for expr in (*tensor.sizes, *tensor.strides):
            found |= dict.fromkeys(sorted(expr.symbols, key=str))
    return list(found | dict.fromkeys(sorted(_used_symbols(phases), key=str)))


def _used_symbols(phases: list[Phase]) -> set[Symbol]:
    """The sizes and strides that statements mention; not all of them belong to a tensor."""
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
            case If():
                sizes += [side for less in statement.predicate for side in (less.a, less.b)]
            case Compute() | Reduce() | Scan() | Scatter():
                sizes += [side for less in statement.predicate for side in (less.a, less.b)]
                sizes += operand_sizes(statement.inputs)
        for size in sizes:
            used |= size.symbols
    return used - indices


def _extents(
    structure: LoopStructure, tensors: list[TensorView], kinds: tuple[ParallelType, ...]
) -> dict[ParallelType, IntExpr]:
    """The launch extent of each kind: the largest of its loops.

    At least 1 if a tensor in memory has no such loop: the first block writes it.
    """
    found: dict[ParallelType, IntExpr] = {}
    for tensor in tensors:
        for loop in structure.loops(tensor):
            kind = loop.parallel_type
            if kind in kinds and loop.extent is not ONE:
                known = found.get(kind)
                found[kind] = loop.extent if known is None else maximum(known, loop.extent)
    for tensor in tensors:
        if structure.scheduled[tensor].memory_type is MemoryType.global_:
            loops = structure.loops(tensor)
            own = {loop.parallel_type for loop in loops if loop.extent is not ONE}
            for kind in found.keys() - own:
                found[kind] = maximum(found[kind], ONE)
    return {kind: found[kind] for kind in kinds if kind in found}
