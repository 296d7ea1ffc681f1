"""The schedulers, in the order in which they are asked, and the interface of each.

A scheduler turns a Fusion into a ScheduledFusion in three steps: `can_schedule` refuses with a
reason or accepts, `heuristics` lets the target decide the parameters from sizes, and `schedule`
makes the loops.  The first is here (over `facts.Facts`); the other two, and the
`candidates` that the tuner measures, are functions of the module `pyfuser.schedule.<name>`,
imported when first used.  The order follows nvFuser's public
source.  The reduction scheduler refuses whatever needs persistence, so normalizations fall through
to the persistent schedulers.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..analysis.innermost import common_innermost
from ..analysis.iteration_space import IterationSpace
from ..ir.exprs import VIEWS, LibraryOp, WindowOp
from ..ir.fusion import Fusion
from ..ir.schedule import ScheduledFusion
from ..ir.segmented import PartKind
from ..ir.vals import TensorView
from ..target.parameters import (
    InnerOuterParameters,
    PointwiseParameters,
    ReductionParameters,
    ScanParameters,
    ScatterParameters,
)
from ..target.target import Target
from .acceptance import (
    NO_REFERENCE,
    NORMALIZATION,
    greedy_refusal,
    inner_outer_refusal,
    nested_refusal,
    persistent_refusal,
    pointwise_refusal,
    reduction_refusal,
)
from .facts import (
    Facts,
    examine,
    has_transposed_input,
    reads_nothing,
    reference_tensor,
    uncomputed,
    unlike_outputs,
    view_source,
)
from .size_info import SizeInfo

__all__ = ["SCHEDULERS", "Parameters", "Refusal", "SizeInfo", "find", "scheduler"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a scheduler doesn't take a fusion."""

    scheduler: str
    reason: str

    def __str__(self) -> str:
        return f"Scheduler _{self.scheduler}_ ***rejected*** because : {self.reason}"


# A scheduler's decisions: a frozen dataclass, so that kernels can be cached by it and it prints.
Parameters = Hashable


# -- the rules


def _problem(facts: Facts, sizes: SizeInfo) -> str | None:
    """Why no kernel scheduler can take a fusion."""
    return (
        uncomputed(facts.exprs, sizes.target)
        or facts.problem
        or reads_nothing(facts, sizes)
        or unlike_outputs(facts)
    )


def refuse_expr_eval(facts: Facts, sizes: SizeInfo) -> str | None:
    """Only expressions that no kernel computes, or one library operation and views before it."""
    supported = [e for e in facts.exprs if sizes.target.refusal(e) is None]
    library = [e for e in facts.exprs if isinstance(e, LibraryOp)]
    for expr in supported:
        if not (library and isinstance(expr, VIEWS) and expr.output not in facts.outputs):
            return f"kernels compute {expr.name}"
    if library and len(supported) + 1 < len(facts.exprs):
        return "a library operation is a part of its own"
    return None if facts.exprs else "there is nothing to compute"


def refuse_no_op(facts: Facts, sizes: SizeInfo) -> str | None:
    """Every output is empty, or a view of an input that moves no data."""
    for tensor in facts.outputs:
        if sizes.is_empty(tensor) and tensor not in facts.in_place:
            continue
        if (
            tensor in facts.in_place
            or view_source(tensor, facts.inputs, tensor in facts.stored) is None
        ):
            return f"T{tensor.name} is computed"
    return None


def refuse_pointwise(facts: Facts, sizes: SizeInfo) -> str | None:
    """No reductions, and an output from which every tensor can be indexed."""
    if facts.summary.signatures:
        return NO_REFERENCE
    reason = _problem(facts, sizes) or pointwise_refusal(facts.summary)
    if reason is not None:
        return reason
    reference = reference_tensor(facts)
    if reference is not None and sizes.is_empty(reference):
        filled = next((t for t in facts.outputs if not sizes.is_empty(t)), None)
        if filled is not None:
            return f"T{filled.name} has elements and the reference T{reference.name} has none"
    for tensor in facts.outputs:
        if tensor in facts.in_place and not facts.space.axes(tensor) >= facts.summary.axes:
            return f"T{tensor.name} updates an input in place but is computed more than once"
    return None


def refuse_transpose(facts: Facts, sizes: SizeInfo) -> str | None:
    """A pointwise fusion with an input whose memory runs along another axis than the output's."""
    return refuse_pointwise(facts, sizes) or (
        None if has_transposed_input(facts) else "every input runs along the output's memory"
    )


