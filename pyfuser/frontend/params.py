"""Parameters of a launch, of a compilation and of a scheduler, as users of the interface set them.

They are plain values: comparable, printable, and hashable where the interface has `hash()`.  A
scheduler's decisions (target/parameters.py) are shown under the interface's names, and edits to
these fields are followed:

    vector lanes   vectorization_factor (pointwise), unroll_factor_inner_reduction (inner),
                   unroll_factor_iter_dom (outer)
    threads        if they are hardware: lparams.bdimx and bdimy, each with a vector
    unrolling      unroll_factor_inner, unroll_factor_top_of_vectorization (inner),
                   unroll_factor_outer_reduction (outer)
    grid parts     lparams.gdimy with split_grid_dim_inner_reduction or _outer_reduction

The other fields describe choices that pyfuser's schedulers don't have.  They are stored, so a
program that sets them runs.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any

import torch

from ..dtypes import DataType
from ..errors import ScheduleError, expected
from ..ir.domains import ParallelType
from ..target.parameters import InnerOuterParameters, PointwiseParameters, ReductionParameters
from ..target.thread_parameters import ThreadedPointwise, ThreadedReduction
from .enums import SchedulerType

_CHUNK = 4096  # elements per task of a schedule that is described by the interface's fields alone


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
    """How a kernel is compiled.

    `index_type` and `device` are checked against the inputs, and with `enable_ptxas_verbose` a CUDA
    kernel's registers and spills are printed. The rest has no effect here: ptxas chooses the
    registers, indices aren't hoisted so that they need a magic zero, and no text includes a file.
    """

    index_type: DataType | None = None
    maxrregcount: int = 255
    enable_magic_zero: bool = True
    enable_ptxas_verbose: bool = False
    device: object = None
    include_paths: Sequence[str] = field(default_factory=list)


# The fields of LaunchParams and the axes of a launch.
_EXTENTS = {
    f"{letter}dim{axis}": f"{name}.{axis}"
    for letter, name in (("g", "blockIdx"), ("b", "threadIdx"))
    for axis in "xyz"
}


def require_extents(constraints: LaunchParams, extents: Mapping[str, int]) -> None:
    """ScheduleError if a launch has other extents (by axis, 1 if absent) than the constraints."""
    for name, axis in _EXTENTS.items():
        wanted, found = getattr(constraints, name), extents.get(axis, 1)
        if wanted not in (-1, found):
            what = f"{name} of {wanted}, as the launch constraints say"
            raise ScheduleError(expected("launch", what, found))


def check_compile_params(params: CompileParams, inputs: Sequence[Any]) -> None:
    """ScheduleError if a kernel for these inputs can't be compiled as the parameters say."""
    registers = params.maxrregcount
    if not isinstance(registers, int) or isinstance(registers, bool) or registers < 1:
        raise ScheduleError(expected("compile", "a maxrregcount of at least 1", repr(registers)))
    if isinstance(params.include_paths, str):
        what = "a list of include_paths"
        raise ScheduleError(expected("compile", what, repr(params.include_paths)))
    _require_device(params.device, inputs)
    _require_index_type(params.index_type, inputs)


def _require_device(wanted: object, inputs: Sequence[Any]) -> None:
    """Kernels are compiled for the device of their inputs."""
    if wanted is None:
        return
    try:
        device = torch.device(wanted)  # type: ignore[call-overload]
    except (RuntimeError, TypeError):
        what = "a torch.device in CompileParams"
        raise ScheduleError(expected("compile", what, repr(wanted))) from None
    for given in inputs:
        if not isinstance(given, torch.Tensor) or (given.is_cpu and not given.dim()):
            continue
        if given.device.type != device.type or device.index not in (None, given.device.index):
            what = f"inputs on {device}, as CompileParams says"
            raise ScheduleError(expected("compile", what, f"one on {given.device}"))


