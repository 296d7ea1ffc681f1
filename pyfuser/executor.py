"""The executor: from the inputs of a call to its outputs, by a plan.

A plan is straight-line Python for one combination of dtypes, sizes and strides: allocate, launch,
free, return.  Its source is generated once for a program (and set of kernels) as a factory; a new
shape only calls the factory with new numbers.  A call with seen metadata makes a key, finds its
plan and runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from . import fallback
from .analysis.layouts import layout_of
from .compiler import Part, Program, compile_program, compile_scheduled_program, prepare
from .devices.registry import Binding, BuiltKernel, device
from .dtypes import FLOATING, to_torch
from .errors import InputError, InternalError, expected
from .ir.domains import IterDomain
from .ir.exprs import Expr
from .ir.fusion import Fusion
from .ir.scalars import ONE, IntExpr, evaluate
from .ir.schedule import ScheduledFusion
from .ir.vals import Scalar, TensorView, Val
from .kernel_cache import KernelCache
from .lower.checks import check_threads
from .ops.binding import Input, bind, convert_number, evaluate_scalar
from .schedule.acceptance import SizeInfo

Plan = Callable[[Sequence[Any]], list[torch.Tensor]]

MAXIMUM_PLANS = 4096  # a plan is some 2 KB; beyond this the oldest go


@dataclass(eq=False)
class Writer:
    """The source of a plan's factory and the values it is called with."""

    body: list[str] = field(default_factory=list)
    shape_values: dict[str, Callable[[ShapeContext], object]] = field(default_factory=dict)
    constants: dict[str, object] = field(default_factory=dict)

    def shape_value(self, name: str, value: Callable[[ShapeContext], object]) -> str:
        """A name whose value comes anew with every shape."""
        self.shape_values[name] = value
        return name


@dataclass(eq=False, slots=True)
class ShapeContext:
    """What the values of one shape are computed from: sizes, scalars by name, bound kernels."""

    sizes: Mapping[str, int]
    scalars: Mapping[int, Any]
    bindings: list[Binding | None]

    def scalar(self, scalar: Scalar) -> Any:
        """A scalar that is known when the shapes are."""
        if scalar.name in self.scalars:
            return self.scalars[scalar.name]
        if scalar.constant is not None:
            return scalar.constant
        if scalar.extent is not None:
            return evaluate(scalar.extent, self.sizes)
        raise InternalError(expected("plan", "a scalar that is known", scalar))


class Executor:
    """Runs one fusion; plans and programs are kept by what they depend on."""

    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion
        self._prepared: Fusion | None = None
        self._manual: ScheduledFusion | None = None
        self.plans: dict[object, Plan] = {}
        self.programs: KernelCache[object, Program] = KernelCache(64)
        self.factories: KernelCache[object, PlanFactory] = KernelCache(256)
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
        binding = bind(self.fusion, inputs)
        key = self.key(*inputs)
        sizes = dict(binding.sizes)
        program = self._program(inputs, sizes)
        _add_strides(program.fusion, inputs, sizes)
        if any(isinstance(x, torch.Tensor) and _is_lazy(x) for x in inputs):
            return self._resolving()
        kernels = tuple(part.build(sizes, program.device) for part in program.parts)
        if self._manual is not None:
            _check_launch(self._manual, kernels, sizes)
        factory = self.factories.get_or_create(
            (program, kernels), lambda: PlanFactory(program, kernels)
        )
        plan = factory.plan(sizes, binding.scalars)
        if len(self.plans) >= MAXIMUM_PLANS:
            for old in list(self.plans)[: MAXIMUM_PLANS // 4]:
                self.plans.pop(old, None)
        self.plans[key] = plan
        return plan

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
        tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
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
            (kind, layouts, coarse), lambda: compile_program(prepared, layouts, coarse, kind)
        )


def _coarse_sizes(sizes: Mapping[str, int], machine: Any) -> SizeInfo:
    """Sizes as far as segmentation looks at them: 0, 1, fewer than cores, usual, and huge ones."""
    usual, huge = 1 << 10, 1 << 18
    coarse = {
        name: size if size < machine.cores else usual if size < huge else 1 << size.bit_length() - 1
        for name, size in sizes.items()
    }
    return SizeInfo.of(coarse, machine.cores, machine.l2_bytes)


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
        if isinstance(given, torch.Tensor):
            for d, stride in enumerate(given.stride()):
                sizes[f"T{value.name}_stride_{d}"] = stride