def refuse_resize(facts: Facts, sizes: SizeInfo) -> str | None:
    """A pointwise fusion that slices, pads or concatenates."""
    is_resized = any(isinstance(e, WindowOp) and e.source is not None for e in facts.exprs)
    return refuse_pointwise(facts, sizes) or (
        None if is_resized else "nothing is sliced, padded or concatenated"
    )


def refuse_reduction(facts: Facts, sizes: SizeInfo) -> str | None:
    """Reductions over the same axes, then only tensors of the reduced shape."""
    return _problem(facts, sizes) or reduction_refusal(facts.summary)


def _refuse_persistent(facts: Facts, sizes: SizeInfo) -> str | None:
    innermost = innermost_axis(facts)
    return _problem(facts, sizes) or persistent_refusal(
        facts.summary, innermost, sizes, facts.space.extents
    )


def refuse_inner_persistent(facts: Facts, sizes: SizeInfo) -> str | None:
    """A normalization over axes that include the innermost one in memory, or reductions of parts of
    a row and of their results."""
    innermost, extents = innermost_axis(facts), facts.space.extents
    if nested_refusal(facts.summary, innermost, sizes, extents) is None:
        return _problem(facts, sizes)
    reason = _refuse_persistent(facts, sizes)
    if reason is None and not innermost_is_reduced(facts):
        reason = "the innermost axis in memory is not reduced"
    return reason


def refuse_outer_persistent(facts: Facts, sizes: SizeInfo) -> str | None:
    """A normalization over axes that don't include the innermost one in memory."""
    reason = _refuse_persistent(facts, sizes)
    if reason is None and innermost_is_reduced(facts):
        reason = "the innermost axis in memory is reduced"
    return reason


def refuse_inner_outer_persistent(facts: Facts, sizes: SizeInfo) -> str | None:
    """Reductions of rows and of columns, and a normalization of rows or none."""
    innermost = innermost_axis(facts)
    return _problem(facts, sizes) or inner_outer_refusal(
        facts.summary, innermost, sizes, facts.space.extents
    )


def refuse_greedy(facts: Facts, sizes: SizeInfo) -> str | None:
    """Scans or scatters along one axis, and tensors with the axes of theirs."""
    return _problem(facts, sizes) or greedy_refusal(facts.summary)


def innermost_is_reduced(facts: Facts) -> bool:
    """True if the reductions include the axis that is innermost in memory."""
    (signature,) = facts.summary.signatures
    return innermost_axis(facts) in signature.reduced


def innermost_axis(facts: Facts) -> int:
    """The number of the axis that is innermost in memory; -1 if there is none.

    It is looked up in the input with the most axes of the reductions, or in a reduction's own input
    if the group reads no tensor with a reduced axis, or if all axes are reduced and a reshape makes
    one of them of that input's innermost axis.  If another tensor runs across it, an axis along
    which all run is better, as for `Layouts.memory_order`.
    """
    reduced = frozenset[int]().union(*(s.reduced for s in facts.summary.signatures))
    base = reduced.union(*(s.kept for s in facts.summary.signatures))
    inner = [e.tensor_inputs[0] for e in facts.exprs if e.accumulates]
    reading = [t for t in facts.inputs if facts.space.axes(t) & reduced]
    if not inner:
        return -1
    tensor = max(reading or inner, key=lambda t: len(facts.space.axes(t) & base))
    chosen = _order_in_memory(facts.space, tensor)[-1:]
    if base == reduced and not base.issuperset(chosen):
        chosen = _order_in_memory(facts.space, inner[0])[-1:]
    if not chosen:
        return -1
    orders = (_order_in_memory(facts.space, each) for each in (*facts.inputs, *facts.outputs))
    return common_innermost(chosen, [[n for n in order if n in base] for order in orders])[-1]


def _order_in_memory(space: IterationSpace, tensor: TensorView) -> list[int]:
    """The numbers of a tensor's axes with several elements, outermost in memory first."""
    return [
        space.number(axis)
        for axis in tensor.domain.allocated
        if not axis.is_broadcast and axis in tensor.domain.logical
    ]


# -- the schedulers


