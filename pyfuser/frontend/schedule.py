"""`fd.sched`: the scheduling functions that look at several tensors, acting on the active fusion.

Splits, merges, caches and memory are methods of the tensors; this module has propagation and
inlining for user schedules, and queries to the automatic schedulers.  An empty list of tensors
means all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ScheduleError, UnsupportedError, expected
from ..ir import fusion as ir
from ..ir.domains import ParallelType
from ..ir.schedule import ScheduledFusion
from ..ir.segmented import PartKind
from ..ir.vals import TensorView
from ..ops.binding import bind_extents
from ..ops.metadata import device_of
from .enums import SchedulerType
from .executors import all_inputs, flattened
from .fusion import Fusion
from .guard import active_fusion
from .params import HeuristicParams, decisions_of, params_of

if TYPE_CHECKING:
    from ..schedule.acceptance import SizeInfo


def _scheduled(tensor: TensorView) -> ScheduledFusion:
    found = getattr(tensor.fusion, "user_schedule", None)
    if not isinstance(found, ScheduledFusion):
        raise ScheduleError(expected("schedule", "a tensor of a FusionDefinition", str(tensor)))
    return found


def transform_like(reference_tv: TensorView, selected_tensors: Sequence[TensorView] = ()) -> None:
    """Gives all (or the selected) tensors the loop transformations of the reference."""
    from ..schedule.propagation import transform_like as propagate

    propagate(_scheduled(reference_tv), reference_tv, list(selected_tensors) or None)


def bounded_transform_backward(
    source: TensorView,
    pos: int,
    to: Sequence[TensorView],
    propagate_parallel_type: bool = False,
) -> None:
    """Gives the producers of `source`, back to the tensors `to`, its first `pos` loops."""
    from ..schedule import propagation

    propagation.bounded_transform_backward(
        _scheduled(source), source, pos, list(to), propagate_parallel_type
    )


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
        _scheduled(reference_tv),
        reference_tv,
        pos,
        list(selected_tensors) or None,
        set(selected_parallel_types) or None,
    )


def inline_most(selected_tensors: Sequence[TensorView] = ()) -> None:
    """Inlines all (or the selected) tensors as far as possible."""
    from ..schedule.inlining import inline_most as inline

    chosen = list(selected_tensors)
    owner = _scheduled(chosen[0]) if chosen else active_fusion("inline_most").user_schedule
    inline(owner, chosen or None)


def inline_at(
    reference_tv: TensorView,
    pos: int = -1,
    best_effort: bool = False,
    selected_tensors: Sequence[TensorView] = (),
) -> None:
    """Inlines all (or the selected) tensors at a position of the reference's loops."""
    from ..schedule.inlining import inline_at as inline

    selected = list(selected_tensors) or None
    inline(_scheduled(reference_tv), reference_tv, pos, best_effort, selected)


def compute_at(
    producer: TensorView, consumer: TensorView, position: int, mode: str = "standard"
) -> None:
    """Computes `producer`, and tensors between, inside the consumer's loops up to `position`.

    mode: "standard", "best_effort" (as far as possible) or "most_inlined" (ignores the position).
    """
    from ..schedule.inlining import compute_at as inline

    inline(_scheduled(consumer), producer, consumer, position, mode)


def warp_specialize(
    tv: TensorView,
    number_of_stages: int,
    prefetch_distance: int,
    parallel_type: ParallelType,
    num_registers: tuple[int, int] | None = None,
) -> None:
    """Not supported yet: raises UnsupportedError."""
    raise UnsupportedError(expected("warp_specialize", "a schedule without it", parallel_type))


def _sizes(fusion: Fusion, inputs: Sequence[Any]) -> SizeInfo:
    from ..devices.registry import target_for
    from ..schedule.acceptance import SizeInfo

    flat = all_inputs(fusion, inputs)
    return SizeInfo.of(bind_extents(fusion.definition, flat), target_for(device_of(flat)))


def can_schedule(
    fusion: Fusion, scheduler_type: SchedulerType, inputs: Sequence[Any]
) -> tuple[bool, str]:
    """Whether a scheduler takes the fusion for these inputs, and why not."""
    from ..schedule.registry import SCHEDULERS, Refusal

    for scheduler in SCHEDULERS:
        if scheduler.name == scheduler_type.name:
            refusal = scheduler.can_schedule(fusion.definition, _sizes(fusion, inputs))
            return (True, "") if refusal is None else (False, str(refusal))
    return False, str(Refusal(scheduler_type.name, "pyfuser has no such scheduler"))


def find_compatible_schedulers(fusion: Fusion, inputs: Sequence[Any]) -> list[SchedulerType]:
    """The schedulers that take the whole fusion as one kernel, in the order they are asked."""
    from ..schedule.registry import SCHEDULERS

    sizes = _sizes(fusion, inputs)
    accepting = (s for s in SCHEDULERS if s.can_schedule(fusion.definition, sizes) is None)
    return [SchedulerType[scheduler.name] for scheduler in accepting]


def compute_heuristics(
    fusion: Fusion, scheduler_type: SchedulerType, inputs: Sequence[Any]
) -> HeuristicParams:
    """What a scheduler decides for these inputs.  ScheduleError if it refuses the fusion."""
    from ..devices.registry import target_for
    from ..schedule.registry import scheduler

    accepted, message = can_schedule(fusion, scheduler_type, inputs)
    if not accepted:
        raise ScheduleError(expected("compute_heuristics", "a scheduler that accepts", message))
    target = target_for(device_of(flattened(inputs)))
    chosen = scheduler(scheduler_type.name)
    if chosen.kind is not PartKind.kernel:  # torch computes it: there is nothing to decide
        return params_of(scheduler_type, None, target.threads_are_hardware)
    prepared = _specialised(fusion, inputs)
    sizes = bind_extents(fusion.definition, all_inputs(fusion, inputs))
    decisions = chosen.heuristics(prepared, sizes, target)
    return params_of(scheduler_type, decisions, target.threads_are_hardware)


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
    from ..schedule.registry import scheduler

    is_decided = isinstance(inputs_or_params, HeuristicParams)
    if isinstance(inputs_or_params, HeuristicParams):
        params, prepared = inputs_or_params, fusion.definition
    else:
        params = compute_heuristics(fusion, scheduler_type, inputs_or_params)
        prepared = _specialised(fusion, inputs_or_params)
    chosen = scheduler(scheduler_type.name)
    if chosen.kind is PartKind.kernel:
        decisions = decisions_of(params)
        if decisions is None:
            what = f"parameters of {scheduler_type.name}"
            raise ScheduleError(expected("schedule", what, type(params).__name__))
        fusion.graph.adopt_schedule(chosen.schedule(prepared, decisions))
    return None if is_decided else params


def _specialised(fusion: Fusion, inputs: Sequence[Any]) -> ir.Fusion:
    """The definition for the layouts of these inputs."""
    from ..analysis.layouts import input_layouts, specialise

    given = all_inputs(fusion, inputs)
    return specialise(fusion.definition, input_layouts(fusion.definition, given))


FUNCTIONS = (
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
