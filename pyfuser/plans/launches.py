"""Launches of kernels as source text: their arguments, scratch memory, and what they may refuse.

A device's runtime writes the statements (`LoadedKernel.write_launch`); `Launch` tells it how the
plan names tensors, addresses, sizes and numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .. import fallback
from ..devices.runtime import LoadedKernel
from ..dtypes import FLOATING, DataType, fits_64_bits
from ..ir.kernel import ScalarParameter, TensorParameter
from ..ir.scalars import IntExpr
from ..ops.binding import convert_number
from ..parts import Part

if TYPE_CHECKING:
    from .program_writer import ProgramWriter


class Launch:
    """Writes the launch of one kernel; see `devices.runtime.LaunchWriter`."""

    def __init__(
        self, program: ProgramWriter, number: int, part: Part, built: LoadedKernel
    ) -> None:
        self.program, self.number, self.part, self.built = program, number, part, built
        self.scratch_names: list[str] = []

    def line(self, text: str) -> None:
        """Adds a statement."""
        self.program.writer.line(text)

    def name(self, name: str) -> str:
        """A name that no other launch has."""
        return f"{self.program.prefix}{name}{self.number}"

    def constant(self, name: str, value: object) -> str:
        """The name of a value that never changes."""
        return self.program.writer.constant(self.name(name), value)

    def size(self, expr: IntExpr) -> str:
        """The text of a size, a stride, or an expression of them."""
        return self.program.sizes.text(expr)

    def address(self, tensor: TensorParameter) -> str:
        """The text of the address of a tensor's first element."""
        view = tensor.buffer.tensor
        assert view is not None, tensor.buffer.name
        return self.program.local[self.program.tensors[view.name]].pointer()

    def number_in_memory(self, parameter: ScalarParameter) -> str:
        """An expression for the tensor that holds a scalar; empty if the host knows its number."""
        text = self.program.scalar(parameter.scalar)
        return text if text in self.program.in_memory else ""

    def scalar(self, parameter: ScalarParameter) -> str:
        """The text of a scalar as a Python int or float of the parameter's dtype."""
        if in_memory := self.number_in_memory(parameter):
            return f"{in_memory}.item()"
        text = self.program.scalar(parameter.scalar)
        dtype = parameter.scalar.dtype
        writer = self.program.writer
        known = self.program.known_number(text)
        if known is not None:
            return self.constant(f"scalar{parameter.scalar.name}_", slot_of(known, dtype))
        if dtype is DataType.Int and text in self.program.sizes.symbols.values():
            return text
        slot, kind = writer.constant("slot", slot_of), writer.constant(f"dtype_{dtype.name}", dtype)
        return f"{slot}({text}, {kind})"

    def tensor(self, tensor: TensorParameter) -> str:
        """An expression for a tensor."""
        view = tensor.buffer.tensor
        assert view is not None, tensor.buffer.name
        return self.program.local[self.program.tensors[view.name]].described()

    def scratch(self, size: str) -> tuple[str, str]:
        """(tensor, address) of this many bytes, which live until the launch is done."""
        if size == "0":
            return "None", "0"
        number = f"_{len(self.scratch_names)}_" if self.scratch_names else ""
        buffer, address = self.name(f"s{number}"), self.name(f"p{number}")
        if size.isdigit():
            self.line(f"{buffer} = {self._bytes(size)}")
            self.line(f"{address} = {buffer}.data_ptr()")
        else:
            bytes_name = self.name(f"bytes{number}")
            self.line(f"{bytes_name} = {size}")
            self.line(f"{buffer} = {self._bytes(bytes_name)} if {bytes_name} else None")
            self.line(f"{address} = {buffer}.data_ptr() if {bytes_name} else 0")
        self.scratch_names.append(buffer)
        return buffer, address

    def _bytes(self, size: str) -> str:
        runtime = self.program.program.runtime
        return self.program.library.memory(runtime, f"({size},)", "(1,)", torch.uint8)

    def call(self, text: str) -> None:
        """Adds the launch, and torch's error if the kernel refuses the values of its inputs.

        Neither such a kernel nor an earlier one has outputs that share memory with an input.
        """
        if not self.built.kernel.may_refuse:
            self.line(text)
            return
        part = self.constant("part", self.part)
        refused = self.program.writer.constant("refused", fallback.refused)
        inputs = ", ".join(self.program.described(value) for value in self.part.segment.inputs)
        self.line(f"if {text}: {refused}({part}, [{inputs}])")

    def finish(self) -> None:
        """Releases the scratch memory."""
        if self.scratch_names:
            self.line(f"del {', '.join(self.scratch_names)}")


def slot_of(value: Any, dtype: DataType) -> int | float:
    """A number as a kernel argument: floats as doubles, everything else as integers."""
    if dtype is DataType.Int and type(value) is int and fits_64_bits(value):
        return value
    if dtype is DataType.Double and type(value) is float:
        return value
    number = convert_number(value, dtype)
    if dtype in FLOATING:
        return float(number)  # type: ignore[arg-type]
    return int(number)  # type: ignore[arg-type]
