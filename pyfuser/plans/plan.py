"""Plans: one fusion's calls as straight-line Python, for all sizes that lead to the same decisions.

    def plan(inputs):
        x0, x1, = inputs
        if not (x0.dtype is float32 and x0.is_contiguous() and ...): return None
        i0, i1, = x0.shape
        if not (8 <= i1 and ...): return None
        if require_memory(x0, ...): return None
        t2 = empty((i0, i1), (i1, 1), float32)
        launch(...)
        return [t2]

A plan first checks whether a call is one of those it was made for; if not, it returns None before
any side effect.  It checks everything that the choice of its kernels was based on: dtypes, devices,
layout classes, and the conditions on sizes that `SizeConditions` noted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..analysis.size_conditions import SizeConditions
from ..compiler import Program
from ..devices.runtime import LoadedKernel
from ..dtypes import FLOATING, INTEGERS, DataType, integers_of, to_torch
from ..ir.equal_sizes import representatives
from ..ir.fusion import Fusion
from ..ir.scalars import ONE, Integer, IntExpr, Symbol, product
from ..ir.vals import Scalar, TensorView, Val
from ..ops.binding import Input
from ..ops.metadata import TensorLike, TensorMetadata
from .clock import clock_for
from .program_writer import PlanValue, ProgramWriter
from .text import Sizes, Writer, condition_texts, span_text

Run = Callable[[Sequence[Any]], "list[torch.Tensor] | None"]


@dataclass(eq=False, slots=True)
class Plan:
    """`run` returns the outputs, or None if the plan wasn't made for such a call."""

    run: Run
    source: str = ""
    fits: Callable[[Sequence[Any]], bool] = lambda inputs: False
    """True for a call that `run` accepts."""
    example: Sequence[Input] = ()
    """The inputs it was made for, tensors as metadata."""


def stride_name(value: TensorView, dim: int) -> str:
    """The name of the symbol of an input's stride."""
    return f"T{value.name}_stride_{dim}"


def write_plan(
    fusion: Fusion,
    program: Program,
    kernels: tuple[LoadedKernel | None, ...],
    inputs: Sequence[Input],
    conditions: SizeConditions,
) -> Plan:
    """The plan for calls like the one with these inputs.

    `program.fusion` has the inputs of `fusion`, in their order.
    """
    return _PlanWriter(fusion, program, kernels, inputs, conditions).write()


