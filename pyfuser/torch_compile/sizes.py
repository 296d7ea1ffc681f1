"""Sizes of a traced graph: numbers, and expressions over the symbols that a call brings.

A size is an int or a sympy expression (`size_of` takes it out of a SymInt).  `GraphSizes` finds
where a call's arguments hold each symbol, and evaluates all the graph's expressions at once, by one
generated function, when a call brings new values.  A graph without symbols needs none of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import sympy
import torch
from torch.utils._sympy.printers import PythonPrinter

from ..errors import UnsupportedError, expected

Size: TypeAlias = Any  # int | float | sympy.Expr; sympy has no types


def size_of(value: Any) -> Size:
    """A number as it is; the expression of a SymInt, SymFloat or SymBool."""
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


def hint(value: Any, unknown: int = 2) -> int:
    """A size as a number: that of the inputs a graph was traced with, where it may change."""
    known = size_of(value)
    if isinstance(known, int):
        return known
    found = value.node.hint
    return unknown if found is None else int(found)


def symbols_of(size: Size) -> frozenset[sympy.Symbol]:
    """The symbols that a size depends on."""
    if isinstance(size, (int, float)):
        return frozenset()
    return frozenset(size.free_symbols)


@dataclass(eq=False)
class GraphSizes:
    """The symbols of a graph, where they come from, and its expressions.

    `sources` has for every symbol the text that finds it among the arguments `args` of a call.
    """

    sources: dict[sympy.Symbol, str] = field(default_factory=dict)
    expressions: dict[sympy.Expr, int] = field(default_factory=dict)
    _evaluate: Callable[..., tuple[Any, ...]] | None = None

    def add_placeholder(self, position: int, value: Any) -> None:
        """Takes the symbols that an argument brings."""
        if isinstance(value, torch.Tensor):
            for dim, size in enumerate(value.shape):
                self._add_source(size_of(size), f"args[{position}].shape[{dim}]")
        elif isinstance(value, (torch.SymInt, torch.SymFloat)):
            self._add_source(size_of(value), f"args[{position}]", first=True)

    def _add_source(self, size: Size, text: str, first: bool = False) -> None:
        if isinstance(size, sympy.Symbol) and (first or size not in self.sources):
            self.sources[size] = text

    def require(self, size: Size) -> None:
        """Notes an expression that will be asked for.

        UnsupportedError where no argument brings one of its symbols.
        """
        if isinstance(size, (int, float)) or size in self.expressions:
            return
        unknown = symbols_of(size) - self.sources.keys()
        if unknown:
            what = "sizes that follow from the arguments"
            raise UnsupportedError(expected("torch.compile", what, sorted(map(str, unknown))))
        self.expressions[size] = len(self.expressions)
        self._evaluate = None

    @property
    def is_static(self) -> bool:
        """True when no call can change a size."""
        return not self.expressions

    @property
    def key(self) -> str:
        """Text of the tuple of symbols that a call's sizes depend on."""
        return "(" + "".join(f"{text}, " for text in self.sources.values()) + ")"

    def values(self, symbols: Sequence[int | float]) -> Mapping[Size, Any]:
        """Every expression's value, for the symbols in the order of `sources`."""
        if self._evaluate is None:
            self._evaluate = _compile(list(self.sources), list(self.expressions))
        found = self._evaluate(*symbols)
        return dict(zip(self.expressions, found, strict=True))


def _compile(
    symbols: Sequence[sympy.Symbol], expressions: Sequence[sympy.Expr]
) -> Callable[..., tuple[Any, ...]]:
    """A Python function from the symbols to the values of the expressions."""
    printer = PythonPrinter()
    names = {symbol: f"s{i}" for i, symbol in enumerate(symbols)}
    replaced = {symbol: sympy.Symbol(name, integer=True) for symbol, name in names.items()}
    texts = [_text(printer, expression, replaced) for expression in expressions]
    source = f"lambda {', '.join(names.values())}: ({''.join(f'{t}, ' for t in texts)})"
    function: Callable[..., tuple[Any, ...]] = eval(source, {"math": math, "torch": torch})
    return function


def _text(printer: PythonPrinter, expression: sympy.Expr, names: Mapping[Any, Any]) -> str:
    text: str = printer.doprint(expression.xreplace(names))
    return text
