"""`fd.sched`: the scheduling functions that look at several tensors, acting on the active fusion.

Splits, merges, caches and memory are methods of the tensors; this module has propagation and
inlining for user schedules, and queries to the automatic schedulers.  An empty list of tensors
means all of them.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..errors import ScheduleError, UnsupportedError, expected, unsupported
from ..ir import fusion as ir
from ..ir.domains import ParallelType
from ..ir.schedule import ScheduledFusion
from ..ir.segmented import PartKind
from ..ir.vals import TensorView
from ..ops.binding import bind_extents
from ..ops.metadata import device_of
from .enums import SchedulerType
from .executors import all_inputs, flattened, require_list
from .fusion import Fusion, require_fusion
from .guard import active_fusion
from .handles import require_member
from .params import HeuristicParams, decisions_of, for_all_sizes, params_of, require_instance

if TYPE_CHECKING:
    from ..schedule.registry import AutomaticScheduler, Refusal
    from ..schedule.size_info import SizeInfo
    from ..target.target import Target


def _scheduled(op: str, tensor: TensorView) -> ScheduledFusion:
    fusion = tensor.fusion if isinstance(tensor, TensorView) else None
    found = getattr(fusion, "user_schedule", None)
    if not isinstance(found, ScheduledFusion):
        raise ScheduleError(expected(op, "a tensor of a FusionDefinition", repr(tensor)))
    return found


def _selected(op: str, tensors: Sequence[TensorView]) -> list[TensorView] | None:
    """The tensors, or None for all of them; ScheduleError for anything else."""
    chosen = list(tensors) if isinstance(tensors, Collection) else [tensors]
    for tensor in chosen:
        _scheduled(op, tensor)
    return chosen or None


def transform_like(reference_tv: TensorView, selected_tensors: Sequence[TensorView] = ()) -> None:
    """Gives all (or the selected) tensors the loop transformations of the reference."""
    from ..schedule.propagation import transform_like as propagate

    owner = _scheduled("transform_like", reference_tv)
    propagate(owner, reference_tv, _selected("transform_like", selected_tensors))


def bounded_transform_backward(
    source: TensorView,
    pos: int,
    to: Sequence[TensorView],
    propagate_parallel_type: bool = False,
) -> None:
    """Gives the producers of `source`, back to the tensors `to`, its first `pos` loops."""
    from ..schedule import propagation

    op = "bounded_transform_backward"
    owner, ends = _scheduled(op, source), _selected(op, to) or []
    with owner.kept_on_error():
        propagation.bounded_transform_backward(owner, source, pos, ends, propagate_parallel_type)


def parallelize_like(
    reference_tv: TensorView,
    pos: int = -1,
    selected_tensors: Sequence[TensorView] = (),
    selected_parallel_types: Collection[ParallelType] = (),
    propagate_padding: bool = True,
) -> None:
    """Gives loops of all (or the selected) tensors the parallel types of the reference's."""
    from ..schedule import propagation

    propagation.parallelize_like(
        _scheduled("parallelize_like", reference_tv),
        reference_tv,
        pos,
        _selected("parallelize_like", selected_tensors),
        set(selected_parallel_types) or None,
    )


def inline_most(selected_tensors: Sequence[TensorView] = ()) -> None:
    """Inlines all (or the selected) tensors as far as possible."""
    from ..schedule.inlining import inline_most as inline

    op = "inline_most"
    chosen = _selected(op, selected_tensors)
    owner = _scheduled(op, chosen[0]) if chosen else active_fusion(op).user_schedule
    with owner.kept_on_error():
        inline(owner, chosen)


def inline_at(
    reference_tv: TensorView,
    pos: int = -1,
    best_effort: bool = False,
    selected_tensors: Sequence[TensorView] = (),
) -> None:
    """Inlines all (or the selected) tensors at a position of the reference's loops."""
    from ..schedule.inlining import inline_at as inline

    selected = _selected("inline_at", selected_tensors)
    owner = _scheduled("inline_at", reference_tv)
    with owner.kept_on_error():
        inline(owner, reference_tv, pos, best_effort, selected)


