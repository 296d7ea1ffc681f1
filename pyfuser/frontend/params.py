"""Parameters of a launch, of a compilation and of a scheduler, as users of the interface set them.

They are plain values: comparable, printable, and hashable where the interface has `hash()`.  A
scheduler's decisions (target/parameters.py) are shown under the interface's names, and edits to
these fields are followed:

    vector lanes   vectorization_factor (pointwise), unroll_factor_inner_reduction (inner),
                   unroll_factor_iter_dom (outer)
    threads        if they are hardware: lparams.bdimx and bdimy, each with a vector
    unrolling      unroll_factor_inner, unroll_factor_top_of_vectorization (inner),
                   unroll_factor_outer_reduction (outer)
    grid parts     with split_grid_dim_inner_reduction or _outer_reduction, the extent in lparams
                   of the axis that grid_dim_inner_reduction or _outer_reduction names; if it names
                   none, gdimy (inner) or gdimz (outer)

The extents in lparams are those of the schedule that follows from the parameters, so that they are
also launch constraints that its kernel meets.

The other fields describe choices that pyfuser's schedulers don't have.  They are stored, so a
program that sets them runs.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any, TypeVar

import torch

from ..dtypes import DataType
from ..errors import ScheduleError, expected
from ..ir.domains import ParallelType
from ..target.parameters import InnerOuterParameters, PointwiseParameters, ReductionParameters
from ..target.thread_parameters import ThreadedPointwise, ThreadedReduction
from .enums import SchedulerType

REGISTERS_OF_A_THREAD = 255  # NVIDIA GPUs have no more for it
_CHUNK = 4096  # elements per task of a schedule that is described by the interface's fields alone


_Kind = TypeVar("_Kind")


@dataclass(slots=True)
class LaunchParams:
    """Grid and block extents of a launch; -1 if the kernel decides."""

    gdimx: int = -1
    gdimy: int = -1
    gdimz: int = -1
    bdimx: int = -1
    bdimy: int = -1
    bdimz: int = -1


@dataclass(kw_only=True, slots=True)
class CompileParams:
    """How a kernel is compiled.

    `index_type` and `device` are checked against the inputs. A thread of a CUDA kernel has at most
    `maxrregcount` registers, or as many as it needs by default; with `enable_ptxas_verbose` they
    and their spills are printed. The rest has no effect here: indices aren't hoisted so that they
    need a magic zero, and no text includes a file.
    """

    index_type: DataType | None = None
    maxrregcount: int = REGISTERS_OF_A_THREAD
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


def require_instance(operation: str, kind: type[_Kind], given: object, hint: str = "") -> None:
    """ScheduleError if parameters aren't of the class that belongs there."""
    if not isinstance(given, kind):
        got = f"an object of type {type(given).__name__}"
        raise ScheduleError(expected(operation, kind.__name__, got, hint))


def _require_count(operation: str, name: str, given: object) -> int:
    """The value of a field that counts something; ScheduleError if it isn't a positive integer."""
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise ScheduleError(expected(operation, f"{name} of at least 1", repr(given)))
    return given


def check_launch_params(operation: str, params: LaunchParams) -> None:
    """ScheduleError if an extent is neither -1 nor a positive integer."""
    require_instance(operation, LaunchParams, params)
    for name in _EXTENTS:
        given = getattr(params, name)
        if isinstance(given, bool) or given != -1:
            _require_count(operation, name, given)


def require_extents(constraints: LaunchParams, launches: Sequence[Mapping[str, int]]) -> None:
    """ScheduleError if no launch of a kernel has an extent that the constraints ask for.

    A launch has its extents by axis; one that is absent is 1.
    """
    for name, axis in _EXTENTS.items():
        wanted = getattr(constraints, name)
        found = dict.fromkeys(launch.get(axis, 1) for launch in launches)
        if wanted != -1 and wanted not in found:
            what = f"{name} of {wanted}, as the launch constraints say"
            raise ScheduleError(expected("launch", what, " and ".join(map(str, found))))


def check_compile_params(
    params: CompileParams, inputs: Sequence[Any], operation: str = "compile"
) -> None:
    """ScheduleError if a kernel for these inputs can't be compiled as the parameters say."""
    require_instance(operation, CompileParams, params)
    _require_count(operation, "maxrregcount", params.maxrregcount)
    paths = params.include_paths
    if isinstance(paths, str) or not isinstance(paths, Sequence):
        raise ScheduleError(expected(operation, "a list of include_paths", repr(paths)))
    _require_device(device_of_params(params, operation), inputs)
    _require_index_type(params.index_type, inputs)


