"""Sizes of a traced graph: numbers, and expressions over the symbols of a call.

A size is an int or a sympy expression (`size_of` extracts it from a SymInt).  `GraphSizes` finds
where a call's arguments hold each symbol; the text of the wrapper computes the other sizes from
them.  A graph without symbols needs none of this.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import sympy
import torch
from torch.utils._sympy.printers import PythonPrinter

from ..errors import UnsupportedError, expected
from ..ir.scalars import ZERO, Integer, IntExpr, Symbol, product

Size: TypeAlias = Any  # int | float | sympy.Expr; sympy has no types

# The elements of rows that kernels read whole, one in each lane of the widest vectors.
MOST_OF_SHORT_ROW = 16


def size_of(value: Any) -> Size:
    """A number unchanged; the expression of a SymInt, SymFloat or SymBool."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        expression = value.node.expr
        if isinstance(expression, sympy.Integer):
            return int(expression)
        return expression
    assert isinstance(value, (int, float))
    return value


def sizes_of(values: Sequence[Any]) -> tuple[Size, ...]:
    """`size_of` each."""
    return tuple(size_of(value) for value in values)


def traced_with(value: Any, unknown: int = 2) -> Any:
    """The value in tracing of a number that may change; anything else unchanged."""
    if not isinstance(value, (torch.SymInt, torch.SymFloat)):
        return value
    if value.node.hint is None:  # its symbols that only data decide count as `unknown` each
        known = getattr(value.node.shape_env, "backed_var_to_val", {})
        numbers = {symbol: known.get(symbol, unknown) for symbol in value.node.expr.free_symbols}
        return int(value.node.expr.xreplace(numbers))
    return _number_or(unknown, value.node.hint)


def _number_or(unknown: int, value: Any) -> int | float:
    """The value if it is a number.

    It may stand for the sizes of a jagged axis (`nested_tensor`) instead.
    """
    return value if isinstance(value, (int, float)) else unknown


def hint(size: Any, unknown: int = 2) -> int:
    """A size as a number: that of the inputs a graph was traced with, where it may change."""
    return int(traced_with(size, unknown))


def hints(sizes: Iterable[Any]) -> list[int]:
    """`hint` each."""
    return [hint(size) for size in sizes]


def symbols_of(size: Size) -> frozenset[sympy.Symbol]:
    """The symbols that a size depends on."""
    if isinstance(size, (int, float)):
        return frozenset()
    return frozenset(size.free_symbols)


@dataclass(eq=False)
class GraphSizes:
    """The symbols of a graph, where they come from, and its expressions.

    `sources` has for every symbol the text that finds it among the arguments `args` of a call;
    `expressions` the expressions that will be needed; `opaque` the expressions that only sympy
    understands, by the names that they have as symbols.  `arguments` are the tensors among the
    arguments, by their text: the symbols of their layouts are sources only once required.
    """

    sources: dict[sympy.Symbol, str] = field(default_factory=dict)
    expressions: dict[sympy.Expr, None] = field(default_factory=dict)
    opaque: dict[str, sympy.Expr] = field(default_factory=dict)
    least: int = 2
    """The lower bound of every symbol of `sources`, as far as torch guarantees it."""
    hints: tuple[int | float, ...] = ()
    """The value in tracing of each symbol of `sources`."""
    arguments: dict[str, torch.Tensor] = field(default_factory=dict)

    def add_placeholder(self, position: int, value: Any) -> None:
        """Registers the symbols that an argument defines."""
        if isinstance(value, torch.Tensor):
            for dim, size in enumerate(value.shape):
                self._add_source(size, f"args[{position}].shape[{dim}]")
            self.arguments[f"args[{position}]"] = value
        elif isinstance(value, (torch.SymInt, torch.SymFloat)):
            self._add_source(value, f"args[{position}]", first=True)

    def _add_source(self, value: Any, text: str, first: bool = False) -> None:
        size = size_of(value)
        if isinstance(size, sympy.Symbol) and (first or size not in self.sources):
            if size not in self.sources:
                self.hints += (traced_with(value),)
            self.sources[size] = text
            known = value.node.shape_env.var_to_range.get(size)
            lower = 0 if known is None or not known.lower.is_Integer else int(known.lower)
            self.least = max(0, min(self.least, lower))

    def _add_layouts(self, unknown: frozenset[sympy.Symbol]) -> None:
        """Finds symbols that are an argument's strides, offset, or elements in memory."""
        for name, tensor in self.arguments.items():
            if tensor.layout is not torch.strided:
                continue
            memory, each = tensor.untyped_storage().nbytes(), tensor.element_size()
            found: list[tuple[Any, str]] = [
                *((stride, f"{name}.stride({d})") for d, stride in enumerate(tensor.stride())),
                (tensor.storage_offset(), f"{name}.storage_offset()"),
                (memory // each, f"{name}.untyped_storage().nbytes() // {each}"),
            ]
            for value, text in found:
                if size_of(value) in unknown:
                    self._add_source(value, text)

    def require(self, size: Size) -> None:
        """Notes an expression that will be needed.

        UnsupportedError if no argument defines one of its symbols.
        """
        if isinstance(size, (int, float)) or size in self.expressions:
            return
        unknown = symbols_of(size) - self.sources.keys()
        if unknown:
            self._add_layouts(unknown)
            unknown -= self.sources.keys()
        if unknown:
            what = "sizes that follow from the arguments"
            raise UnsupportedError(expected("torch.compile", what, sorted(map(str, unknown))))
        self.expressions[size] = None

    @property
    def is_static(self) -> bool:
        """True if no call can change a size."""
        return not self.expressions

    def expr(self, size: Size) -> IntExpr:
        """A size as an expression over symbols with the graph's names.

        An expression that only sympy understands becomes a symbol of its own.
        """
        if isinstance(size, int):
            return Integer.of(size)
        if isinstance(size, sympy.Integer):
            return Integer.of(int(size))
        if isinstance(size, sympy.Symbol):
            return Symbol.of(str(size))
        if isinstance(size, sympy.Add):
            total: IntExpr = ZERO
            for term in size.args:
                total = total + self.expr(term)
            return total
        if isinstance(size, sympy.Mul) and all(arg.is_integer for arg in size.args):
            return product(self.expr(factor) for factor in size.args)
        name = str(size)
        self.opaque[name] = size
        return Symbol.of(name)

    def values(self, symbols: Sequence[int | float]) -> Mapping[Size, Any]:
        """Every expression's value, for the symbols in the order of `sources`."""
        numbers = dict(zip(self.sources, symbols, strict=True))
        known = {symbol: repr(_number_or(2, value)) for symbol, value in numbers.items()}
        scope = {"math": math, "torch": torch}
        return {size: eval(size_text(size, known), scope) for size in self.expressions}


def size_text(size: sympy.Expr, names: Mapping[sympy.Symbol, str]) -> str:
    """Python text of an expression; it may call functions of `math` and `torch`."""
    replaced = {s: sympy.Symbol(names[s], integer=True) for s in size.free_symbols}
    text: str = PythonPrinter().doprint(size.xreplace(replaced))
    return text