def compute_at(
    producer: TensorView, consumer: TensorView, position: int, mode: str = "standard"
) -> None:
    """Computes `producer`, and tensors between, inside the consumer's loops up to `position`.

    mode: "standard", "best_effort" (as far as possible) or "most_inlined" (ignores the position).
    """
    from ..schedule.inlining import compute_at as inline

    _scheduled("compute_at", producer)
    owner = _scheduled("compute_at", consumer)
    with owner.kept_on_error():
        inline(owner, producer, consumer, position, mode)


def warp_specialize(
    tv: TensorView,
    number_of_stages: int,
    prefetch_distance: int,
    parallel_type: ParallelType,
    num_registers: tuple[int, int] | None = None,
) -> None:
    """Gives warps of a block different work: raises UnsupportedError."""
    needs = "kernels with asynchronous copies and barriers for warps (NVIDIA sm_90)"
    raise UnsupportedError(unsupported("warp_specialize", needs))


def _sizes(fusion: Fusion, inputs: Sequence[Any], operation: str) -> SizeInfo:
    from ..devices.registry import target_for
    from ..schedule.size_info import SizeInfo

    require_fusion(operation, fusion)
    require_list(inputs, operation, f"{operation}(..., {{}})")
    flat = all_inputs(fusion, inputs)
    return SizeInfo.of(bind_extents(fusion.definition, flat), target_for(device_of(flat)))


def _scheduler(operation: str, scheduler_type: SchedulerType) -> AutomaticScheduler | str:
    """The scheduler of the interface's name, or why there is none."""
    from ..schedule.registry import SCHEDULERS, Refusal

    require_member(operation, SchedulerType, scheduler_type)
    for scheduler in SCHEDULERS:
        if scheduler.name == scheduler_type.name:
            return scheduler
    return str(Refusal(scheduler_type.name, "pyfuser has no such scheduler"))


def _refused(operation: str, reason: str) -> ScheduleError:
    return ScheduleError(expected(operation, "a scheduler that accepts", reason))


def _accepted(
    scheduler: AutomaticScheduler, definition: ir.Fusion, sizes: SizeInfo
) -> ir.Fusion | Refusal:
    """What a scheduler takes: the definition, or its simpler form, which an execution schedules."""
    from ..preseg.pipeline import run

    refusal = scheduler.can_schedule(definition, sizes)
    if refusal is None:
        return definition
    simpler = run(definition, verify=False)
    return refusal if scheduler.can_schedule(simpler, sizes) is not None else simpler


def can_schedule(
    fusion: Fusion, scheduler_type: SchedulerType, inputs: Sequence[Any]
) -> tuple[bool, str]:
    """Whether a scheduler takes the fusion for these inputs, and why not."""
    from ..schedule.registry import Refusal

    sizes = _sizes(fusion, inputs, "can_schedule")
    scheduler = _scheduler("can_schedule", scheduler_type)
    if isinstance(scheduler, str):
        return False, scheduler
    accepted = _accepted(scheduler, fusion.definition, sizes)
    return (False, str(accepted)) if isinstance(accepted, Refusal) else (True, "")


def find_compatible_schedulers(fusion: Fusion, inputs: Sequence[Any]) -> list[SchedulerType]:
    """The schedulers that take the whole fusion as one kernel, in the order they are asked."""
    from ..schedule.registry import SCHEDULERS, Refusal

    sizes = _sizes(fusion, inputs, "find_compatible_schedulers")
    found = ((each.name, _accepted(each, fusion.definition, sizes)) for each in SCHEDULERS)
    return [SchedulerType[name] for name, accepted in found if not isinstance(accepted, Refusal)]


def compute_heuristics(
    fusion: Fusion, scheduler_type: SchedulerType, inputs: Sequence[Any]
) -> HeuristicParams:
    """What a scheduler decides for these inputs.  ScheduleError if it refuses the fusion."""
    return _decided("compute_heuristics", fusion, scheduler_type, inputs)[0]