def most_registers(params: CompileParams) -> int | None:
    """The registers that a thread gets at most; None for as many as it needs."""
    return params.maxrregcount if params.maxrregcount < REGISTERS_OF_A_THREAD else None


def device_of_params(params: CompileParams, operation: str) -> torch.device | None:
    """The device of the parameters, or None if they leave it open."""
    if params.device is None:
        return None
    try:
        return torch.device(params.device)  # type: ignore[call-overload,no-any-return]
    except (RuntimeError, TypeError):
        what = "a torch.device in CompileParams"
        raise ScheduleError(expected(operation, what, repr(params.device))) from None


def _require_device(device: torch.device | None, inputs: Sequence[Any]) -> None:
    """Kernels are compiled for the device of their inputs."""
    if device is None:
        return
    for given in inputs:
        if not isinstance(given, torch.Tensor) or (given.is_cpu and not given.dim()):
            continue
        # A tensor on the CPU has no index, though its device may be written as cpu:0.
        if given.device.type != device.type or device.index not in (None, given.device.index or 0):
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
        if not isinstance(given, torch.Tensor) or not given.numel():
            continue
        axes = zip(given.shape, given.stride(), strict=True)
        span = 1 + sum((size - 1) * stride for size, stride in axes)
        if max(span, given.numel()) > 1 << 31:
            what = "tensors that indices of 32 bits address"
            got = f"one of {given.numel()} elements in a range of {span}"
            raise ScheduleError(expected("compile", what, got))


@dataclass(slots=True)
class HeuristicParams:
    """What a scheduler decided; `decisions` are the parameters of pyfuser's own scheduler."""

    scheduler_type: SchedulerType = SchedulerType.none
    lparams: LaunchParams = field(default_factory=LaunchParams)
    cparams: CompileParams = field(default_factory=CompileParams)
    decisions: Hashable = None

    def hash(self) -> int:
        """A number that is equal for equal parameters."""
        return hash(repr(astuple(self)))


@dataclass(slots=True)
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


@dataclass(slots=True)
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
    scheduler_type: SchedulerType,
    decisions: Hashable,
    is_threaded: bool = False,
    extents: Mapping[ParallelType, int] | None = None,
) -> HeuristicParams:
    """The decisions of one of pyfuser's schedulers, under the interface's names.

    `is_threaded` if lanes are the threads of a block.  `extents` are those of the parallel axes of
    the schedule that follows from the decisions, as far as they don't depend on sizes.
    """
    found = extents or {}
    match decisions:
        case PointwiseParameters() as own:
            made: HeuristicParams = PointwiseParams(
                scheduler_type,
                decisions=decisions,
                break_point=int(decisions.chunk == 0),
                vectorization_factor=_vector(decisions, is_threaded),
                unroll_factor_inner=decisions.unroll,
            )
        case ReductionParameters() as own:
            made = _reduction_params(scheduler_type, own, is_threaded, found)
        case InnerOuterParameters(rows=own):
            made = _reduction_params(scheduler_type, replace(own, parts=1), is_threaded, found)
            made.decisions = decisions
            made.combined_inner_outer = made.cross_grid_outer_reduction = True
            made.grid_dim_outer_reduction = ParallelType.grid_x
            made.lparams.gdimx = own.parts
        case _:
            return HeuristicParams(scheduler_type, decisions=decisions)
    if is_threaded:
        is_own = isinstance(own, ThreadedPointwise | ThreadedReduction)
        made.lparams.bdimx = found.get(ParallelType.block_x, -1 if is_own else own.lanes)
        made.lparams.bdimy = found.get(ParallelType.block_y, -1)
    return made


def _vector(decisions: PointwiseParameters | ReductionParameters, is_threaded: bool) -> int:
    """Elements that are moved at once: a vector of lanes, or of one thread."""
    if isinstance(decisions, ThreadedPointwise | ThreadedReduction):
        return decisions.vector
    return 1 if is_threaded else decisions.lanes


def _reduction_params(
    scheduler_type: SchedulerType,
    decisions: ReductionParameters,
    is_threaded: bool,
    extents: Mapping[ParallelType, int],
) -> ReductionParams:
    lanes = _vector(decisions, is_threaded)
    made = ReductionParams(
        scheduler_type,
        decisions=decisions,
        fastest_dim=decisions.inner,
        persistent_kernel=scheduler_type is not SchedulerType.reduction,
    )
    is_split = decisions.parts > 1
    if decisions.inner:
        made.unroll_factor_inner_reduction = lanes
        made.unroll_factor_top_of_vectorization = decisions.unroll
        made.vectorize_inner_reduction = lanes > 1
        made.split_grid_dim_inner_reduction = made.cross_grid_inner_reduction = is_split
    else:
        made.unroll_factor_iter_dom = lanes
        made.unroll_factor_outer_reduction = decisions.unroll
        made.vectorize_iter_dom = lanes > 1
        made.split_grid_dim_outer_reduction = made.cross_grid_outer_reduction = is_split
    if is_split and decisions.inner:
        # If all axes are reduced, the parts are the only tasks.
        has_rows = not extents or ParallelType.grid_y in extents
        made.grid_dim_inner_reduction = ParallelType.grid_y if has_rows else ParallelType.grid_x
    elif is_split:
        made.grid_dim_outer_reduction = ParallelType.grid_z
    if is_split:
        setattr(made.lparams, _parts_extent(made), decisions.parts)
    return made