@dataclass(frozen=True, slots=True)
class AutomaticScheduler:
    """A scheduler of SCHEDULERS: its acceptance rule, and its module for the rest.

    `follows` has the kinds of parameters of its schedules.  `kind` is the kind of part made from
    its segments; only kernels are scheduled.
    """

    name: str
    refusal: Callable[[Facts, SizeInfo], str | None]
    follows: tuple[type[Parameters], ...] = ()
    kind: PartKind = PartKind.kernel

    def refuse(self, facts: Facts, sizes: SizeInfo) -> Refusal | None:
        """`can_schedule` for facts that are already known."""
        reason = DISABLED if self.name in sizes.disabled else self.refusal(facts, sizes)
        return None if reason is None else Refusal(self.name, reason)

    def can_schedule(self, fusion: Fusion, sizes: SizeInfo) -> Refusal | None:
        """None when the scheduler takes the fusion, else why not."""
        return self.refuse(examine(fusion), sizes)

    def _module(self) -> Any:
        return _module_of(self.name)

    def heuristics(self, fusion: Fusion, sizes: Mapping[str, int], target: Target) -> Parameters:
        """The target's decisions for these sizes."""
        parameters: Parameters = self._module().heuristics(fusion, sizes, target)
        return parameters

    def candidates(
        self, fusion: Fusion, chosen: Parameters, sizes: Mapping[str, int], target: Target
    ) -> Sequence[Parameters]:
        """Other parameters that are worth measuring, if the heuristics chose these."""
        found: Sequence[Parameters] = self._module().candidates(fusion, chosen, sizes, target)
        return found

    def takes(self, parameters: object) -> bool:
        """True if these are parameters of a kind that `schedule` follows."""
        return isinstance(parameters, self.follows)

    def schedule(self, fusion: Fusion, parameters: Parameters) -> ScheduledFusion:
        """The loops that the parameters specify."""
        scheduled: ScheduledFusion = self._module().schedule(fusion, parameters)
        return scheduled


@functools.cache
def _module_of(name: str) -> Any:
    return importlib.import_module(f"{__package__}.{name}")


# Why a scheduler that is switched off takes nothing.
DISABLED = "it is disabled"

# Also for segments that no scheduler takes.
BY_LIBRARY = AutomaticScheduler("expr_eval", refuse_expr_eval, kind=PartKind.library)

SCHEDULERS: tuple[AutomaticScheduler, ...] = (
    BY_LIBRARY,
    AutomaticScheduler("no_op", refuse_no_op, kind=PartKind.view),
    AutomaticScheduler("reduction", refuse_reduction, (ReductionParameters,)),
    AutomaticScheduler("transpose", refuse_transpose, (PointwiseParameters,)),
    AutomaticScheduler("resize", refuse_resize, (PointwiseParameters,)),
    AutomaticScheduler("pointwise", refuse_pointwise, (PointwiseParameters,)),
    AutomaticScheduler("inner_persistent", refuse_inner_persistent, (ReductionParameters,)),
    AutomaticScheduler("outer_persistent", refuse_outer_persistent, (ReductionParameters,)),
    AutomaticScheduler(
        "inner_outer_persistent", refuse_inner_outer_persistent, (InnerOuterParameters,)
    ),
    AutomaticScheduler("greedy", refuse_greedy, (ScanParameters, ScatterParameters)),
)


NAMES = frozenset(scheduler.name for scheduler in SCHEDULERS)


def scheduler(name: str) -> AutomaticScheduler:
    """The scheduler of this name; KeyError if there is none."""
    return {s.name: s for s in SCHEDULERS}[name]


def closest(facts: Facts, refusals: Sequence[Refusal]) -> Refusal:
    """The most informative refusal: that of the scheduler made for this kind of fusion."""
    by_name = {refusal.scheduler: refusal for refusal in refusals}
    if not facts.summary.signatures:
        return by_name["pointwise"]
    if facts.summary.is_ordered:
        return by_name["greedy"]
    if reduction_refusal(facts.summary) == NORMALIZATION:
        return by_name["inner_persistent"]
    return by_name["reduction"]


def find(facts: Facts, sizes: SizeInfo) -> tuple[AutomaticScheduler | None, list[Refusal]]:
    """The first scheduler that accepts, and the refusals of those asked before it."""
    refusals: list[Refusal] = []
    for candidate in SCHEDULERS:
        refusal = candidate.refuse(facts, sizes)
        if refusal is None:
            return candidate, refusals
        refusals.append(refusal)
    return None, refusals
