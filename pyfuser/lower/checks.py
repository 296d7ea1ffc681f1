"""Rejects illegal schedules; each error names the tensor and the axis.

Runs once the loop structure is known, before anything is built from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from ..errors import ScheduleError, UnsupportedError, expected
from ..ir.domains import BLOCK, GRID, IterDomain, ParallelType
from ..ir.exprs import LibraryOp, PointwiseOp, RandomOp, ReadOp, ScanOp, ScatterOp, WriteOp
from ..ir.scalar_queries import evaluate
from ..ir.scalars import ONE, Integer, IntExpr
from ..ir.schedule import MemoryType, ScheduledFusion
from ..ir.vals import TensorView
from ..target.target import PORTABLE_LIMITS
from .loops import LoopStructure
from .scans import scanned_positions
from .scatters import check_order

_LOOPS = (
    ParallelType.serial,
    ParallelType.unroll,
    ParallelType.unswitch,
    ParallelType.vectorize,
    *GRID,
    *BLOCK,
)


def check_schedule(
    scheduled: ScheduledFusion, structure: LoopStructure, threads_are_hardware: bool
) -> None:
    """Raises ScheduleError for the first thing that no device can run."""
    for expr in scheduled.fusion.live_exprs():
        if isinstance(expr, ScatterOp):
            got = "a scatter, which only an automatic schedule makes loops for"
            raise UnsupportedError(expected("schedule", "expressions that have loops", got))
        if isinstance(expr, LibraryOp):
            got = f"{expr.op}, an operation of torch's library"
            raise UnsupportedError(expected("schedule", "expressions that kernels compute", got))
    for tensor in structure.tensors:
        schedule = scheduled[tensor]
        _check_allocation(scheduled, tensor)
        seen: set[ParallelType] = set()
        if isinstance(tensor.expr, ScanOp):
            scanned_positions(structure, tensor)  # raises if they aren't in order
        if isinstance(tensor.expr, WriteOp):
            check_order(structure, tensor, threads_are_hardware)
        for position, axis in enumerate(schedule.loop):
            kind = structure.loop(tensor, position).parallel_type
            if kind not in _LOOPS:
                what = f"axis {axis} of T{tensor.name} to be a loop of one device"
                raise UnsupportedError(expected("parallelize", what, kind.name))
            if kind.is_thread:
                if kind in seen:
                    what = f"T{tensor.name} to use {kind.name} once"
                    raise ScheduleError(expected("parallelize", what, f"it again on axis {axis}"))
                seen.add(kind)
            if position < schedule.compute_at and axis.is_reduction:
                what = f"the shared loops of T{tensor.name} not to be reductions"
                raise ScheduleError(expected("inline", what, f"axis {axis}"))
            if kind in (ParallelType.unroll, ParallelType.vectorize):
                _check_constant(structure, tensor, position, kind)
            if kind is ParallelType.vectorize:
                _check_vectorized(structure, tensor, axis, position)


def _check_allocation(scheduled: ScheduledFusion, tensor: TensorView) -> None:
    """The order that a user gives the elements of a buffer is one of the loops as they are."""
    schedule = scheduled[tensor]
    if not scheduled.is_by_hand or schedule.allocation is None:
        return
    loops = {axis for axis in schedule.loop if not axis.is_reduction}
    if set(schedule.allocation) != loops:
        what = f"T{tensor.name} to have the loops that its elements are ordered by"
        got = f"{schedule.loop}, made after the order {list(schedule.allocation)}"
        hint = "set the order last"
        raise ScheduleError(expected("set_allocation_domain", what, got, hint))


def check_threads(
    scheduled: ScheduledFusion, block: Mapping[ParallelType, IntExpr], sizes: Mapping[str, int]
) -> None:
    """Raises ScheduleError if a block has too many threads, as far as its extents are known."""
    counts = {
        kind: evaluate(extent, sizes)
        for kind, extent in block.items()
        if all(symbol.name in sizes for symbol in extent.symbols)
    }
    threads = prod(counts.values())
    if threads > PORTABLE_LIMITS.threads:
        axes = [f"{n} by {_axis_with(scheduled, kind)}" for kind, n in counts.items() if n > 1]
        got = f"{threads}: {', '.join(axes)}"
        raise ScheduleError(
            expected("parallelize", f"at most {PORTABLE_LIMITS.threads} threads a block", got)
        )


def _axis_with(scheduled: ScheduledFusion, kind: ParallelType) -> str:
    """The first axis of a parallel type, and its tensor."""
    for tensor, schedule in scheduled.schedules.items():
        for axis in schedule.loop:
            if axis.parallel_type is kind:
                return f"axis {axis} of T{tensor.name}"
    return kind.name


def _check_constant(
    structure: LoopStructure, tensor: TensorView, position: int, kind: ParallelType
) -> None:
    extent = structure.loop(tensor, position).extent
    if not isinstance(extent, Integer):
        what = f"axis {position} of T{tensor.name} to have a constant extent"
        raise ScheduleError(expected(kind.name, what, extent, "split it by a number first"))


def _check_vectorized(
    structure: LoopStructure, tensor: TensorView, axis: IterDomain, position: int
) -> None:
    """A vector is one access to consecutive elements: the innermost axis of a contiguous copy."""
    scheduled, loops = structure.scheduled, structure.loops(tensor)
    if any(loop.extent is not ONE for loop in loops[position + 1 :]):
        what = f"the innermost axis of T{tensor.name}"
        raise ScheduleError(expected("vectorize", what, f"axis {axis} at {position}"))
    extent = loops[position].extent
    size = extent.value if isinstance(extent, Integer) else 0
    if size not in (1, 2, 4, 8, 16):
        what = f"axis {axis} of T{tensor.name} to be a power of two up to 16 long"
        raise ScheduleError(expected("vectorize", what, size))
    expr = tensor.expr
    if not isinstance(expr, PointwiseOp | RandomOp | ReadOp):
        what = f"T{tensor.name} to be a copy, a read or a pointwise operation"
        raise ScheduleError(expected("vectorize", what, "nothing" if expr is None else expr.name))
    for side in (tensor, *expr.tensor_inputs):
        if scheduled[side].memory_type is not MemoryType.global_:
            continue
        concrete = [flag for flag in side.domain.contiguity if flag is not None]
        if concrete and concrete[-1] is not True:
            what = f"the innermost axis of T{side.name} to be contiguous"
            raise ScheduleError(expected("vectorize", what, f"T{tensor.name} axis {axis} reads it"))
