"""Plans as source text: the work of a call of a program, one statement after the other.

`ProgramWriter` writes the statements of one program (allocate, launch, free).  The executor makes a
function of one program from them, the torch.compile backend one of a whole graph.  A plan is
written once per structure: values that depend on the sizes of a call are straight-line arithmetic
in it; if sizes never change, the text contains the numbers themselves (text.py).
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

import torch

from .. import fallback
from ..compiler import Program
from ..devices.runtime import LoadedKernel
from ..dtypes import to_torch
from ..errors import InternalError, expected
from ..ir.domains import IterDomain
from ..ir.exprs import PointwiseOp, ReshapeOp, ScatterOp
from ..ir.fusion import Fusion
from ..ir.scalars import ONE, IntExpr, Symbol
from ..ir.strides import strides_in_order
from ..ir.vals import Scalar, TensorView, Val
from ..ops.binding import convert_number, evaluate_scalar
from ..parts import LibraryPart, Part, ViewPart
from .launches import Launch
from .library_calls import LibraryCalls
from .library_parts import TorchPart
from .shared_memory import MOST_BYTES, Lifetime, places
from .text import Sizes, Writer, is_number, tuple_text


@dataclass(frozen=True, slots=True)
class PlanValue:
    """How the source of a plan names a tensor and its address, or a number.

    Both may be made lazily: a view that only kernels read is never a tensor.  `described` is an
    expression that makes the tensor in place, and nothing elsewhere.
    """

    tensor: Callable[[], str]
    pointer: Callable[[], str]
    described: Callable[[], str]

    @staticmethod
    def of(name: str) -> PlanValue:
        """A tensor that exists under this name."""
        return PlanValue(lambda: name, lambda: f"{name}.data_ptr()", lambda: name)


class Clock(Protocol):
    """Writes statements around each part; see clock.py."""

    def start(self) -> None:
        """Before a part."""

    def stop(
        self, program: ProgramWriter, number: int, part: Part, built: LoadedKernel | None
    ) -> None:
        """After a part."""


class ProgramWriter:
    """Writes the statements of one program.

    `symbols` are the texts of the sizes and strides that the program reads, by name.  `prefix`
    begins every name that it makes.  `local` has the values of the program's inputs and, at the
    end, of its outputs.  `given` has the values of outputs that are written in place instead of
    into new memory, `names` the names that some outputs must have.  Without `gives_views` an output
    never shares memory with an input.  `in_memory` are the texts of scalars that are tensors.
    """

    def __init__(
        self,
        writer: Writer,
        program: Program,
        kernels: tuple[LoadedKernel | None, ...],
        local: dict[Val, PlanValue],
        symbols: Mapping[str, str],
        prefix: str = "",
        given: Mapping[Val, PlanValue] | None = None,
        names: Mapping[Val, str] | None = None,
        gives_views: bool = True,
        in_memory: Collection[str] = (),
    ) -> None:
        self.writer, self.program, self.kernels = writer, program, kernels
        self.local, self.prefix = local, prefix
        self.sizes = Sizes(writer, dict(symbols))
        self.given, self.names = given or {}, names or {}
        self.gives_views, self.in_memory = gives_views, in_memory
        self.library = LibraryCalls(writer)
        self.tensors: dict[int, TensorView] = {}
        self.scalars: dict[int, str] = {}
        self.places: dict[TensorView, int] = {}
        """The offsets of tensors in the common memory of small ones."""

    def write(self, clock: Clock | None = None) -> None:
        """Writes everything until the outputs exist; `write_scalars` comes first."""
        last_use = self._last_uses()
        self._share_memory(last_use)
        for number, (part, built) in enumerate(zip(self.program.parts, self.kernels, strict=True)):
            if all(map(self.has, part.segment.outputs)):  # they show what is in their memory
                del self.local[part.segment.inputs[0]]
                continue
            if clock is not None:
                clock.start()
            if built is not None:
                self._write_launch(number, part, built)
            else:
                self._write_by_torch(part)
            if clock is not None:
                clock.stop(self, number, part, built)
            dead = [
                self.local[t].tensor()
                for t, at in last_use.items()
                if at == number and t in self.local and t not in self.places
            ]
            if dead:
                self.writer.line(f"del {', '.join(dead)}")

    def _name(self, tensor: TensorView) -> str:
        return self.names.get(tensor) or f"{self.prefix}t{tensor.name}"

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

    def _share_memory(self, last_use: Mapping[Val, int]) -> None:
        """Allocates the common memory of the small tensors that only kernels use."""
        lifetimes: dict[TensorView, Lifetime] = {}
        others: set[Val] = set(self.given)
        for part, built in zip(self.program.parts, self.kernels, strict=True):
            if built is None:
                others.update(part.segment.inputs, part.segment.outputs)
            for expr in part.segment.exprs:
                if isinstance(expr, ScatterOp):  # its result may be in the memory of its base
                    others.update((expr.base, *expr.outputs))
        for number, part in enumerate(self.program.parts):
            for tensor in part.segment.outputs:
                size = None
                if tensor in last_use and tensor not in others:
                    size = self._known_bytes(tensor)
                if size is not None and size <= MOST_BYTES:
                    lifetimes[tensor] = Lifetime(size, number, last_use[tensor])
        if len(lifetimes) < 2:
            return
        found, size = places(lifetimes)
        self.places |= found
        name = f"{self.prefix}memory"
        self.library.allocate(self.program.runtime, name, f"({size},)", "(1,)", torch.uint8)
        self.writer.line(f"{name}_begin = {name}.data_ptr()")

    def _known_bytes(self, tensor: TensorView) -> int | None:
        """The bytes of a tensor between parts, if its sizes never change."""
        texts = [self.sizes.text(axis.extent) for axis in tensor.axes]
        is_known = all(map(is_number, texts))
        return prod(map(int, texts)) * to_torch(tensor.dtype).itemsize if is_known else None

    # -- scalars

    def write_scalars(self, definition: Fusion) -> None:
        """Registers the scalars of the definition, given and computed, that sizes stand for."""
        for value in self.program.fusion.inputs:
            if isinstance(value, Scalar):
                self.scalars[value.name] = self.local[value].tensor()
                self._note_size(value)
        for expr in definition.exprs:
            if isinstance(expr.output, Scalar):
                self._note_size(expr.output)

    def _note_size(self, scalar: Scalar) -> None:
        """Notes the size that a scalar stands for."""
        if isinstance(scalar.extent, Symbol) and scalar.extent.name not in self.sizes.symbols:
            self.sizes.symbols[scalar.extent.name] = self.scalar(scalar)

    def scalar(self, scalar: Scalar) -> str:
        """The text of a scalar; a computed one is computed on first use."""
        found = self.scalars.get(scalar.name)
        if found is None:
            found = self.scalars[scalar.name] = self._scalar(scalar)
        return found

    def _scalar(self, scalar: Scalar) -> str:
        if scalar.constant is not None:
            constant = scalar.constant
            is_plain = type(constant) in (bool, int)
            name = f"{self.prefix}scalar{scalar.name}"
            return repr(constant) if is_plain else self.writer.constant(name, constant)
        extent = scalar.extent
        if extent is not None and all(s.name in self.sizes.symbols for s in extent.symbols):
            return self.sizes.text(extent)
        expr = scalar.expr
        if not isinstance(expr, PointwiseOp):
            raise InternalError(expected("plan", "a scalar that is known", scalar))
        name = f"{self.prefix}c{scalar.name}"
        operands = [self.scalar(v) for v in expr.inputs if isinstance(v, Scalar)]
        known = [n for n in map(self.known_number, operands) if n is not None]
        if len(known) == len(operands):
            with contextlib.suppress(ArithmeticError, RuntimeError):  # a call will raise it
                return self.writer.constant(name, evaluate_scalar(expr, known))
        if expr.op == "cast":
            convert = self.writer.constant("convert_number", convert_number)
            dtype = self.writer.constant(f"dtype_{scalar.dtype.name}", scalar.dtype)
            self.writer.line(f"{name} = {convert}({operands[0]}, {dtype})")
            return name
        made = self.writer.constant(f"{self.prefix}expr{scalar.name}", expr)
        function = self.writer.constant("evaluate_scalar", evaluate_scalar)
        self.writer.line(f"{name} = {function}({made}, [{', '.join(operands)}])")
        return name

    def known_number(self, text: str) -> bool | int | float | None:
        """The number that a text is in every call, or None."""
        known = self.writer.constants.get(text, _literal(text))
        return known if isinstance(known, (bool, int, float)) else None

    # -- launches

    def _write_launch(self, number: int, part: Part, built: LoadedKernel) -> None:
        self.tensors = {t.name: t for t in (*self.program.fusion.tensors, *part.segment.outputs)}
        for value, own in zip(part.segment.inputs, part.fusion.inputs, strict=True):
            if isinstance(value, TensorView):
                self.tensors[own.name] = value
        for output in part.segment.outputs:
            shown = self._shown_as(output)
            if isinstance(output.expr, ScatterOp):
                self._write_base(number, part, output, output.expr)
            elif shown is not None:
                self._write_shown(output, shown)
            else:
                self._write_allocation(output)
        launch = Launch(self, number, part, built)
        built.write_launch(launch)
        launch.finish()

    def _write_base(self, number: int, part: Part, output: TensorView, expr: ScatterOp) -> None:
        """The memory of a scatter's result, which holds the base; its own if it ends here."""
        base = expr.base
        if output not in self.given and self._ends_as(number, part, output, base):
            name = self._name(output)
            self.writer.line(f"{name} = {self.local[base].tensor()}")
            self.local[output] = PlanValue.of(name)
            return
        self._write_allocation(output)
        made = self.local[output]
        if base in self.local and made.pointer() == self.local[base].pointer():
            return
        self.writer.line(f"{made.tensor()}.copy_({self.plain_tensor(base)})")

    def _ends_as(self, number: int, part: Part, output: TensorView, base: TensorView) -> bool:
        """True if a result may have the memory of its base, which nothing else reads.

        What torch made of the base, such as a view, may be its memory; kernels have new memory.
        """
        fusion = self.program.fusion
        if base in fusion.inputs or base in fusion.outputs or not self.is_stored_whole(base):
            return False
        if self._last_uses().get(base) != number:
            return False
        makers = [p for p in self.program.parts if base in p.segment.outputs]
        pairs = zip(self.program.parts, self.kernels, strict=True)
        if any(made is None and base in p.segment.inputs for p, made in pairs):
            return False
        readers = [expr for expr in part.segment.exprs if base in expr.inputs]
        is_own = bool(makers) and not isinstance(makers[0], ViewPart) and len(readers) == 1
        is_read = len(readers) == 1 and base in readers[0].aligned_inputs
        return is_own and not is_read and base.domain.memory_order == output.domain.memory_order

    def _write_allocation(self, tensor: TensorView) -> None:
        if tensor in self.given:
            self.local[tensor] = self.given[tensor]
            return
        if tensor in self.places:
            self.local[tensor] = self._in_shared_memory(tensor)
            return
        name = self._name(tensor)
        # A tensor that only other parts read has one element along an expanded axis.
        is_output = tensor in self.program.fusion.outputs
        stored = {a: a.size if is_output else a.extent for a in tensor.axes}
        shape = tuple_text([self.sizes.text(stored[a]) for a in tensor.axes])
        stride = tuple_text(self._dense_strides(tensor, stored))
        dtype = to_torch(tensor.dtype)
        self.library.allocate(self.program.runtime, name, shape, stride, dtype)
        self.local[tensor] = PlanValue.of(name)

    def _in_shared_memory(self, tensor: TensorView) -> PlanValue:
        """A tensor in the common memory of small ones."""
        begin = self.places[tensor]
        name, dtype = f"{self.prefix}memory", to_torch(tensor.dtype)
        extents = {axis: axis.extent for axis in tensor.axes}
        shape = tuple_text([self.sizes.text(axis.extent) for axis in tensor.axes])
        stride = tuple_text(self._dense_strides(tensor, extents))
        offset = begin // dtype.itemsize

        def view() -> str:
            memory = f"{name}.view({self.writer.dtype(dtype)})"
            return self.library.view(memory, shape, stride, str(offset))

        pointer = f"{name}_begin + {begin}" if begin else f"{name}_begin"
        return PlanValue(view, lambda: pointer, view)

    def _shown_as(self, tensor: TensorView) -> TensorView | None:
        """The tensor that shows all of this one in another shape, if nothing else reads it."""
        readers = [part for part in self.program.parts if tensor in part.segment.inputs]
        outputs = readers[0].segment.outputs if len(readers) == 1 else []
        if len(outputs) != 1 or tensor in self.program.fusion.outputs:
            return None
        (shown,) = outputs
        expr = shown.expr
        if not isinstance(readers[0], ViewPart) or not isinstance(expr, ReshapeOp):
            return None
        is_plain = not tensor.domain.allocation and not shown.domain.allocation
        is_whole = self.is_stored_whole(tensor) and self.is_stored_whole(shown)
        return shown if is_plain and is_whole and expr.inputs == (tensor,) else None

    def _write_shown(self, tensor: TensorView, shown: TensorView) -> None:
        """Allocates what shows a tensor, whose elements are written there."""
        self._write_allocation(shown)
        memory = self.local[shown]
        shape = tuple_text([self.sizes.text(axis.size) for axis in tensor.axes])

        def view() -> str:
            return f"{memory.tensor()}.view({shape})"

        self.local[tensor] = PlanValue(view, memory.pointer, view)

    def _dense_strides(
        self, tensor: TensorView, extents: Mapping[IterDomain, IntExpr]
    ) -> list[str]:
        """The texts of the strides of an output: dense in the order of its allocation domain."""
        axes = tensor.axes
        sizes = ["1" if extents[axis] is ONE else self.sizes.text(extents[axis]) for axis in axes]
        order = tensor.domain.memory_order
        return strides_in_order(sizes, order, "1", self._stride_times)

    def _stride_times(self, stride: str, size: str) -> str:
        """The product of two texts, in which a size of 0 counts as 1."""
        if size in ("0", "1"):
            return stride
        at_least_one = size if is_number(size) else self.writer.number(f"{size} or 1")
        if stride == "1":
            return at_least_one
        if is_number(stride) and is_number(at_least_one):
            return str(int(stride) * int(at_least_one))
        return self.writer.number(f"{stride} * {at_least_one}")

    # -- parts that torch runs

    def _write_by_torch(self, part: Part) -> None:
        """Views, and parts without a kernel: library calls, or else the evaluator."""
        torch_part = TorchPart(self, self.library, part.segment)
        is_written = False
        if isinstance(part, ViewPart):
            is_written = torch_part.write_views(self.gives_views and self._may_share(part))
        elif isinstance(part, LibraryPart):
            is_written = torch_part.write_calls()
        if not is_written:
            self._write_evaluation(part)

    def _may_share(self, part: Part) -> bool:
        """True if the outputs of a view part may share memory with what they are views of.

        An output shows no update of an input and no other output: it may be the only view of a
        tensor that isn't an output.
        """
        fusion, viewed = self.program.fusion, part.segment.inputs
        if any(value in fusion.aliases.values() for value in viewed):
            return False
        made = [value for value in viewed if value not in fusion.inputs]
        others = [p for p in self.program.parts if isinstance(p, ViewPart) and p is not part]
        is_only = not made or len(part.segment.outputs) == 1
        is_only &= not any(value in other.segment.inputs for value in made for other in others)
        return is_only and not any(value in fusion.outputs for value in made)

    @property
    def device(self) -> torch.device:
        """The device of the program's tensors."""
        return self.program.runtime.device

    def allocate(self, tensor: TensorView) -> str:
        """Allocates the runtime's memory for a tensor; returns its name."""
        self._write_allocation(tensor)
        return self.local[tensor].tensor()

    def is_stored_whole(self, tensor: TensorView) -> bool:
        """False if memory has one element along an axis that has more."""
        is_output = tensor in self.program.fusion.outputs
        return is_output or all(axis.size is axis.extent for axis in tensor.axes)

    def strides(self, tensor: TensorView) -> str:
        """The strides of a tensor, if it is stored whole."""
        return tuple_text(self._dense_strides(tensor, {axis: axis.size for axis in tensor.axes}))

    def put(self, tensor: TensorView, text: str) -> str:
        """Assigns an expression to a tensor's name, which it returns."""
        name = self._name(tensor)
        self.writer.line(f"{name} = {text}")
        self.local[tensor] = PlanValue.of(name)
        return name

    def has(self, tensor: TensorView) -> bool:
        """True if a tensor exists."""
        return tensor in self.local

    def drop(self, tensors: Sequence[TensorView]) -> None:
        """Deletes tensors that are no longer read."""
        if tensors:
            self.writer.line(f"del {', '.join(self.local.pop(t).tensor() for t in tensors)}")

    def plain_tensor(self, value: Val) -> str:
        """An expression for a tensor, as torch sees it; autograd doesn't see a plan."""
        text = self._known(value)
        return f"{text}.detach()" if value in self.program.fusion.inputs else text

    def _write_evaluation(self, part: Part) -> None:
        """A part that the evaluator computes: it has no kernel and no library calls."""
        fusion = self.writer.constant(f"{self.prefix}fusion", part.fusion)
        inputs = [self._known(value) for value in part.segment.inputs]
        outputs = [self._name(t) for t in part.segment.outputs]
        joined = "".join(f"{name}, " for name in outputs)
        run = self.writer.constant("run", fallback.run_part)
        self.writer.line(f"{joined}= {run}({fusion}, [{', '.join(inputs)}])")
        for tensor, name in zip(part.segment.outputs, outputs, strict=True):
            if not self.is_stored_whole(tensor):
                self.writer.line(f"{name} = {self._stored(tensor, name)}")
            self.local[tensor] = PlanValue.of(name)

    def _stored(self, tensor: TensorView, whole: str) -> str:
        """A whole tensor as other parts read it: with one element along an expanded axis."""
        picks = ", ".join(":" if axis.size is axis.extent else ":1" for axis in tensor.axes)
        strides = self._dense_strides(tensor, {axis: axis.extent for axis in tensor.axes})
        return self.library.copied(f"{whole}[{picks}]", tuple_text(strides))

    def described(self, value: Val) -> str:
        """An expression for a value that the host reads only occasionally."""
        if value in self.local:
            return self.local[value].described() + self._expansion(value)
        return self._known(value)

    def _expansion(self, value: Val) -> str:
        """The expression that expands memory with one element along an expanded axis."""
        is_whole = value in self.program.fusion.inputs or value in self.program.fusion.outputs
        if is_whole or not isinstance(value, TensorView):
            return ""
        if all(axis.size is axis.extent for axis in value.axes):
            return ""
        return f".expand({tuple_text([self.sizes.text(axis.size) for axis in value.axes])})"

    def _known(self, value: Val) -> str:
        """An expression for a value that the host or torch reads."""
        if isinstance(value, Scalar):
            return self.scalar(value)
        return self.local[value].tensor() + self._expansion(value)


def _literal(text: str) -> bool | int | float | None:
    """The number that a text is, or None."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return None
    return value if isinstance(value, (bool, int, float)) else None