class PlanFactory:
    """The generated source for one program and one set of kernels."""

    def __init__(self, program: Program, kernels: tuple[BuiltKernel | None, ...]) -> None:
        self.program, self.kernels = program, kernels
        self.writer = Writer()
        self.dynamic = _dynamic_scalars(program.fusion)
        self._write()
        names = ", ".join(self.writer.shape_values)
        lines = "\n".join(f"        {line}" for line in self.writer.body)
        self.source = f"def make({names}):\n    def plan(inputs):\n{lines}\n    return plan\n"
        namespace = dict(self.writer.constants)
        exec(compile(self.source, "<pyfuser plan>", "exec"), namespace)
        self.make: Callable[..., Plan] = namespace["make"]  # type: ignore[assignment]

    # -- the values of one shape

    def plan(self, sizes: Mapping[str, int], scalars: Mapping[Scalar, Any]) -> Plan:
        """The plan for these sizes."""
        bindings = [None if built is None else built.bind(sizes) for built in self.kernels]
        context = ShapeContext(sizes, {s.name: v for s, v in scalars.items()}, bindings)
        return self.make(*[value(context) for value in self.writer.shape_values.values()])

    # -- the source

    def _write(self) -> None:
        w, fusion = self.writer, self.program.fusion
        w.constants |= {
            "empty": self.program.device.empty_strided,
            "scratch": self.program.device.scratch,
        }
        local = {value: f"x{i}" for i, value in enumerate(fusion.inputs)}
        if local:
            w.body.append(f"{', '.join(local.values())}, = inputs")
        self._write_scalars(local)
        last_use = self._last_uses()
        for number, (part, built) in enumerate(zip(self.program.parts, self.kernels, strict=True)):
            if built is None:
                self._write_fallback(number, part, local)
            else:
                self._write_launch(number, part, built, local)
            dead = [local[t] for t, at in last_use.items() if at == number and t in local]
            if dead:
                w.body.append(f"del {', '.join(dead)}")
        self._write_results(local)

    def _last_uses(self) -> dict[Val, int]:
        """The number of the last part that reads each tensor between parts."""
        outputs = set(self.program.fusion.outputs)
        last: dict[Val, int] = {}
        for number, part in enumerate(self.program.parts):
            for tensor in (*part.segment.outputs, *part.segment.inputs):
                is_input = tensor in self.program.fusion.inputs
                if isinstance(tensor, TensorView) and not is_input and tensor not in outputs:
                    last[tensor] = number
        return last

    def _write_scalars(self, local: dict[Val, str]) -> None:
        w = self.writer
        for expr in self.program.fusion.exprs:
            output = expr.output
            if not isinstance(output, Scalar) or output.name not in self.dynamic:
                continue
            name = f"c{output.name}"
            w.constants[f"expr{output.name}"] = expr
            w.constants["evaluate_scalar"] = evaluate_scalar
            operands = ", ".join(self._scalar_operand(v, local) for v in expr.inputs)
            w.body.append(f"{name} = evaluate_scalar(expr{output.name}, [{operands}])")
            local[output] = name

    def _scalar_operand(self, value: Val, local: dict[Val, str]) -> str:
        if value in local:
            return local[value]
        return self._known(value, local)

    def _write_launch(
        self, number: int, part: Part, built: BuiltKernel, local: dict[Val, str]
    ) -> None:
        w = self.writer
        by_name = {v.name: v for v in (*self.program.fusion.tensors, *part.segment.outputs)}
        for output in part.segment.outputs:
            self._write_allocation(output, local)

        def bound(name: str, value: Callable[[Binding], object]) -> str:
            def of(context: ShapeContext) -> object:
                binding = context.bindings[number]
                assert binding is not None
                return value(binding)

            return w.shape_value(f"{name}{number}", of)

        function = bound("launch", lambda b: b.function)
        arguments = [bound("threads", lambda b: b.leading[0])]
        arguments += [
            f"{local[by_name[t.buffer.tensor.name]]}.data_ptr()"
            for t in built.kernel.tensors
            if t.buffer.tensor is not None
        ]
        size = bound("bytes", lambda b: b.scratch_bytes)
        w.body.append(f"s{number} = scratch({size}) if {size} else None")
        w.body.append(f"p{number} = s{number}.data_ptr() if {size} else 0")
        for i in range(len(built.kernel.scratch) + 1):
            offset = bound(f"offset{i}_", _item("scratch_offsets", i))
            arguments.append(f"p{number} + {offset}")
        for i in range(2 + len(built.kernel.symbols)):
            arguments.append(bound(f"n{i}_", _item("trailing", i)))
        for parameter in built.kernel.scalars:
            arguments.append(self._scalar_argument(number, parameter.scalar, local))
        w.body.append(f"{function}({', '.join(arguments)})")

    def _scalar_argument(self, number: int, scalar: Scalar, local: dict[Val, str]) -> str:
        if scalar.name not in self.dynamic:
            return self.writer.shape_value(
                f"scalar{number}_{scalar.name}", lambda c: _slot_of(c.scalar(scalar), scalar.dtype)
            )
        own = next(v for v in local if isinstance(v, Scalar) and v.name == scalar.name)
        self.writer.constants["slot"] = _slot_of
        self.writer.constants[f"dtype{scalar.name}"] = scalar.dtype
        return f"slot({local[own]}, dtype{scalar.name})"

    def _write_allocation(self, tensor: TensorView, local: dict[Val, str]) -> None:
        name = f"t{tensor.name}"
        self.writer.constants[f"dtype_of_{name}"] = to_torch(tensor.dtype)
        # What only other parts read has one element along an expanded axis.
        is_output = tensor in self.program.fusion.outputs
        stored = {a: a.size if is_output else a.extent for a in tensor.axes}
        shape = self.writer.shape_value(
            f"shape{tensor.name}",
            lambda c: tuple(evaluate(stored[a], c.sizes) for a in tensor.axes),
        )
        stride = self.writer.shape_value(
            f"stride{tensor.name}", lambda c: _dense_strides(tensor, stored, c.sizes)
        )
        self.writer.body.append(f"{name} = empty({shape}, {stride}, dtype_of_{name})")
        local[tensor] = name

    def _write_fallback(self, number: int, part: Part, local: dict[Val, str]) -> None:
        w = self.writer
        w.constants[f"fusion{number}"] = part.fusion
        inputs = []
        for value in part.segment.inputs:
            inputs.append(self._known(value, local))
        outputs = [f"t{t.name}" for t in part.segment.outputs]
        joined = "".join(f"{name}, " for name in outputs)
        # a view of an input that is updated afterwards would show the update
        updated = set(self.program.fusion.aliases.values())
        runs_views = part.segment.scheduler == "no_op" and updated.isdisjoint(part.segment.inputs)
        w.constants[f"run{number}"] = fallback.run_views if runs_views else fallback.run
        w.body.append(f"{joined}= run{number}(fusion{number}, [{', '.join(inputs)}])")
        local.update(zip(part.segment.outputs, outputs, strict=True))

    def _known(self, value: Val, local: dict[Val, str]) -> str:
        """The name of a value that a part computed by torch reads."""
        if value in local:
            return local[value]
        assert isinstance(value, Scalar)
        return self.writer.shape_value(f"scalar_{value.name}", lambda c: c.scalar(value))

    def _write_results(self, local: dict[Val, str]) -> None:
        w, fusion = self.writer, self.program.fusion
        updated = set(fusion.aliases.values())
        sources = dict(local)
        for output in fusion.aliases:
            if output in updated:  # two inputs that swap: what is copied must be as it was
                sources[output] = f"{local[output]}_before"
                w.body.append(f"{sources[output]} = {local[output]}.clone()")
        for output, target in fusion.aliases.items():
            w.body.append(f"{local[target]}.copy_({sources[output]})")
        results = [
            local[fusion.aliases.get(output, output)]
            for output in fusion.outputs
            if output not in fusion.hidden_outputs
        ]
        w.body.append(f"return [{', '.join(results)}]")


