"""The executor: from the inputs of a call to its outputs, by a plan.

A plan is straight-line Python (plans/) for all calls of one structure: dtypes, layout classes,
and sizes for which the target's heuristics make the same decisions.  A call tries the existing
plans, beginning with the most recent one; each plan checks whether the call is one of its own.  If
none accepts, a new plan is made: the inputs are bound and checked, and missing kernels are
compiled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from . import fallback
from .analysis.layouts import Layout, dense_layout, layout_of
from .analysis.size_conditions import SizeConditions
from .collection import no_collection
from .compiler import Program, compile_program, compile_scheduled_program, prepare, rough_sizes
from .devices.registry import runtime_of
from .devices.runtime import LoadedKernel
from .devices.switches import change_count, switched_off, watch
from .devices.tensor_memory import is_plain, require_bytes, span_bytes
from .errors import InputError, InternalError, UnsupportedError, expected
from .ir.equal_sizes import representatives
from .ir.fusion import Fusion
from .ir.scalars import Symbol
from .ir.schedule import ScheduledFusion
from .ir.vals import TensorView
from .kernel_cache import KernelCache
from .lower.checks import check_threads
from .ops.binding import Input, bind, plain_number
from .ops.metadata import TensorLike, device_of, filled_in, is_cpu_scalar
from .ops.random_state import with_any_random_state, with_random_state
from .ops.regrouping import regrouped, regrouping
from .plans.plan import Plan, stride_name, write_plan
from .profiling import active_recorder

MOST_PLANS = 256  # per fusion; a plan takes some 10 KB; above this the oldest are dropped


@dataclass(eq=False, slots=True)
class Resolved:
    """A program, and its kernels for the sizes of a call."""

    program: Program
    kernels: tuple[LoadedKernel | None, ...]


class Executor:
    """Runs one fusion; caches plans and programs by what they depend on."""

    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion
        self._prepared: Fusion | None = None
        self._failure: Exception | None = None
        self._manual: ScheduledFusion | None = None
        self.plans: tuple[Plan, ...] = ()
        self.programs: KernelCache[object, Program] = KernelCache(64)
        watch(self)

    @staticmethod
    def of_schedule(scheduled: ScheduledFusion) -> Executor:
        """An executor for a user's schedule."""
        made = Executor(scheduled.fusion)
        made._manual = scheduled
        return made

    def execute(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """Runs the fusion.  InputError if the inputs don't fit the definition."""
        if type(inputs) is not list:
            len(inputs)  # TypeError for an iterator, which a plan would use up
        if self.fusion.random_state:
            inputs = with_random_state(self.fusion, inputs)
        plans = self.plans
        try:
            for plan in plans:
                outputs = plan.run(inputs)
                if outputs is not None:
                    if plan is not plans[0]:
                        self.plans = (plan, *(other for other in plans if other is not plan))
                    return outputs
        except ZeroDivisionError:
            pass  # a size by which others are computed is 0; binding the inputs names it
        given = [plain_number(each) for each in inputs]  # plans take no numbers of numpy
        if any(a is not b for a, b in zip(given, inputs, strict=True)):
            return self.execute(given)
        outputs = self.make_plan(inputs).run(inputs)
        if outputs is None:  # the inputs changed after they were bound: torch decides
            error = InternalError(
                expected("execute", "a plan for the call it was made for", "none")
            )
            fallback.report(error, self.fusion)
            outputs = fallback.run(self.fusion, inputs)
        return outputs

    def make_plan(self, inputs: Sequence[Input]) -> Plan:
        """Compiles everything missing for calls like this one.

        InputError if the inputs don't fit the definition.
        """
        changes, started = change_count(), perf_counter()
        inputs = with_any_random_state(self.fusion, inputs)
        with no_collection():
            plan = self._new_plan(inputs)
        recorder = active_recorder()
        if recorder is not None:
            recorder.compile_seconds += perf_counter() - started
        # It may be for a device that has been switched off since.
        if change_count() == changes:
            self.plans = (plan, *self.plans[: MOST_PLANS - 1])
        return plan

    def forget_plans(self) -> None:
        """Makes the next calls check again where they may run."""
        self.plans = ()

    def prepare(self) -> Fusion:
        """Upfront compilation, done once: the simplified definition.

        Raises the error that makes this impossible, at each call.
        """
        if self._failure is not None:
            raise self._failure
        if self._prepared is None:
            try:
                self._prepared = prepare(self.fusion)
            except Exception as error:
                self._failure = error
                raise
        return self._prepared

    def can_be_prepared(self, inputs: Sequence[Input] | None = None) -> bool:
        """False, with one warning, if a definition can't be simplified: torch runs it.

        `inputs` are for the reproducer script.  Raises under PYFUSER_STRICT.
        """
        try:
            self.prepare()
        except Exception as error:
            fallback.reporter(self.fusion, inputs)(error, self.fusion)
            return False
        return True

    def _new_plan(self, inputs: Sequence[Input]) -> Plan:
        device = device_of(inputs)
        if self._manual is None and not self._has_kernels(device, inputs):
            bind(self.fusion, inputs)
            return self._by_torch(device)
        if any(isinstance(x, torch.Tensor) and _needs_a_copy(x, device) for x in inputs):
            bind(self.fusion, inputs)
            return self._copying(device)
        _require_plain(self.fusion, inputs)
        conditions = SizeConditions()
        resolved = self.resolve(inputs, conditions)
        program, kernels = resolved.program, resolved.kernels
        return write_plan(self.fusion, program, kernels, inputs, conditions)

    def _has_kernels(self, device: torch.device, inputs: Sequence[Input]) -> bool:
        """False if torch has to run the fusion: by request, or because there is no other way."""
        if switched_off(device.type):
            return False
        try:
            runtime_of(device)
        except UnsupportedError as error:
            fallback.report(error, self.fusion)
            return False
        return self.can_be_prepared(inputs)

    def _by_torch(self, device: torch.device) -> Plan:
        """The plan without kernels, for tensors of one device."""
        by_torch = fallback.run if self.fusion.aliases else fallback.run_views

        def run(given: Sequence[Any]) -> list[torch.Tensor] | None:
            return by_torch(self.fusion, given) if _is_on(given, device) else None

        return Plan(run, fits=lambda given: _is_on(given, device))

    def resolve(
        self,
        inputs: Sequence[Input],
        conditions: SizeConditions | None = None,
        layout_sizes: Mapping[str, int] | None = None,
    ) -> Resolved:
        """The program for these inputs (tensors or their metadata), and its kernels.

        Compiles everything missing.  InputError if the inputs don't fit the definition.  Decisions
        from sizes are noted in `conditions`.  With `layout_sizes` (sizes and strides by the names
        of their symbols), only decisions that are wrong for other sizes are noted, in these: the
        layout classes, and whether the kernels keep to the target's limits.
        """
        inputs = with_any_random_state(self.fusion, inputs)
        sizes = bind(self.fusion, inputs).sizes
        noted: Mapping[str, int] = sizes
        if conditions is not None:
            equal = representatives(self.fusion.equal_extents)
            symbols = {name: Symbol.of(name) for name in sizes}
            noted = {
                name: conditions.number(equal.get(symbol, symbol), sizes[name])
                for name, symbol in symbols.items()
            }
        layouts = self._layouts(inputs, layout_sizes or noted, conditions)
        program = self._program(inputs, layouts, sizes, noted)
        report = fallback.reporter(self.fusion, inputs)
        limited = {**strides_of(self.fusion, inputs, conditions), **noted, **(layout_sizes or {})}
        kernels = tuple(
            part.build(noted, program.runtime, report, limited) for part in program.parts
        )
        if self._manual is not None:
            _check_launch(self._manual, kernels, noted)
        return Resolved(program, kernels)

    def start(self, inputs: Sequence[Input]) -> None:
        """Begins compiling the kernels that `resolve` will need for these inputs."""
        sizes = bind(self.fusion, inputs).sizes
        program = self._program(inputs, self._layouts(inputs, sizes, None), sizes, sizes)
        limited = {**strides_of(self.fusion, inputs), **sizes}
        for part in program.parts:
            part.start(sizes, program.runtime, limited)

    def _copying(self, target: torch.device) -> Plan:
        """The plan for calls with inputs that a kernel can't read directly (`_needs_a_copy`)."""
        updated = set(self.fusion.aliases.values())

        def plain(given: Any) -> Any:
            if not isinstance(given, torch.Tensor):
                return given
            is_elsewhere = is_cpu_scalar(given) and target != given.device
            moved = filled_in(given, target) if is_elsewhere else given
            with_memory = moved.clone() if moved._is_zerotensor() else moved
            return with_memory.resolve_conj().resolve_neg()

        def fits(given: Sequence[Any]) -> bool:
            tensors = [x for x in given if isinstance(x, torch.Tensor)]
            return any(_needs_a_copy(x, target) for x in tensors) and _is_on(given, target)

        def run(given: Sequence[Any]) -> list[torch.Tensor] | None:
            if not fits(given):
                return None
            for x in given:  # the plan only checks the copies
                is_copied = isinstance(x, torch.Tensor) and _needs_a_copy(x, target)
                if is_copied and not x._is_zerotensor():
                    each = x.element_size()
                    require_bytes(x, span_bytes(x.shape, x.stride(), each), each)
            copies = [plain(x) for x in given]
            outputs = self.execute(copies)
            own = {id(y): x for x, y in zip(given, copies, strict=True) if x is not y}
            for value, y in zip(self.fusion.inputs, copies, strict=True):
                if value in updated and id(y) in own:
                    own[id(y)].copy_(y)
            return [own.get(id(output), output) for output in outputs]

        return Plan(run, fits=fits)

    def _program(
        self,
        inputs: Sequence[Input],
        layouts: tuple[Layout, ...],
        sizes: Mapping[str, int],
        noted: Mapping[str, int],
    ) -> Program:
        """The program for the layouts and the rough sizes of the inputs.

        The sizes it depends on are read from `noted`.
        """
        runtime = runtime_of(device_of(inputs))
        if self._manual is not None:
            manual = self._manual
            return self.programs.get_or_create(
                runtime, lambda: compile_scheduled_program(manual, runtime)
            )
        prepared = self.prepare()
        rough = rough_sizes(prepared, noted, runtime.target)
        report = fallback.reporter(self.fusion, inputs)
        groups = regrouping(self.fusion, noted)

        def compiled() -> Program:
            definition, simplified = self.fusion, prepared
            if groups is not None:
                try:
                    made = regrouped(self.fusion, groups)
                    definition, simplified = made, prepare(made)
                except Exception as error:
                    report(error, self.fusion)
            return compile_program(definition, simplified, layouts, rough, runtime, sizes, report)

        return self.programs.get_or_create((runtime, layouts, rough, groups), compiled)

    def _layouts(
        self,
        inputs: Sequence[Input],
        noted: Mapping[str, int],
        conditions: SizeConditions | None,
    ) -> tuple[Layout, ...]:
        """The layout classes of the tensors."""
        found = []
        for value, given in zip(self.fusion.inputs, inputs, strict=True):
            if not isinstance(value, TensorView):
                continue
            assert isinstance(given, TensorLike)
            is_dense = given.is_contiguous() and not value.has_expanded_axis
            if is_dense and stride_name(value, 0) not in noted:
                found.append(dense_layout(given.dim()))
                continue
            shape = [
                1
                if axis.is_expanded
                else noted[axis.size.name]
                if isinstance(axis.size, Symbol)
                else size
                for axis, size in zip(value.axes, given.shape, strict=True)
            ]
            names = [stride_name(value, dim) for dim in range(given.dim())]
            stride = [
                noted.get(name, step) for name, step in zip(names, given.stride(), strict=True)
            ]
            if conditions is not None:
                pairs = zip(names, stride, strict=True)
                stride = [conditions.number(Symbol.of(name), step) for name, step in pairs]
            found.append(layout_of(shape, stride))
        return tuple(found)


def _is_on(inputs: Sequence[Any], device: torch.device) -> bool:
    """True for inputs that run on a device."""
    return device_of(inputs) == device


def strides_of(
    fusion: Fusion, inputs: Sequence[Input], conditions: SizeConditions | None = None
) -> dict[str, int]:
    """The strides of the inputs, by the names of their symbols."""
    found = {}
    for value, given in zip(fusion.inputs, inputs, strict=True):
        if isinstance(value, TensorView) and isinstance(given, TensorLike):
            for dim, step in enumerate(given.stride()):
                name = stride_name(value, dim)
                noted = step if conditions is None else conditions.number(Symbol.of(name), step)
                found[name] = noted
    return found


def _check_launch(
    scheduled: ScheduledFusion, kernels: Sequence[LoadedKernel | None], sizes: Mapping[str, int]
) -> None:
    """A user's schedule must keep to the limits of all devices, at these sizes too."""
    if not scheduled.is_by_hand:
        return
    for built in kernels:
        for phase in () if built is None else built.kernel.phases:
            check_threads(scheduled, phase.block, sizes)


def _needs_a_copy(tensor: torch.Tensor, target: torch.device) -> bool:
    """True if a number isn't on the kernel's device, or elements aren't those in memory.

    They are negated or conjugated when they are read, or are zeros without memory.
    """
    is_elsewhere = is_cpu_scalar(tensor) and target != tensor.device
    return is_elsewhere or tensor.is_neg() or tensor.is_conj() or tensor._is_zerotensor()


def _require_plain(fusion: Fusion, inputs: Sequence[Input]) -> None:
    """InputError for a tensor whose elements no kernel can read: a transform's, or a fake one."""
    for given in inputs:
        if isinstance(given, torch.Tensor) and not is_plain(given):
            bind(fusion, inputs)  # what else is wrong, such as a sparse layout, is said first
            keys = torch._C._dispatch_keys(given)
            got = f"a {type(given).__name__} with {keys}"
            raise InputError(expected("execute", "tensors with elements in memory", got))
