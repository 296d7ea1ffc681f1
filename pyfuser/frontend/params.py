"""Parameters of a launch, of a compilation and of a scheduler, as users of the interface set them.

They are plain values: comparable, printable, and hashable where the interface has `hash()`.  Values
that a CPU has no use for (register limits, grid sizes of a launch) are stored and ignored, so a
program written for a GPU runs.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import astuple, dataclass, field

from ..dtypes import DataType
from .enums import SchedulerType


@dataclass
class LaunchParams:
    """Grid and block extents of a launch; -1 if the kernel decides."""

    gdimx: int = -1
    gdimy: int = -1
    gdimz: int = -1
    bdimx: int = -1
    bdimy: int = -1
    bdimz: int = -1


@dataclass(kw_only=True)
class CompileParams:
    """How a kernel is compiled."""

    index_type: DataType | None = None
    maxrregcount: int = 255
    enable_magic_zero: bool = True
    enable_ptxas_verbose: bool = False
    device: object = None
    include_paths: Sequence[str] = field(default_factory=list)


@dataclass
class HeuristicParams:
    """What a scheduler decided; `decisions` are the parameters of pyfuser's own scheduler."""

    scheduler_type: SchedulerType = SchedulerType.none
    lparams: LaunchParams = field(default_factory=LaunchParams)
    cparams: CompileParams = field(default_factory=CompileParams)
    decisions: Hashable = None

    def hash(self) -> int:
        """A number that is equal for equal parameters."""
        return hash(repr(astuple(self)))


def params_of(scheduler_type: SchedulerType, decisions: Hashable) -> HeuristicParams:
    """The decisions of one of pyfuser's schedulers, under the interface's names."""
    lanes, unroll = getattr(decisions, "lanes", 1), getattr(decisions, "unroll", 1)
    if scheduler_type is SchedulerType.pointwise:
        pointwise = PointwiseParams(decisions=decisions)
        pointwise.vectorization_factor, pointwise.unroll_factor_inner = lanes, unroll
        return pointwise
    if scheduler_type is SchedulerType.no_op:
        return HeuristicParams(scheduler_type, decisions=decisions)
    reduction = ReductionParams(scheduler_type, decisions=decisions)
    reduction.fastest_dim = scheduler_type is not SchedulerType.outer_persistent
    reduction.persistent_kernel = scheduler_type is not SchedulerType.reduction
    reduction.unroll_factor_inner_reduction = unroll
    return reduction


@dataclass
class PointwiseParams(HeuristicParams):
    """Decisions of the pointwise scheduler."""

    scheduler_type: SchedulerType = SchedulerType.pointwise
    break_point: int = 0
    split_block: bool = False
    split_grid_y_dim: bool = False
    flip_grid_binding: bool = False
    vectorization_factor: int = 1
    unroll_factor_inner: int = 1
    unroll_factor_outer: int = 1


@dataclass
class ReductionParams(HeuristicParams):
    """Decisions of the reduction scheduler (those that pyfuser's own schedulers make)."""

    scheduler_type: SchedulerType = SchedulerType.reduction
    fastest_dim: bool = True
    persistent_kernel: bool = False
    project_persistent_buffers: bool = False
    schedule_3d: bool = False
    flip_grid: bool = False
    cross_block_inner_reduction: bool = False
    cross_grid_inner_reduction: bool = False
    unroll_factor_inner_reduction: int = 1
    vectorize_inner_reduction: bool = False
    split_grid_dim_iter_dom_inner: bool = False
    split_grid_dim_iter_dom_outer: bool = False
    unroll_factor_iter_dom: int = 1
    vectorize_iter_dom: bool = False