def _item(field_name: str, position: int) -> Callable[[Binding], object]:
    """One entry of a field of a binding."""
    return lambda binding: getattr(binding, field_name)[position]


def _dense_strides(
    tensor: TensorView, extents: Mapping[IterDomain, IntExpr], sizes: Mapping[str, int]
) -> tuple[int, ...]:
    """The strides of an output: dense in the order of its allocation domain."""
    strides = {}
    running = 1
    for axis in reversed(tensor.domain.allocated):
        strides[axis] = running
        size = evaluate(extents[axis], sizes) if extents[axis] is not ONE else 1
        running *= max(size, 1)
    return tuple(strides[axis] for axis in tensor.axes)


def _dynamic_scalars(fusion: Fusion) -> set[int]:
    """The names of scalars that change from call to call: floating inputs and what follows."""
    dynamic = {v.name for v in fusion.inputs if isinstance(v, Scalar) and v.dtype in FLOATING}
    for expr in fusion.exprs:
        if isinstance(expr.output, Scalar) and _reads(expr, dynamic):
            dynamic.add(expr.output.name)
    return dynamic


def _reads(expr: Expr, names: set[int]) -> bool:
    return any(isinstance(v, Scalar) and v.name in names for v in expr.inputs)


def _slot_of(value: Any, dtype: Any) -> int | float:
    """A number as a kernel takes it: floats as doubles, everything else as integers."""
    number = convert_number(value, dtype)
    if dtype.name in ("Double", "Float", "Half", "BFloat16"):
        return float(number)  # type: ignore[arg-type]
    return int(number)  # type: ignore[arg-type]