def schedule(
    fusion: Fusion,
    scheduler_type: SchedulerType,
    inputs_or_params: Sequence[Any] | HeuristicParams,
) -> HeuristicParams | None:
    """Schedules a fusion with a scheduler, for `manual_execute`, in two forms.

    `(fusion, type, inputs)` decides and returns the parameters; `(fusion, type, params)` follows
    the parameters of an earlier `compute_heuristics` and returns None.  What torch computes
    (expr_eval, no_op) has no loops to schedule.
    """
    if isinstance(inputs_or_params, HeuristicParams):
        made = _followed(fusion, scheduler_type, inputs_or_params)
        params = None
    else:
        hint = "pass the inputs, or the parameters of compute_heuristics"
        if not isinstance(inputs_or_params, Sequence):
            require_instance("schedule", HeuristicParams, inputs_or_params, hint)
        params, made = _decided("schedule", fusion, scheduler_type, inputs_or_params)
    if made is not None:
        fusion.graph.adopt_schedule(made)
    return params


def _decided(
    operation: str, fusion: Fusion, scheduler_type: SchedulerType, inputs: Sequence[Any]
) -> tuple[HeuristicParams, ScheduledFusion | None]:
    """What a scheduler decides for these inputs, and the schedule that follows."""
    from ..analysis.layouts import input_layouts, specialise
    from ..devices.registry import target_for
    from ..schedule.registry import Refusal

    sizes = _sizes(fusion, inputs, operation)
    chosen = _scheduler(operation, scheduler_type)
    if isinstance(chosen, str):
        raise _refused(operation, chosen)
    accepted = _accepted(chosen, fusion.definition, sizes)
    if isinstance(accepted, Refusal):
        raise _refused(operation, str(accepted))
    target = target_for(device_of(flattened(inputs)))
    if chosen.kind is not PartKind.kernel:  # torch computes it: there is nothing to decide
        return params_of(scheduler_type, None, target.threads_are_hardware), None
    given = all_inputs(fusion, inputs)
    prepared = specialise(accepted, input_layouts(accepted, given))
    extents = bind_extents(fusion.definition, given)
    decisions = for_all_sizes(chosen.heuristics(prepared, extents, target))
    made = chosen.schedule(prepared, decisions)
    found = _parallel_extents(made, target)
    return params_of(scheduler_type, decisions, target.threads_are_hardware, found), made


def _parallel_extents(scheduled: ScheduledFusion, target: Target) -> dict[ParallelType, int]:
    """The extents of the grid and block axes of the kernel, of those that depend on no size."""
    from ..lower.lowering import lower

    found: dict[ParallelType, int] = {}
    for phase in lower(scheduled, target).phases:
        for kind, extent in (phase.grid | phase.block).items():
            if extent.is_constant:
                found[kind] = max(extent.value, found.get(kind, 1))
    return found


def _followed(
    fusion: Fusion, scheduler_type: SchedulerType, params: HeuristicParams
) -> ScheduledFusion | None:
    """The schedule that follows from parameters, for any sizes."""
    from ..devices.registry import target_for
    from ..schedule.registry import Refusal
    from ..schedule.size_info import SizeInfo

    require_fusion("schedule", fusion)
    chosen = _scheduler("schedule", scheduler_type)
    if isinstance(chosen, str):
        raise _refused("schedule", chosen)
    if chosen.kind is not PartKind.kernel:
        return None
    decisions = decisions_of(params)
    if not chosen.takes(decisions):
        got = f"{type(params).__name__} of {params.scheduler_type.name}"
        raise ScheduleError(expected("schedule", f"parameters of {scheduler_type.name}", got))
    target = target_for(torch.get_default_device())
    accepted = _accepted(chosen, fusion.definition, SizeInfo(target))
    if isinstance(accepted, Refusal):
        raise _refused("schedule", str(accepted))
    return chosen.schedule(accepted, decisions)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        can_schedule,
        compute_heuristics,
        find_compatible_schedulers,
        schedule,
        transform_like,
        bounded_transform_backward,
        parallelize_like,
        inline_most,
        inline_at,
        compute_at,
        warp_specialize,
    )
}


def __getattr__(name: str) -> Callable[..., Any]:
    """Raises AttributeError, with names that are near; the functions are attributes."""
    near = difflib.get_close_matches(name, FUNCTIONS, 3)
    hint = f"did you mean {' or '.join(near)}?" if near else ""
    raise AttributeError(expected("sched", "the name of a scheduling function", repr(name), hint))