def _require_index_type(index_type: object, inputs: Sequence[Any]) -> None:
    """An index type of 32 bits has to be wide enough for all inputs.

    It changes nothing: a kernel has 32-bit indices on CUDA whenever its sizes allow them.
    """
    if index_type not in (None, DataType.Int, DataType.Int32):
        what = "an index_type of Int or Int32"
        raise ScheduleError(expected("compile", what, index_type))
    if index_type is not DataType.Int32:
        return
    for given in inputs:
        span = getattr(given, "numel", lambda: 0)()
        if span >= 1 << 31:
            what = "tensors that indices of 32 bits address"
            raise ScheduleError(expected("compile", what, f"one of {span} elements"))


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
    """Decisions of the schedulers of reductions and norms.

    Inner axes are reduced along memory, outer ones across it; `iter_dom` axes are kept.
    """

    scheduler_type: SchedulerType = SchedulerType.reduction
    fastest_dim: bool = True
    persistent_kernel: bool = False
    project_persistent_buffers: bool = False
    schedule_3d: bool = False
    flip_grid: bool = False
    cross_block_inner_reduction: bool = False
    cross_grid_inner_reduction: bool = False
    unroll_factor_inner_reduction: int = 1
    unroll_factor_top_of_vectorization: int = 1
    vectorize_inner_reduction: bool = False
    split_grid_dim_inner_reduction: bool = False
    pad_inner_reduction_to_warp: bool = False
    batches_per_block_inner_reduction: int = 1
    block_dim_inner_reduction: ParallelType = ParallelType.serial
    grid_dim_inner_reduction: ParallelType = ParallelType.serial
    multiple_reds_per_blk: bool = False
    unroll_factor_iter_dom: int = 1
    vectorize_iter_dom: bool = False
    split_grid_dim_iter_dom_inner: bool = False
    split_grid_dim_iter_dom_outer: bool = False
    block_dim_iter_dom: ParallelType = ParallelType.serial
    grid_dim_iter_dom: ParallelType = ParallelType.serial
    cross_block_outer_reduction: bool = False
    cross_grid_outer_reduction: bool = False
    batches_per_block_outer_reduction: int = 1
    split_grid_dim_outer_reduction: bool = False
    unroll_factor_outer_reduction: int = 1
    block_dim_outer_reduction: ParallelType = ParallelType.serial
    grid_dim_outer_reduction: ParallelType = ParallelType.serial
    compute_persistent_buffer_with_first_consumer: bool = False
    static_bdimx: bool = False
    static_bdimy: bool = False
    combined_inner_outer: bool = False
    tidx_for_outer_reduction: bool = False
    pad_outer_reduction_to_warp: bool = False
    vectorization_factor_outer: int = 1
    vectorization_factor_tmem_write: int = 1
    block_dim_inner_reduction_extra: ParallelType = ParallelType.serial


def params_of(
    scheduler_type: SchedulerType, decisions: Hashable, is_threaded: bool = False
) -> HeuristicParams:
    """The decisions of one of pyfuser's schedulers, under the interface's names.

    `is_threaded` if lanes are the threads of a block.
    """
    match decisions:
        case PointwiseParameters(lanes=lanes):
            made: HeuristicParams = PointwiseParams(
                scheduler_type,
                decisions=decisions,
                break_point=int(decisions.chunk == 0),
                vectorization_factor=_vector(decisions, is_threaded),
                unroll_factor_inner=decisions.unroll,
            )
        case ReductionParameters(lanes=lanes):
            made = _reduction_params(scheduler_type, decisions, is_threaded)
        case InnerOuterParameters(rows=ReductionParameters(lanes=lanes) as rows):
            made = _reduction_params(scheduler_type, replace(rows, parts=1), is_threaded)
            made.decisions = decisions
            made.combined_inner_outer = made.cross_grid_outer_reduction = True
            made.lparams.gdimy = rows.parts
        case _:
            return HeuristicParams(scheduler_type, decisions=decisions)
    if is_threaded:
        made.lparams.bdimx = lanes
    if isinstance(decisions, ThreadedPointwise | ThreadedReduction):
        made.lparams.bdimy = decisions.lines
    return made


