"""Plans as source text: what a call of a program does, one statement after the other.

`Writer` collects lines, constants, and the values that depend on a shape; `ProgramWriter` writes
the statements of one program (allocate, launch, free) into it.  The executor makes a function of
one program from them, the torch.compile backend one of a whole graph.  Values of a shape are names
that the factory `make(...)` is called with, so that a new shape needs no new source; or, where the
shape will never change (`Writer.literals`), the numbers themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import fallback
from .compiler import Part, Program
from .devices.registry import Binding, BuiltKernel, Device
from .dtypes import FLOATING, DataType, to_torch
from .errors import InternalError, expected
from .ir.domains import IterDomain
from .ir.exprs import Expr
from .ir.fusion import Fusion
from .ir.scalars import ONE, IntExpr, evaluate
from .ir.vals import Scalar, TensorView, Val
from .ops.binding import convert_number, evaluate_scalar


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


@dataclass(eq=False)
class Writer:
    """The source of a factory `make(shape values) -> function` and the constants it reads.

    `shape` is what the values of a shape are computed from; when it is given, those that are
    numbers stand in the text themselves.
    """

    shape: Any = None
    body: list[str] = field(default_factory=list)
    shape_values: dict[str, Callable[[Any], object]] = field(default_factory=dict)
    constants: dict[str, object] = field(default_factory=dict)

    def line(self, text: str) -> None:
        """Adds a statement."""
        self.body.append(text)

    def shape_value(self, name: str, value: Callable[[Any], object]) -> str:
        """The name of a value that comes anew with every shape, or its text."""
        if self.shape is None:
            self.shape_values[name] = value
            return name
        known = value(self.shape)
        if _is_literal(known):
            return repr(known)
        self.constants[name] = known
        return name

    def constant(self, name: str, value: object) -> str:
        """The name of a value that never changes."""
        self.constants[name] = value
        return name

    def memory_check(self, target: Device, needs: Sequence[tuple[str, str, int]]) -> None:
        """Makes sure that tensors have their memory before an address of theirs is taken.

        `needs`: the name of a tensor, the text of the bytes it spans, the bytes of an element.
        """
        if needs:
            arguments = ", ".join(f"{name}, {span}, {each}" for name, span, each in needs)
            self.constants["require_memory"] = target.require_memory
            self.line(f"require_memory({arguments})")

    def build(self, function: str, title: str) -> tuple[str, Callable[..., Any]]:
        """(source, the factory): `function` is the head of the function, such as `plan(inputs)`."""
        names = ", ".join(self.shape_values)
        lines = "\n".join(f"        {line}" for line in self.body) or "        pass"
        name = function.partition("(")[0]
        source = f"def make({names}):\n    def {function}:\n{lines}\n    return {name}\n"
        namespace = dict(self.constants)
        exec(compile(source, f"<pyfuser {title}>", "exec"), namespace)  # names and numbers only
        factory: Callable[..., Any] = namespace["make"]  # type: ignore[assignment]
        return source, factory


def _is_literal(value: object) -> bool:
    """True for what reads back from its text as itself."""
    if isinstance(value, tuple):
        return all(_is_literal(entry) for entry in value)
    return value is None or type(value) in (bool, int)


@dataclass(frozen=True, slots=True)
class Operand:
    """How the source names a tensor, and its address.

    Either may have to be made: a view that only kernels read is never a tensor.  `described` is an
    expression that makes the tensor where it stands, and nothing elsewhere.
    """

    tensor: Callable[[], str]
    pointer: Callable[[], str]
    described: Callable[[], str]

    @staticmethod
    def of(name: str) -> Operand:
        """A tensor that is there under this name."""
        return Operand(lambda: name, lambda: f"{name}.data_ptr()", lambda: name)


class ProgramWriter:
    """Writes the statements of one program.

    `prefix` begins every name it makes; `context` finds the program's ShapeContext in the shape;
    `local` has the operands of the program's inputs and, when it is done, of its outputs;
    `given` has the operands of outputs that are written where they are, instead of into new memory,
    `names` are for outputs that are to have a certain one.  Without `gives_views` an output never
    shares memory with an input.
    """

    def __init__(
        self,
        writer: Writer,
        program: Program,
        kernels: tuple[BuiltKernel | None, ...],
        local: dict[Val, Operand],
        prefix: str = "",
        context: Callable[[Any], ShapeContext] = lambda shape: shape,
        given: Mapping[Val, Operand] | None = None,
        names: Mapping[Val, str] | None = None,
        gives_views: bool = True,
    ) -> None:
        self.writer, self.program, self.kernels = writer, program, kernels
        self.local, self.prefix, self.context = local, prefix, context
        self.given, self.names = given or {}, names or {}
        self.gives_views = gives_views
        self.dynamic = _dynamic_scalars(program.fusion)

    def write(self) -> None:
        """Everything up to where the outputs are there."""
        self.writer.constants |= {
            "empty": self.program.device.empty_strided,
            "scratch": self.program.device.scratch,
        }
        self._write_scalars()
        last_use = self._last_uses()
        for number, (part, built) in enumerate(zip(self.program.parts, self.kernels, strict=True)):
            if built is None:
                self._write_fallback(number, part)
            else:
                self._write_launch(number, part, built)
            dead = [
                self.local[t].tensor()
                for t, at in last_use.items()
                if at == number and t in self.local
            ]
            if dead:
                self.writer.line(f"del {', '.join(dead)}")

    def _name(self, tensor: TensorView) -> str:
        return self.names.get(tensor) or f"{self.prefix}t{tensor.name}"

    def _shape_value(self, name: str, value: Callable[[ShapeContext], object]) -> str:
        return self.writer.shape_value(
            f"{self.prefix}{name}", lambda shape: value(self.context(shape))
        )

    def _constant(self, name: str, value: object) -> str:
        return self.writer.constant(f"{self.prefix}{name}", value)

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

    def _write_scalars(self) -> None:
        for expr in self.program.fusion.exprs:
            output = expr.output
            if not isinstance(output, Scalar) or output.name not in self.dynamic:
                continue
            name = f"{self.prefix}c{output.name}"
            made = self._constant(f"expr{output.name}", expr)
            self.writer.constants["evaluate_scalar"] = evaluate_scalar
            operands = ", ".join(self._known(v) for v in expr.inputs)
            self.writer.line(f"{name} = evaluate_scalar({made}, [{operands}])")
            self.local[output] = Operand.of(name)

    def _write_launch(self, number: int, part: Part, built: BuiltKernel) -> None:
        by_name = {v.name: v for v in (*self.program.fusion.tensors, *part.segment.outputs)}
        for output in part.segment.outputs:
            self._write_allocation(output)

        def bound(name: str, value: Callable[[Binding], object]) -> str:
            def of(context: ShapeContext) -> object:
                binding = context.bindings[number]
                assert binding is not None
                return value(binding)

            return self._shape_value(f"{name}{number}", of)

        function = bound("launch", lambda b: b.function)
        arguments = [bound("threads", lambda b: b.leading[0])]
        arguments += [
            self.local[by_name[t.buffer.tensor.name]].pointer()
            for t in built.kernel.tensors
            if t.buffer.tensor is not None
        ]
        size = bound("bytes", lambda b: b.scratch_bytes)
        buffer, address = f"{self.prefix}s{number}", f"{self.prefix}p{number}"
        if size == "0":
            address = "0"
        else:
            needed = not size.isdigit()  # else it is known here that some memory is needed
            self.writer.line(f"{buffer} = scratch({size})" + f" if {size} else None" * needed)
            self.writer.line(f"{address} = {buffer}.data_ptr()" + f" if {size} else 0" * needed)
        for i in range(len(built.kernel.scratch) + 1):
            offset = bound(f"offset{i}_", _item("scratch_offsets", i))
            arguments.append(address if "0" in (address, offset) else f"{address} + {offset}")
        for i in range(2 + len(built.kernel.symbols)):
            arguments.append(bound(f"n{i}_", _item("trailing", i)))
        for parameter in built.kernel.scalars:
            arguments.append(self._scalar_argument(number, parameter.scalar))
        self._write_call(number, part, built, f"{function}({', '.join(arguments)})")
        if size != "0":
            self.writer.line(f"del {buffer}")

    def _write_call(self, number: int, part: Part, built: BuiltKernel, call: str) -> None:
        """The launch; what torch raises, if the kernel refuses the values of its inputs.

        Outputs that share memory with an input are never those of such a kernel or an earlier one.
        """
        if not built.kernel.may_refuse:
            self.writer.line(call)
            return
        fusion = self._constant(f"fusion{number}", part.fusion)
        self.writer.constants["refused"] = fallback.refused
        inputs = ", ".join(self._described(value) for value in part.segment.inputs)
        self.writer.line(f"if {call}: refused({fusion}, [{inputs}])")

    def _scalar_argument(self, number: int, scalar: Scalar) -> str:
        if scalar.name not in self.dynamic:
            return self._shape_value(
                f"scalar{number}_{scalar.name}", lambda c: _slot_of(c.scalar(scalar), scalar.dtype)
            )
        own = next(v for v in self.local if isinstance(v, Scalar) and v.name == scalar.name)
        self.writer.constants["slot"] = _slot_of
        dtype = self._constant(f"dtype{scalar.name}", scalar.dtype)
        return f"slot({self.local[own].tensor()}, {dtype})"

    def _write_allocation(self, tensor: TensorView) -> None:
        if tensor in self.given:
            self.local[tensor] = self.given[tensor]
            return
        name = self._name(tensor)
        kind = to_torch(tensor.dtype)
        dtype = self.writer.constant(str(kind).replace(".", "_"), kind)
        # What only other parts read has one element along an expanded axis.
        is_output = tensor in self.program.fusion.outputs
        stored = {a: a.size if is_output else a.extent for a in tensor.axes}
        shape = self._shape_value(
            f"shape{tensor.name}",
            lambda c: tuple(evaluate(stored[a], c.sizes) for a in tensor.axes),
        )
        stride = self._shape_value(
            f"stride{tensor.name}", lambda c: _dense_strides(tensor, stored, c.sizes)
        )
        self.writer.line(f"{name} = empty({shape}, {stride}, {dtype})")
        self.local[tensor] = Operand.of(name)

    def _write_fallback(self, number: int, part: Part) -> None:
        fusion = self._constant(f"fusion{number}", part.fusion)
        inputs = [self._known(value) for value in part.segment.inputs]
        outputs = [self._name(t) for t in part.segment.outputs]
        joined = "".join(f"{name}, " for name in outputs)
        # a view of an input that is updated afterwards would show the update
        updated = set(self.program.fusion.aliases.values())
        is_free = part.segment.scheduler == "no_op" and updated.isdisjoint(part.segment.inputs)
        runs_views = is_free and self.gives_views
        run = self._constant(f"run{number}", fallback.run_views if runs_views else fallback.run)
        self.writer.line(f"{joined}= {run}({fusion}, [{', '.join(inputs)}])")
        for tensor, name in zip(part.segment.outputs, outputs, strict=True):
            self.local[tensor] = Operand.of(name)

    def _described(self, value: Val) -> str:
        """An expression of a value that the host reads only now and then."""
        if value in self.local:
            return self.local[value].described() + self._expansion(value)
        return self._known(value)

    def _expansion(self, value: Val) -> str:
        """What makes of memory with one element along an expanded axis what the fusion defines."""
        is_whole = value in self.program.fusion.inputs or value in self.program.fusion.outputs
        if is_whole or not isinstance(value, TensorView):
            return ""
        if all(axis.size is axis.extent for axis in value.axes):
            return ""
        sizes = self._shape_value(
            f"sizes{value.name}", lambda c: tuple(evaluate(a.size, c.sizes) for a in value.axes)
        )
        return f".expand({sizes})"

    def _known(self, value: Val) -> str:
        """An expression of a value that the host or torch reads."""
        if value in self.local:
            return self.local[value].tensor() + self._expansion(value)
        assert isinstance(value, Scalar)
        return self._shape_value(f"scalar_{value.name}", lambda c: c.scalar(value))


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


def _slot_of(value: Any, dtype: DataType) -> int | float:
    """A number as a kernel takes it: floats as doubles, everything else as integers."""
    number = convert_number(value, dtype)
    if dtype.name in ("Double", "Float", "Half", "BFloat16"):
        return float(number)  # type: ignore[arg-type]
    return int(number)  # type: ignore[arg-type]
