"""The names and the texts of a compiled graph's values: tensors, addresses, sizes, arguments.

A node has a name from the start, and a tensor of that name once one is made: a view becomes one
when a library call or a result needs it.  Sizes that never change are numbers; others are computed
where they are first needed.
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch.fx import Node

from ..dtypes import fits_64_bits
from ..ir.scalars import IntExpr
from ..plans.library_calls import LibraryCalls
from ..plans.text import Sizes, Writer, is_number, tuple_text
from .graph import TracedGraph
from .sizes import Size, size_of, size_text
from .views import tensor_of


def require_64_bits(number: int) -> None:
    """Raises for a number that kernels can't take; the message is torch's."""
    if not fits_64_bits(number):
        raise OverflowError("int too big to convert")


_RESERVED = frozenset(
    """alias_of args by_torch call convert_number device empty evaluate_scalar math refused
    require_memory run slot switched_off torch view_of with_strides""".split()  # noqa: SIM905
) | frozenset(keyword.kwlist)
# (the names of `Writer` constants without a prefix)


class GraphTexts:
    """The values of one graph in the function that is being written.

    `tensors` are the nodes that have a tensor of their name, `owned` the names by which memory is
    kept, by the node that was allocated.
    """

    def __init__(self, traced: TracedGraph, writer: Writer) -> None:
        self.traced, self.writer = traced, writer
        self.library = LibraryCalls(writer)
        self.names = {node: _name(node) for node in traced.graph.nodes}
        self.tensors: set[Node] = set()
        self.owned: dict[Node, list[str]] = {}
        self._symbols: dict[sympy.Symbol, str] = {}
        self._sizes = Sizes(writer, {})
        self._known: dict[Size, str] = {}
        self._checked: set[str] = set()
        self._counter = 0

    def own(self, node: Node) -> None:
        """Notes that a node's memory exists, under its name."""
        if node in self.tensors:
            return
        self.tensors.add(node)
        self.owned[node] = [self.names[node]]

    def delete(self, nodes: Sequence[Node]) -> None:
        """Writes the end of these nodes' memory."""
        names = [name for node in nodes for name in self.owned.pop(node, ())]
        if names:
            self.writer.line(f"del {', '.join(names)}")

    def tensor(self, node: Node) -> str:
        """The name of a node as a tensor; a view becomes one on first use."""
        if node in self.tensors:
            return self.names[node]
        view = self.traced.views[node]
        if view.is_whole(self.traced.views[view.base]):
            return self.tensor(view.base)
        self.writer.line(f"{self.names[node]} = {self.described(node)}")
        self.tensors.add(node)
        self.owned.setdefault(view.base, []).append(self.names[node])
        return self.names[node]

    def described(self, node: Node) -> str:
        """An expression for a node as a tensor; its base exists."""
        view = self.traced.views[node]
        if node in self.tensors or view.is_whole(self.traced.views[view.base]):
            return self.tensor(node)
        return self.view(node)

    def view(self, node: Node, owner: Node | None = None) -> str:
        """An expression for a new tensor in the memory of the node's base.

        It counts its changes with those of `owner`, another view of that memory.
        """
        view = self.traced.views[node]
        of = owner or view.base
        shape, stride = self.shape(view.shape), self.shape(view.stride)
        offset = self.size(view.offset - self.traced.views[of].offset)
        return self.library.view(self.tensor(of), shape, stride, offset, owner is not None)

    def pointer(self, node: Node) -> str:
        """The address of a node's first element, without a tensor for it."""
        view = self.traced.views[node]
        address = f"{self.tensor(view.base)}.data_ptr()"
        if view.offset == 0:
            return address
        value = tensor_of(node)
        assert value is not None
        offset = self.size(view.offset)
        width = value.element_size()
        text = str(int(offset) * width) if is_number(offset) else f"{offset} * {width}"
        return f"{address} + {text}"

    def fresh(self, prefix: str) -> str:
        """A name that nothing has."""
        self._counter += 1
        return f"{prefix}_{self._counter}"

    def name_symbol(self, symbol: sympy.Symbol, name: str) -> None:
        """Notes the name of a size of a call."""
        self._symbols[symbol] = self._sizes.symbols[str(symbol)] = name

    def size(self, size: Size) -> str:
        """The text of a size: a number, or the name of one."""
        if isinstance(size, (int, float)):
            return repr(size)
        found = self._known.get(size)
        if found is None:
            if size.is_integer:
                found = self.expr(self.traced.sizes.expr(size))
            else:
                found = self.writer.number(size_text(size, self._symbols))
            self._known[size] = found
        return found

    def expr(self, expr: IntExpr) -> str:
        """The text of an expression over the graph's symbols."""
        opaque = self.traced.sizes.opaque
        for symbol in expr.symbols:
            if symbol.name not in self._sizes.symbols:
                text = size_text(opaque[symbol.name], self._symbols)
                self._sizes.symbols[symbol.name] = self.writer.number(text)
        return self._sizes.text(expr)

    def number(self, scalar: Size) -> str:
        """The text of a number for a kernel; torch's error if it has more than 64 bits."""
        text = self.size(scalar)
        if not isinstance(scalar, (int, float)) and scalar.is_integer and text not in self._checked:
            self._checked.add(text)
            self.writer.constants["require_64_bits"] = require_64_bits
            self.writer.line(f"require_64_bits({text})")
        return text

    def each(self, sizes: tuple[Size, ...]) -> list[str]:
        """The text of each size."""
        return [self.size(size) for size in sizes]

    def shape(self, sizes: tuple[Size, ...]) -> str:
        """The text of a tuple of sizes."""
        return tuple_text(self.each(sizes))

    def arguments(self, node: Node) -> list[str]:
        """The texts of a call's arguments."""
        return [
            *map(self.argument, node.args),
            *(f"{name}={self.argument(given)}" for name, given in node.kwargs.items()),
        ]

    def argument(self, argument: Any) -> str:
        """The text of an argument of a call, or of a result."""
        if isinstance(argument, Node):
            value = argument.meta.get("val")
            if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float)):
                return self.size(size_of(value))
            if argument in self.traced.views:
                return self.tensor(argument)
            return self.names[argument]
        if isinstance(argument, (list, tuple)):
            inside = "".join(f"{self.argument(entry)}, " for entry in argument)
            return f"[{inside}]" if isinstance(argument, list) else f"({inside})"
        if isinstance(argument, (torch.SymInt, torch.SymFloat)):
            return self.size(size_of(argument))
        is_plain = argument is None or isinstance(argument, (bool, int, str))
        if is_plain or (isinstance(argument, float) and math.isfinite(argument)):
            return repr(argument)
        return self.writer.constant(self.fresh("constant"), argument)


def _name(node: Node) -> str:
    """A node's name, or another one if Python or the wrapper uses it."""
    name = str(node.name)
    is_taken = name in _RESERVED or name[:1] == "f" or (name[:1] in "ns" and name[1:].isdigit())
    return f"{name}_value" if is_taken else name