def _vector(decisions: PointwiseParameters | ReductionParameters, is_threaded: bool) -> int:
    """Elements that are moved at once: a vector of lanes, or of one thread."""
    if isinstance(decisions, ThreadedPointwise | ThreadedReduction):
        return decisions.vector
    return 1 if is_threaded else decisions.lanes


def _reduction_params(
    scheduler_type: SchedulerType, decisions: ReductionParameters, is_threaded: bool
) -> ReductionParams:
    lanes = _vector(decisions, is_threaded)
    made = ReductionParams(
        scheduler_type,
        decisions=decisions,
        fastest_dim=decisions.inner,
        persistent_kernel=scheduler_type is not SchedulerType.reduction,
    )
    if decisions.inner:
        made.unroll_factor_inner_reduction = lanes
        made.unroll_factor_top_of_vectorization = decisions.unroll
        made.vectorize_inner_reduction = lanes > 1
        made.split_grid_dim_inner_reduction = decisions.parts > 1
    else:
        made.unroll_factor_iter_dom = lanes
        made.unroll_factor_outer_reduction = decisions.unroll
        made.vectorize_iter_dom = lanes > 1
        made.split_grid_dim_outer_reduction = decisions.parts > 1
    made.cross_grid_inner_reduction = decisions.inner and decisions.parts > 1
    made.cross_grid_outer_reduction = not decisions.inner and decisions.parts > 1
    if decisions.parts > 1:
        made.lparams.gdimy = decisions.parts
    return made


def decisions_of(params: HeuristicParams) -> Hashable:
    """The decisions that these parameters, edited or made by hand, stand for."""
    match params:
        case PointwiseParams():
            base = params.decisions or PointwiseParameters(1, 1, _CHUNK)
            assert isinstance(base, PointwiseParameters)
            edits = _edits(base, params.lparams, params.vectorization_factor)
            return replace(base, unroll=params.unroll_factor_inner, **edits)
        case ReductionParams(decisions=InnerOuterParameters() as base_both):
            base_rows = base_both.rows
            if isinstance(base_rows, ThreadedReduction):  # its rows are of a limited length
                base_rows = ReductionParameters(True, base_rows.lanes, base_rows.unroll, 0, 1)
            rows = replace(
                base_rows,
                lanes=params.lparams.bdimx
                if params.lparams.bdimx > 0
                else params.unroll_factor_inner_reduction,
                unroll=params.unroll_factor_top_of_vectorization,
                parts=max(params.lparams.gdimy, 1),
            )
            return replace(base_both, rows=rows)
        case ReductionParams():
            inner = params.fastest_dim
            base_reduction = params.decisions or ReductionParameters(inner, 1, 1, _CHUNK, 1)
            assert isinstance(base_reduction, ReductionParameters)
            if inner:
                width = params.unroll_factor_inner_reduction
                unroll = params.unroll_factor_top_of_vectorization
                is_split = params.split_grid_dim_inner_reduction
            else:
                width = params.unroll_factor_iter_dom
                unroll = params.unroll_factor_outer_reduction
                is_split = params.split_grid_dim_outer_reduction
            edits = _edits(base_reduction, params.lparams, width)
            parts = max(params.lparams.gdimy, 1) if is_split else 1
            edited = replace(base_reduction, inner=inner, unroll=unroll, parts=parts, **edits)
            if isinstance(edited, ThreadedReduction):
                edited = replace(edited, is_whole=False)  # it serves calls of all sizes
            return edited
        case _:
            return params.decisions


def _edits(
    base: PointwiseParameters | ReductionParameters, launch: LaunchParams, vector: int
) -> dict[str, Any]:
    """The fields of threads and vectors, by their names in the decisions."""
    if isinstance(base, ThreadedPointwise | ThreadedReduction):
        found = {"lanes": launch.bdimx, "lines": launch.bdimy, "vector": vector}
        return {name: value for name, value in found.items() if value > 0}
    return {"lanes": launch.bdimx if launch.bdimx > 0 else vector}