class _PlanWriter:
    """Writes one plan."""

    def __init__(
        self,
        fusion: Fusion,
        program: Program,
        kernels: tuple[LoadedKernel | None, ...],
        inputs: Sequence[Input],
        conditions: SizeConditions,
    ) -> None:
        self.fusion, self.program, self.kernels = fusion, program, kernels
        self.inputs, self.conditions = inputs, conditions
        self.writer = Writer()
        self.symbols: dict[str, str] = {}
        self.shapes: dict[tuple[str, ...], str] = {}
        self.tensors: dict[str, tuple[TensorView, list[str], list[str] | None]] = {}
        self.read = {
            symbol.name
            for built in kernels
            if built is not None
            for expr in (*built.kernel.symbols, *built.kernel.joined.values())
            for symbol in expr.symbols
        }
        """The names of the sizes and strides that kernels read."""
        self.equal = representatives(fusion.equal_extents)
        self.in_memory: set[str] = set()
        self.checks: list[str] = []
        if any(built is not None and built.kernel.has_an_order_of_threads for built in kernels):
            demanded = torch.are_deterministic_algorithms_enabled
            self.checks.append(f"not {self.writer.constant('is_deterministic', demanded)}()")

    def write(self) -> Plan:
        """The plan."""
        names = [f"x{i}" for i in range(len(self.inputs))]
        if names:
            self.writer.line("try:")
            self.writer.line(f"    {', '.join(names)}, = inputs")
            self._write_kinds()
            self.writer.line(
                "except (TypeError, ValueError, AttributeError, RuntimeError): return None"
            )
        else:
            self.writer.line("if inputs: return None")
        definition = self.program.fusion
        local: dict[Val, PlanValue] = {
            value: PlanValue.of(name) for value, name in zip(definition.inputs, names, strict=True)
        }
        program = ProgramWriter(
            self.writer, self.program, self.kernels, local, self.symbols, in_memory=self.in_memory
        )
        program.write_scalars(self.fusion)
        self._write_sizes(program.sizes)
        conditions = list(self.writer.body)
        self.writer.memory_check(self.program.runtime, self._memory(program.sizes), "None")
        clock = clock_for(self.program, self.writer)
        program.write(clock)
        if clock is not None:
            clock.finish()
        self._write_results(definition, local)
        source, run = self.writer.build("plan(inputs)", "plan")

        def fits(given: Sequence[Any]) -> bool:
            is_negated = " or ".join(f"{name}.is_neg()" for name in self.tensors) or "False"
            question = Writer([*conditions, f"return not ({is_negated})"], self.writer.constants)
            _, asked = question.build("fits(inputs)", "conditions of a plan")
            return bool(asked(given))

        example = [TensorMetadata.of(x) if isinstance(x, TensorLike) else x for x in self.inputs]
        return Plan(run, source, fits, example)

    # -- the checks on a call

    def _write_kinds(self) -> None:
        """Unpacks and compares everything except sizes, inside `try`."""
        for position, (value, given) in enumerate(
            zip(self.fusion.inputs, self.inputs, strict=True)
        ):
            if isinstance(value, TensorView):
                assert not isinstance(given, (bool, int, float, complex))
                self._write_tensor(f"x{position}", value, given)
            else:
                assert isinstance(value, Scalar)
                if isinstance(given, TensorLike):
                    self._write_seed(f"x{position}", value, given)
                else:
                    self._write_scalar(f"x{position}", value, given)
        self.writer.require(self.checks, "    ")
        self.checks = []

    def _write_tensor(self, name: str, value: TensorView, given: Any) -> None:
        checks = self._kind(name, value, given)
        is_contiguous = given.is_contiguous()
        checks.append(f"{'' if is_contiguous else 'not '}{name}.is_contiguous()")
        self.checks += checks
        shape = self._write_shape(name, value)
        strides = [f"{name}_stride_{d}" for d in range(len(value.axes))]
        # A hand-written schedule is for any layout, so its kernel reads strides that others know.
        names = [stride_name(value, dim) for dim in range(len(value.axes))]
        if not is_contiguous or value.has_expanded_axis or not self.read.isdisjoint(names):
            self.writer.line(f"    {', '.join(strides)}, = {name}.stride()")
            self.symbols.update(zip(names, strides, strict=True))
        self.tensors[name] = (value, shape, None if is_contiguous else strides)

    def _kind(self, name: str, value: Val, given: Any) -> list[str]:
        """The checks of a tensor's dtype and device."""
        device = given.device
        is_there = f"{name}.is_cpu"
        if device.type != "cpu":
            is_there = f"{name}.device == {self.writer.constant('device', device)}"
        return [f"{name}.dtype is {self.writer.dtype(to_torch(value.dtype))}", is_there]

    def _write_shape(self, name: str, value: TensorView) -> list[str]:
        """Unpacks the sizes, inside `try`: a tensor of another rank isn't for this plan.

        If all sizes are known by then, the shapes are compared.
        """
        if not value.axes:
            self.checks.append(f"not {name}.dim()")
            return []
        known = [self._known(axis.size) for axis in value.axes]
        first = self.shapes.get(tuple(known))
        if first is not None:
            self.checks.append(f"{name}.shape == {first}")
            return known
        places = [f"{name}_{d}" for d in range(len(value.axes))]
        self.writer.line(f"    {', '.join(places)}, = {name}_shape = {name}.shape")
        for axis, place, text in zip(value.axes, places, known, strict=True):
            if not text and isinstance(axis.size, Symbol):
                text = self.symbols.setdefault(self._one_name(axis.size), place)
                self.symbols[axis.size.name] = text
            if text not in ("", place):
                self.checks.append(f"{place} == {text}")
        shape = [
            self._known(axis.size) or place for axis, place in zip(value.axes, places, strict=True)
        ]
        self.shapes[tuple(shape)] = f"{name}_shape"
        return shape

    def _one_name(self, symbol: Symbol) -> str:
        """The name of the first among the symbols that the definition makes equal."""
        equal = self.equal.get(symbol, symbol)
        return equal.name if isinstance(equal, Symbol) else symbol.name

    def _known(self, extent: IntExpr) -> str:
        """The text of a size that is already known; otherwise empty."""
        if isinstance(extent, Integer):
            return str(extent.value)
        if isinstance(extent, Symbol):
            found = self.symbols.get(extent.name) or self.symbols.get(self._one_name(extent), "")
            if found:
                self.symbols[extent.name] = found
            return found
        return ""

    def _memory(self, sizes: Sizes) -> list[tuple[str, str, int]]:
        """The memory that the tensors must have; see `Writer.memory_check`."""
        needs = []
        for name, (value, shape, stride) in self.tensors.items():
            each = to_torch(value.dtype).itemsize
            if stride is None:
                span = sizes.text(product(axis.size for axis in value.axes) * each)
            else:
                span = span_text(shape, stride, each)
            needs.append((name, span, each))
        return needs

    def _write_seed(self, name: str, value: Scalar, given: Any) -> None:
        """A seed that lies in memory."""
        self.in_memory.add(name)
        self.checks += [*self._kind(name, value, given), f"not {name}.dim()"]

    def _write_scalar(self, name: str, value: Scalar, given: Input) -> None:
        kind = type(given)
        self.checks.append(f"type({name}) is {self.writer.constant(kind.__name__, kind)}")
        if kind is int and value.dtype not in FLOATING:
            numbers = integers_of(value.dtype if value.dtype in INTEGERS else DataType.Int)
            self.checks.append(f"{numbers.start} <= {name} < {numbers.stop}")
        if isinstance(value.extent, Symbol):
            known = self.symbols.setdefault(value.extent.name, name)
            self.checks.append(f"{name} == {known}" if known != name else f"{name} >= 0")

    def _write_sizes(self, sizes: Sizes) -> None:
        """Writes the conditions on sizes that decisions were based on."""
        found = list(self.checks)
        for value in self.fusion.inputs:
            if isinstance(value, TensorView):
                found += self._composite_sizes(value, sizes)
        for a, b in self.fusion.equal_extents:
            if _is_known(a, sizes) and _is_known(b, sizes):
                found.append(f"{sizes.text(a)} == {sizes.text(b)}")
        found += condition_texts(self.conditions, sizes.text)
        self.writer.require(text for text in found if not _is_trivial(text))

    def _composite_sizes(self, value: TensorView, sizes: Sizes) -> list[str]:
        position = self.fusion.inputs.index(value)
        return [
            f"x{position}_{d} == {sizes.text(axis.size)}"
            for d, axis in enumerate(value.axes)
            if axis.size is not ONE
            and not isinstance(axis.size, (Symbol, Integer))
            and _is_known(axis.size, sizes)
        ]

    # -- results

    def _write_results(self, fusion: Fusion, local: Mapping[Val, PlanValue]) -> None:
        updated = set(fusion.aliases.values())
        names = {value: operand.tensor() for value, operand in local.items()}
        sources = dict(names)
        for output in fusion.aliases:
            if output in updated:  # two inputs may swap: their old values must be copied
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


def _is_known(expr: IntExpr, sizes: Sizes) -> bool:
    """True if all sizes of an expression are those of inputs or the values of scalars."""
    return all(symbol.name in sizes.symbols for symbol in expr.symbols)


def _is_trivial(condition: str) -> bool:
    """True for an equality of a name with itself."""
    left, operator, right = condition.partition(" == ")
    return bool(operator) and left == right