def _parts_extent(params: ReductionParams) -> str:
    """The field of lparams that has the number of parts of the reduced axes."""
    chosen = params.grid_dim_outer_reduction
    default = "gdimz"
    if params.fastest_dim and not params.combined_inner_outer:
        chosen, default = params.grid_dim_inner_reduction, "gdimy"
    return next((name for name, axis in _EXTENTS.items() if axis == chosen.value), default)


def _parts(params: ReductionParams, unedited: int) -> int:
    extent = getattr(params.lparams, _parts_extent(params))
    return extent if extent > 0 else unedited


def decisions_of(params: HeuristicParams) -> Hashable:
    """The decisions that these parameters, edited or made by hand, stand for.

    ScheduleError for a field that is followed and isn't a positive integer.
    """
    check_launch_params("schedule", params.lparams)
    match params:
        case PointwiseParams():
            vector, unroll = _counts(params, "vectorization_factor", "unroll_factor_inner")
            base = params.decisions or PointwiseParameters(1, 1, _CHUNK)
            assert isinstance(base, PointwiseParameters)
            return replace(base, unroll=unroll, **_edits(base, params.lparams, vector))
        case ReductionParams():
            return _reduction_decisions(params)
        case _:
            return params.decisions


def _counts(params: HeuristicParams, *names: str) -> tuple[int, ...]:
    return tuple(_require_count("schedule", name, getattr(params, name)) for name in names)


def _reduction_decisions(params: ReductionParams) -> Hashable:
    inner = params.fastest_dim
    if inner:
        names = ("unroll_factor_inner_reduction", "unroll_factor_top_of_vectorization")
        is_split = params.split_grid_dim_inner_reduction
    else:
        names = ("unroll_factor_iter_dom", "unroll_factor_outer_reduction")
        is_split = params.split_grid_dim_outer_reduction
    vector, unroll = _counts(params, *names)
    launch = params.lparams
    if isinstance(params.decisions, InnerOuterParameters):
        rows = params.decisions.rows
        edits = _edits(rows, launch, vector)
        rows = replace(rows, unroll=unroll, parts=_parts(params, rows.parts), **edits)
        return replace(params.decisions, rows=rows)
    base = params.decisions or ReductionParameters(inner, 1, 1, _CHUNK, 1)
    assert isinstance(base, ReductionParameters)
    if base.inner != inner:  # the other axes have other vectors and tasks
        base = ReductionParameters(inner, 1, 1, _CHUNK, 1)
    parts = _parts(params, base.parts) if is_split else 1
    return replace(base, unroll=unroll, parts=parts, **_edits(base, launch, vector))


def for_all_sizes(decisions: Hashable) -> Hashable:
    """The decisions without assumptions about the length of rows and columns.

    A schedule by hand serves calls of all sizes.
    """
    match decisions:
        case ThreadedReduction():
            return replace(decisions, is_whole=False, is_full=False)
        case ThreadedPointwise(squares=True):
            return ThreadedPointwise.tiles()
        case InnerOuterParameters(rows=ThreadedReduction() as rows):
            plain = ReductionParameters(True, rows.lanes, rows.unroll, 0, rows.parts)
            return replace(decisions, rows=plain)
        case _:
            return decisions


def _edits(
    base: PointwiseParameters | ReductionParameters, launch: LaunchParams, vector: int
) -> dict[str, Any]:
    """The fields of threads and vectors, by their names in the decisions.

    The lines of a long row are block_x with its lanes, so both are kept if there are as many.
    """
    if isinstance(base, ThreadedPointwise | ThreadedReduction):
        if launch.bdimy <= 1 < base.lines and launch.bdimx == base.lanes * base.lines:
            return {"vector": vector} if vector > 0 else {}
        found = {"lanes": launch.bdimx, "lines": launch.bdimy, "vector": vector}
        return {name: value for name, value in found.items() if value > 0}
    return {"lanes": launch.bdimx if launch.bdimx > 0 else vector}
