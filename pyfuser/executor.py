"""The executor: from the inputs of a call to its outputs, by a plan.

A plan is straight-line Python for one combination of dtypes, sizes and strides: allocate, launch,
free, return.  Its source is generated once for a program (and set of kernels) as a factory; a new
shape only calls the factory with new numbers.  A call with seen metadata makes a key, finds its
plan and runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from . import fallback
from .analysis.layouts import layout_of
from .compiler import Program, compile_program, compile_scheduled_program, prepare
from .devices.registry import BuiltKernel, device
from .devices.switches import change_count, switched_off, watch
from .devices.tensor_memory import require_memory, span_bytes
from .dtypes import FLOATING, to_torch
from .errors import UnsupportedError
from .ir.fusion import Fusion
from .ir.scalars import evaluate
from .ir.schedule import ScheduledFusion
from .ir.vals import TensorView, Val
from .kernel_cache import KernelCache
from .lower.checks import check_threads
from .ops.binding import Binding, Input, bind
from .ops.metadata import TensorLike, device_of, is_cpu_scalar
from .plan_writer import Operand, ProgramWriter, ShapeContext, Writer
from .schedule.acceptance import SizeInfo

Plan = Callable[[Sequence[Any]], list[torch.Tensor]]

MAXIMUM_PLANS = 4096  # a plan is some 2 KB; beyond this the oldest go


@dataclass(eq=False, slots=True)
class Resolved:
    """A program, its kernels for some sizes, and these sizes."""

    program: Program
    kernels: tuple[BuiltKernel | None, ...]
    context: ShapeContext


class Executor:
    """Runs one fusion; plans and programs are kept by what they depend on."""

    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion
        self._prepared: Fusion | None = None
        self._failure: Exception | None = None
        self._manual: ScheduledFusion | None = None
        self.plans: dict[object, Plan] = {}
        self.programs: KernelCache[object, Program] = KernelCache(64)
        self.factories: KernelCache[object, PlanFactory] = KernelCache(256)
        self.resolved: KernelCache[object, Resolved] = KernelCache(MAXIMUM_PLANS)
        """What `resolve` gave, by the metadata of inputs; for those who keep no plans here."""
        self.key, self.execute = _dispatch(fusion, self.plans, self._miss)
        watch(self)

    @staticmethod
    def of_schedule(scheduled: ScheduledFusion) -> Executor:
        """An executor for a user's schedule."""
        made = Executor(scheduled.fusion)
        made._manual = scheduled
        return made

    def _miss(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """A call whose plan isn't there yet, or whose inputs don't fit the definition."""
        return self.make_plan(inputs)(inputs)

    def make_plan(self, inputs: Sequence[Input]) -> Plan:
        """Compiles what is missing and binds it to the sizes of these inputs.

        InputError where the inputs don't fit the definition.
        """
        changes = change_count()
        plan = self._new_plan(inputs)
        key = self.key(*inputs)
        if len(self.plans) >= MAXIMUM_PLANS:
            for old in list(self.plans)[: MAXIMUM_PLANS // 4]:
                self.plans.pop(old, None)
        self.plans[key] = plan
        if change_count() != changes:  # it may be for a device that is switched off by now
            self.plans.pop(key, None)
        return plan

    def forget_plans(self) -> None:
        """Has the next calls ask again where they may run."""
        self.plans.clear()

    def prepare(self) -> Fusion:
        """Upfront compilation, done once: the simplified definition.

        Raises what makes that impossible, at each call.
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
        """False, with one warning, where a definition can't be simplified: torch runs it.

        `inputs` are for the script that reproduces it.  Raises under PYFUSER_STRICT.
        """
        try:
            self.prepare()
        except Exception as error:
            fallback.reporter(self.fusion, inputs)(error, self.fusion)
            return False
        return True

    def _new_plan(self, inputs: Sequence[Input]) -> Plan:
        target = device_of(inputs)
        if self._manual is None and not self._has_kernels(target.type, inputs):
            bind(self.fusion, inputs)
            return self._by_torch
        resolved = self.resolve(inputs)
        if any(isinstance(x, torch.Tensor) and _needs_a_copy(x, target) for x in inputs):
            return self._copying(target)
        factory = self.factories.get_or_create(
            (resolved.program, resolved.kernels),
            lambda: PlanFactory(resolved.program, resolved.kernels),
        )
        return factory.plan(resolved.context)

    def _has_kernels(self, device_type: str, inputs: Sequence[Input]) -> bool:
        """False where torch is to run the fusion: that was asked for, or there is no other way."""
        if switched_off(device_type):
            return False
        try:
            device(device_type)
        except UnsupportedError as error:
            fallback.report(error, self.fusion)
            return False
        return self.can_be_prepared(inputs)

    def _by_torch(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """The plan without kernels."""
        run = fallback.run if self.fusion.aliases else fallback.run_views
        return run(self.fusion, inputs)

    def resolve(self, inputs: Sequence[Input], like: Resolved | None = None) -> Resolved:
        """The program for these inputs (tensors or their metadata), its kernels, and their sizes.

        Compiles what is missing; or, given what was resolved for inputs of the same layouts, takes
        its kernels where those that the heuristics would choose aren't there: all kernels are right
        for all sizes.  InputError where the inputs don't fit the definition.
        """
        binding, sizes, program = self._bound(inputs, None if like is None else like.program)
        target = program.device
        if like is None:
            report = fallback.reporter(self.fusion, inputs)
            kernels = tuple(part.build(sizes, target, report) for part in program.parts)
        else:
            pairs = zip(program.parts, like.kernels, strict=True)
            kernels = tuple(part.compiled(sizes, target) or known for part, known in pairs)
        if self._manual is not None:
            _check_launch(self._manual, kernels, sizes)
        bindings = [None if built is None else built.bind(sizes) for built in kernels]
        scalars = {s.name: v for s, v in binding.scalars.items()}
        return Resolved(program, kernels, ShapeContext(sizes, scalars, bindings))

    def start(self, inputs: Sequence[Input]) -> None:
        """Begins with the kernels that `resolve` will want for these inputs."""
        _, sizes, program = self._bound(inputs)
        for part in program.parts:
            part.start(sizes, program.device)

    def _bound(
        self, inputs: Sequence[Input], program: Program | None = None
    ) -> tuple[Binding, dict[str, int], Program]:
        """The inputs bound, the sizes and strides that kernels read, and the program (or its own).

        InputError where the inputs don't fit the definition.
        """
        binding = bind(self.fusion, inputs)
        sizes = dict(binding.sizes)
        program = program or self._program(inputs, sizes)
        _add_strides(program.fusion, inputs, sizes)
        return binding, sizes, program

    def _copying(self, target: torch.device) -> Plan:
        """For inputs that a kernel can't read where they are (`_needs_a_copy`)."""
        updated = set(self.fusion.aliases.values())

        def plain(given: Any) -> Any:
            if not isinstance(given, torch.Tensor):
                return given
            moved = given.to(target) if is_cpu_scalar(given) else given
            return moved.resolve_conj().resolve_neg()

        def run(given: Sequence[Any]) -> list[torch.Tensor]:
            for x in given:  # the plan looks at the copies only
                if isinstance(x, torch.Tensor) and _needs_a_copy(x, target):
                    each = x.element_size()
                    require_memory(x, span_bytes(x.shape, x.stride(), each), each)
            copies = [plain(x) for x in given]
            outputs = self.execute(copies)
            own = {id(y): x for x, y in zip(given, copies, strict=True) if x is not y}
            for value, y in zip(self.fusion.inputs, copies, strict=True):
                if value in updated and id(y) in own:
                    own[id(y)].copy_(y)
            return [own.get(id(output), output) for output in outputs]

        return run

    def _program(self, inputs: Sequence[Input], sizes: dict[str, int]) -> Program:
        kind = device_of(inputs).type
        if self._manual is not None:
            manual = self._manual
            return self.programs.get_or_create(
                kind, lambda: compile_scheduled_program(manual, kind)
            )
        layouts = tuple(layout_of(x.shape, x.stride()) for x in inputs if isinstance(x, TensorLike))
        prepared = self.prepare()
        coarse = _coarse_sizes(sizes, device(kind).machine)
        report = fallback.reporter(self.fusion, inputs)
        return self.programs.get_or_create(
            (kind, layouts, coarse),
            lambda: compile_program(self.fusion, prepared, layouts, coarse, kind, sizes, report),
        )


def _coarse_sizes(sizes: Mapping[str, int], machine: Any) -> SizeInfo:
    """Sizes as far as segmentation looks at them: below cores, short, usual, and huge ones."""
    short, usual, huge = 1 << 5, 1 << 10, 1 << 18

    def coarse(size: int) -> int:
        if size < machine.cores:
            return size
        if size < huge:
            return short if size <= short else usual
        return 1 << size.bit_length() - 1

    known = {name: coarse(size) for name, size in sizes.items()}
    return SizeInfo.of(known, machine.cores, machine.l2_bytes)


def _check_launch(
    scheduled: ScheduledFusion, kernels: Sequence[BuiltKernel | None], sizes: Mapping[str, int]
) -> None:
    """A user's schedule must keep to the limits of all devices (D3), at these sizes too."""
    if scheduled.scheduler != "user":
        return
    for built in kernels:
        for phase in () if built is None else built.kernel.phases:
            check_threads(scheduled, phase.block, sizes)


def _needs_a_copy(tensor: torch.Tensor, target: torch.device) -> bool:
    """True where a negation or conjugation is pending, or a number isn't on the kernel's device."""
    is_elsewhere = is_cpu_scalar(tensor) and target.type != tensor.device.type
    return is_elsewhere or tensor.is_neg() or tensor.is_conj()


_DISPATCH = """
def make(plans, miss):
    def key({names}):
        return ({key})
    def execute(inputs):
        try:
            {unpack}
            plan = plans.get(({key}))
        except {errors}:
            plan = None
        return miss(inputs) if plan is None else plan(inputs)
    return key, execute
"""


def _dispatch(
    fusion: Fusion, plans: dict[object, Plan], miss: Plan
) -> tuple[Callable[..., object], Plan]:
    """(key of the inputs, execute): generated, since they run in every call.

    The key has what a plan depends on.  Strides of a contiguous tensor follow from its shape.
    """
    names = [f"x{i}" for i in range(len(fusion.inputs))]
    parts = []
    for name, value in zip(names, fusion.inputs, strict=True):
        if isinstance(value, TensorView):
            strides = f"{name}.is_contiguous() or {name}.stride()"
            parts += [f"{name}.shape", strides, f"{name}.dtype", f"{name}.device"]
            parts.append(f"{name}.is_neg()")
        elif value.dtype in FLOATING:
            parts.append(f"type({name})")
        else:
            parts += [f"type({name})", name]
    source = _DISPATCH.format(
        names=", ".join(names),
        key="".join(part + ", " for part in parts),
        unpack="".join(name + ", " for name in names) + "= inputs" if names else "() = inputs",
        errors="(TypeError, ValueError, AttributeError, RuntimeError)",
    )
    namespace: dict[str, Any] = {}
    exec(compile(source, "<pyfuser dispatch>", "exec"), namespace)  # names and numbers only
    made: tuple[Callable[..., object], Plan] = namespace["make"](plans, miss)
    return made


def _add_strides(fusion: Fusion, inputs: Sequence[Input], sizes: dict[str, int]) -> None:
    """The strides of the inputs, by the names kernels have for them."""
    for value, given in zip(fusion.inputs, inputs, strict=True):
        if isinstance(given, TensorLike):
            for d, stride in enumerate(given.stride()):
                sizes[f"T{value.name}_stride_{d}"] = stride


def _span_bytes(value: TensorView, bytes_each: int, context: ShapeContext) -> int:
    """The bytes that an input spans, from its first element to its last."""
    shape = [evaluate(axis.size, context.sizes) for axis in value.axes]
    stride = [context.sizes[f"T{value.name}_stride_{d}"] for d in range(len(shape))]
    return span_bytes(shape, stride, bytes_each)


class PlanFactory:
    """The generated source for one program and one set of kernels."""

    def __init__(self, program: Program, kernels: tuple[BuiltKernel | None, ...]) -> None:
        self.writer = Writer()
        fusion = program.fusion
        local: dict[Val, Operand] = {v: Operand.of(f"x{i}") for i, v in enumerate(fusion.inputs)}
        if local:
            self.writer.line(f"{', '.join(x.tensor() for x in local.values())}, = inputs")
        self.writer.memory_check(program.device, self._needs(fusion))
        ProgramWriter(self.writer, program, kernels, local).write()
        self._write_results(fusion, local)
        self.source, self.make = self.writer.build("plan(inputs)", "plan")

    def plan(self, context: ShapeContext) -> Plan:
        """The plan for these sizes."""
        made: Plan = self.make(*[value(context) for value in self.writer.shape_values.values()])
        return made

    def _needs(self, fusion: Fusion) -> list[tuple[str, str, int]]:
        """The inputs that are tensors, and the memory that each must have."""
        needs = []
        for position, value in enumerate(fusion.inputs):
            if isinstance(value, TensorView):
                bytes_each = to_torch(value.dtype).itemsize
                span = partial(_span_bytes, value, bytes_each)
                text = self.writer.shape_value(f"span{position}", span)
                needs.append((f"x{position}", text, bytes_each))
        return needs

    def _write_results(self, fusion: Fusion, local: dict[Val, Operand]) -> None:
        updated = set(fusion.aliases.values())
        names = {value: operand.tensor() for value, operand in local.items()}
        sources = dict(names)
        for output in fusion.aliases:
            if output in updated:  # two inputs that swap: what is copied must be as it was
                sources[output] = f"{names[output]}_before"
                self.writer.line(f"{sources[output]} = {names[output]}.clone()")
        for output, target in fusion.aliases.items():
            self.writer.line(f"{names[target]}.copy_({sources[output]})")
        results = [
            names[fusion.aliases.get(output, output)]
            for output in fusion.outputs
            if output not in fusion.hidden_outputs
        ]
        self.writer.line(f"return [{', '.join(results)}]")
