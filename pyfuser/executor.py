"""The executor: from the inputs of a call to its outputs, by a plan.

A plan is straight-line Python for one combination of dtypes, sizes and strides: allocate, launch,
free, return.  Its source is generated once for a program (and set of kernels) as a factory; a new
shape only calls the factory with new numbers.  A call with seen metadata makes a key, finds its
plan and runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .analysis.layouts import layout_of
from .compiler import Program, compile_program, compile_scheduled_program, prepare
from .devices.registry import BuiltKernel, device
from .dtypes import FLOATING
from .errors import InputError, expected
from .ir.fusion import Fusion
from .ir.schedule import ScheduledFusion
from .ir.vals import TensorView, Val
from .kernel_cache import KernelCache
from .lower.checks import check_threads
from .ops.binding import Binding, Input, bind
from .ops.metadata import TensorLike
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
        self._manual: ScheduledFusion | None = None
        self.plans: dict[object, Plan] = {}
        self.programs: KernelCache[object, Program] = KernelCache(64)
        self.factories: KernelCache[object, PlanFactory] = KernelCache(256)
        self.resolved: KernelCache[object, Resolved] = KernelCache(MAXIMUM_PLANS)
        """What `resolve` gave, by the metadata of inputs; for those who keep no plans here."""
        self.key, self.execute = _dispatch(fusion, self.plans, self._miss)

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
        resolved = self.resolve(inputs)
        key = self.key(*inputs)
        if any(isinstance(x, torch.Tensor) and _is_lazy(x) for x in inputs):
            return self._resolving()
        factory = self.factories.get_or_create(
            (resolved.program, resolved.kernels),
            lambda: PlanFactory(resolved.program, resolved.kernels),
        )
        plan = factory.plan(resolved.context)
        if len(self.plans) >= MAXIMUM_PLANS:
            for old in list(self.plans)[: MAXIMUM_PLANS // 4]:
                self.plans.pop(old, None)
        self.plans[key] = plan
        return plan

    def resolve(self, inputs: Sequence[Input], like: Resolved | None = None) -> Resolved:
        """The program for these inputs (tensors or their metadata), its kernels, and their sizes.

        Compiles what is missing; or, given what was resolved for inputs of the same layouts, takes
        its kernels where those that the heuristics would choose aren't there: all kernels are right
        for all sizes.  InputError where the inputs don't fit the definition.
        """
        binding, sizes, program = self._bound(inputs, None if like is None else like.program)
        target = program.device
        if like is None:
            kernels = tuple(part.build(sizes, target) for part in program.parts)
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

    def _resolving(self) -> Plan:
        """For inputs with a pending negation or conjugation: computes those first."""
        updated = set(self.fusion.aliases.values())

        def run(given: Sequence[Any]) -> list[torch.Tensor]:
            plain = [
                x.resolve_conj().resolve_neg() if isinstance(x, torch.Tensor) else x for x in given
            ]
            outputs = self.execute(plain)
            own = {id(y): x for x, y in zip(given, plain, strict=True) if x is not y}
            for value, y in zip(self.fusion.inputs, plain, strict=True):
                if value in updated and id(y) in own:
                    own[id(y)].copy_(y)
            return [own.get(id(output), output) for output in outputs]

        return run

    def _program(self, inputs: Sequence[Input], sizes: dict[str, int]) -> Program:
        tensors = [x for x in inputs if isinstance(x, TensorLike)]
        kind = next((x.device.type for x in tensors if x.dim()), None)
        if kind is None:
            kind = (tensors[0].device if tensors else torch.get_default_device()).type
        stray = next((x.device for x in tensors if x.device.type != kind), None)
        if stray is not None:
            raise InputError(expected("execute", f"all tensors on {kind}", f"one on {stray}"))
        if self._manual is not None:
            manual = self._manual
            return self.programs.get_or_create(
                kind, lambda: compile_scheduled_program(manual, kind)
            )
        layouts = tuple(layout_of(x.shape, x.stride()) for x in tensors)
        if self._prepared is None:
            self._prepared = prepare(self.fusion)
        prepared = self._prepared
        coarse = _coarse_sizes(sizes, device(kind).machine)
        return self.programs.get_or_create(
            (kind, layouts, coarse),
            lambda: compile_program(self.fusion, prepared, layouts, coarse, kind, sizes),
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


def _is_lazy(tensor: torch.Tensor) -> bool:
    return tensor.is_neg() or tensor.is_conj()


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


class PlanFactory:
    """The generated source for one program and one set of kernels."""

    def __init__(self, program: Program, kernels: tuple[BuiltKernel | None, ...]) -> None:
        self.writer = Writer()
        fusion = program.fusion
        local: dict[Val, Operand] = {v: Operand.of(f"x{i}") for i, v in enumerate(fusion.inputs)}
        if local:
            self.writer.line(f"{', '.join(x.tensor() for x in local.values())}, = inputs")
        ProgramWriter(self.writer, program, kernels, local).write()
        self._write_results(fusion, local)
        self.source, self.make = self.writer.build("plan(inputs)", "plan")

    def plan(self, context: ShapeContext) -> Plan:
        """The plan for these sizes."""
        made: Plan = self.make(*[value(context) for value in self.writer.shape_values.values()])
        return made

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
