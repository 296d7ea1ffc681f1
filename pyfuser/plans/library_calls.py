"""Library calls: how a plan calls torch for what no kernel computes, and makes views of memory.

This module has everything that the writers of plans need for that: program_writer.py for the
parts of a definition, the torch.compile wrapper for the nodes of a graph.  A call goes to a
resolved overload.  If torch can write the result into existing memory (`out=`), it is written
into the runtime's memory; a result that may differ from its metadata is checked.  Nothing here
waits for a device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from ..devices.runtime import Runtime
from .text import Writer

aten = torch.ops.aten

# torch's own view of memory by sizes, strides and an offset from the base's first element.
_native_view = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
_native_view = getattr(_native_view, "_reinterpret_tensor", None)

# The modules of native functions that calls run: these don't say where they are from.
NATIVE_FUNCTIONS = ("torch", "torch._C._dynamo.guards")

# The overloads by their bindings, of those that plans call.
_overloads: dict[Callable[..., Any], OpOverload] = {}

# What is written into the runtime's memory, by bindings in `torch`, which are faster than those of
# the overloads: matrix products, and what copies much and computes nothing.
_INTO_MEMORY: dict[Any, tuple[str, Callable[..., Any]]] = {
    aten.mm.default: ("into_mm", torch.mm),
    aten.bmm.default: ("into_bmm", torch.bmm),
    aten.addmm.default: ("into_addmm", torch.addmm),
    aten.baddbmm.default: ("into_baddbmm", torch.baddbmm),
    aten.cat.default: ("into_cat", torch.cat),
}


def view_of(
    base: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> torch.Tensor:
    """A view of a tensor's memory, starting `offset` elements after its first one."""
    if _native_view is not None:
        return _native_view(base, shape, stride, offset)  # type: ignore[no-any-return]
    return alias_of(base, shape, stride, offset)


def alias_of(
    base: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> torch.Tensor:
    """A view, as `view_of` makes, whose changes autograd sees as changes of the base."""
    return base.as_strided(shape, stride, base.storage_offset() + offset)


def with_strides(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """The tensor with the strides of the metadata: a copy, unless only those of single elements
    differ."""
    shape = tensor.shape
    steps = zip(shape, tensor.stride(), stride, strict=True)
    if all(size == 1 or step == wanted for size, step, wanted in steps):
        return view_of(tensor, shape, stride, 0)
    once = [min(size, 1) if step == 0 else size for size, step in zip(shape, stride, strict=True)]
    copy = torch.empty_strided(once, stride, dtype=tensor.dtype, device=tensor.device)
    copy.copy_(tensor[tuple(slice(size) for size in once)])
    return copy if list(shape) == once else view_of(copy, shape, stride, 0)


def overload_of(binding: Any) -> OpOverload | None:
    """The overload of which a plan calls this binding."""
    return _overloads.get(binding) if callable(binding) else None


def writes_into_memory(target: object) -> bool:
    """True for calls whose result is written into the runtime's memory."""
    return target in _INTO_MEMORY


def overload_into(overload: OpOverload) -> OpOverload | None:
    """The overload that writes the same result into a tensor.

    None if there is none, or only one that computes the result elsewhere and copies it.
    """
    wanted = _arguments(overload)
    for name in overload.overloadpacket.overloads():
        other = getattr(overload.overloadpacket, name)
        if torch.Tag.generated not in other.tags and _arguments(other) == wanted:
            outputs = [a for a in other._schema.arguments if a.is_out]
            if [output.name for output in outputs] == ["out"]:
                return other  # type: ignore[no-any-return]
    return None


def _arguments(overload: OpOverload) -> list[tuple[str, str]]:
    """Names and types of the arguments of a call."""
    return [(a.name, str(a.type)) for a in overload._schema.arguments if not a.is_out]


class LibraryCalls:
    """Writes library calls and views into a plan; every argument is the text of a value."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer

    def function(self, target: Any) -> str:
        """The name of the function that a call runs."""
        label = getattr(target, "_name", getattr(target, "__name__", "function"))
        name = "".join(c if c.isalnum() else "_" for c in f"call_{label}")
        # The operator's own binding: the overload's __call__ would add a Python frame.
        binding = getattr(target, "_op", None)
        if binding is None:
            return self.writer.constant(name, target)
        _overloads[binding] = target
        return self.writer.constant(name, binding)

    def call(self, name: str, target: Any, arguments: Sequence[str]) -> None:
        """Assigns torch's result to `name`."""
        self.writer.line(f"{name} = {self.function(target)}({', '.join(arguments)})")

    def allocate(
        self, runtime: Runtime, name: str, shape: str, stride: str, dtype: torch.dtype
    ) -> None:
        """Assigns memory from a runtime to `name`."""
        self.writer.line(f"{name} = {self.memory(runtime, shape, stride, dtype)}")

    def memory(self, runtime: Runtime, shape: str, stride: str, dtype: torch.dtype) -> str:
        """An expression for memory from a runtime."""
        empty = self.writer.constant("empty", runtime.empty_strided)
        return f"{empty}({shape}, {stride}, {self.writer.dtype(dtype)})"

    def call_into(self, name: str, target: Any, arguments: Sequence[str]) -> None:
        """Makes torch write into the tensor `name`: a product, or an overload with `out=`."""
        if target in _INTO_MEMORY:
            function = self.writer.constant(*_INTO_MEMORY[target])
        else:
            function = self.function(target)
        self.writer.line(f"{function}({', '.join(arguments)}, out={name})")

    def require_dtype(self, name: str, dtype: torch.dtype) -> None:
        """Converts a result whose dtype differs from the metadata."""
        text = self.writer.dtype(dtype)
        other = f"{name}.dtype is not {text} and not {name}.is_quantized"
        self.writer.line(f"if {other}: {name} = {name}.to({text})")

    def require_strides(self, name: str, stride: str) -> None:
        """Copies a result whose strides differ from the metadata."""
        copying = self.writer.constant("with_strides", with_strides)
        self.writer.line(f"if {name}.stride() != {stride}: {name} = {copying}({name}, {stride})")

    def view(self, base: str, shape: str, stride: str, offset: str, is_alias: bool = False) -> str:
        """An expression for a view of memory; an alias counts its changes with the base's."""
        if is_alias:
            function = self.writer.constant("alias_of", alias_of)
        else:
            function = self.writer.constant("view_of", _native_view or view_of)
        return f"{function}({base}, {shape}, {stride}, {offset})"

    def copied(self, text: str, stride: str) -> str:
        """An expression for a copy with these strides."""
        return f"{self.writer.constant('with_strides', with_strides)}({text}, {stride})"
