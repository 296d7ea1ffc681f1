"""Source text of plans: lines, constants, and arithmetic on sizes, written on first use.

A text is a number or a name for one.  An expression of numbers only is computed at once, and the
source contains the number; an expression that is needed twice is computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

import torch

from ..analysis.size_conditions import SizeConditions
from ..devices.runtime import Runtime
from ..errors import InternalError, expected
from ..ir.scalars import (
    Binary,
    CeilDiv,
    FloorDiv,
    Integer,
    IntExpr,
    Max,
    Min,
    Mod,
    Monomial,
    Sum,
    Symbol,
    Xor,
)


@dataclass(eq=False)
class Writer:
    """The source of a function, the constants it reads, and its names for numbers."""

    body: list[str] = field(default_factory=list)
    constants: dict[str, object] = field(default_factory=dict)
    numbers: dict[str, str] = field(default_factory=dict)

    def line(self, text: str) -> None:
        """Adds a statement."""
        self.body.append(text)

    def constant(self, name: str, value: object) -> str:
        """The name of a value that never changes; another one if the name is taken."""
        chosen, count = name, 0
        while not _is_same(self.constants.setdefault(chosen, value), value):
            count += 1
            chosen = f"f_{name}_{count}"  # no node of a graph has a name with this prefix
        return chosen

    def dtype(self, dtype: torch.dtype) -> str:
        """The name of a dtype."""
        return self.constant(str(dtype).replace(".", "_"), dtype)

    def number(self, text: str) -> str:
        """The name of a number that is computed once, where it is first needed."""
        found = self.numbers.get(text)
        if found is None:
            found = self.numbers[text] = f"n{len(self.numbers)}"
            self.line(f"{found} = {text}")
        return found

    def require(self, conditions: Iterable[str], indent: str = "") -> None:
        """Makes the function return None unless all conditions hold."""
        texts = list(dict.fromkeys(conditions))
        if texts:
            self.line(f"{indent}if not ({' and '.join(texts)}): return None")

    def memory_check(
        self, runtime: Runtime, needs: Sequence[tuple[str, str, int]], otherwise: str
    ) -> None:
        """Ensures that tensors have their memory before their addresses are taken.

        `needs`: the name of a tensor, the text of the bytes it spans, the bytes of an element.
        `otherwise` is what the function returns if one of them isn't plain (tensor_memory.py).
        """
        if needs:
            arguments = ", ".join(f"{name}, {span}, {each}" for name, span, each in needs)
            require = self.constant("require_memory", runtime.require_memory)
            self.line(f"if {require}({arguments}): return {otherwise}")

    def build(self, function: str, title: str) -> tuple[str, Callable[..., Any]]:
        """(source, the function): `function` is its head, such as `plan(inputs)`."""
        lines = "\n".join(f"    {line}" for line in self.body) or "    pass"
        source = f"def {function}:\n{lines}\n"
        return source, function_of(source, function.partition("(")[0], title, self.constants)


def function_of(
    source: str, name: str, title: str, constants: Mapping[str, object]
) -> Callable[..., Any]:
    """The function of this name in a source."""
    namespace = dict(constants)
    exec(compile(source, f"<pyfuser {title}>", "exec"), namespace)  # names and numbers only
    made: Callable[..., Any] = namespace[name]  # type: ignore[assignment]
    return made


def _is_same(a: object, b: object) -> bool:
    """True for one object, or one method of one object."""
    return a is b or (isinstance(a, MethodType) and isinstance(b, MethodType) and a == b)


class Sizes:
    """The texts of sizes and strides in a plan: `symbols` has the text of each symbol by name.

    A text is a name or a number; an expression of numbers only is a number.
    """

    def __init__(self, writer: Writer, symbols: dict[str, str]) -> None:
        self.writer, self.symbols = writer, symbols
        self._texts: dict[IntExpr, str] = {}

    def text(self, expr: IntExpr) -> str:
        """The text of an expression."""
        found = self._texts.get(expr)
        if found is None:
            found = self._texts[expr] = self._made(expr)
        return found

    def _made(self, expr: IntExpr) -> str:
        match expr:
            case Integer():
                return str(expr.value)
            case Symbol():
                return self.symbols[expr.name]
            case Sum():
                return self._computed([self._monomial(m, c) for m, c in expr.terms], " + ")
            case Binary():
                return self._binary(expr, self.text(expr.a), self.text(expr.b))
        raise InternalError(expected("plan", "an expression over sizes", expr))

    def _monomial(self, monomial: Monomial, coefficient: int) -> str:
        factors = self._computed([self.text(atom) for atom in monomial], " * ")
        return self._computed([factors, str(coefficient)], " * ")

    def _computed(self, texts: list[str], operator: str) -> str:
        """The name of a sum or a product; the number if all of its parts are known."""
        known = [int(text) for text in texts if is_number(text)]
        names = [text for text in texts if not is_number(text)]
        total = sum(known) if operator == " + " else _product(known)
        if not names or (total == 0 and operator == " * "):
            return str(total)
        if total != (operator == " * "):
            names.append(str(total))
        if len(names) == 1:
            return names[0]
        return self.writer.number(operator.join(names))

    def _binary(self, expr: Binary, a: str, b: str) -> str:
        known = is_number(a) and is_number(b)
        if known:
            return str(eval(_OPERATIONS[type(expr)].format(a=a, b=b)))  # of two numbers
        return self.writer.number(_OPERATIONS[type(expr)].format(a=a, b=b))


_OPERATIONS: dict[type[Binary], str] = {
    FloorDiv: "{a} // {b}",
    CeilDiv: "-(-({a}) // {b})",
    Mod: "{a} % {b}",
    Min: "({a} if {a} < {b} else {b})",
    Max: "({a} if {a} > {b} else {b})",
    Xor: "{a} ^ {b}",
}


def is_number(text: str) -> bool:
    """True for the text of a number."""
    return text.isdigit() or (text[:1] == "-" and text[1:].isdigit())


def _product(numbers: Sequence[int]) -> int:
    total = 1
    for number in numbers:
        total *= number
    return total


def tuple_text(texts: Sequence[str]) -> str:
    """The text of a tuple."""
    return f"({''.join(f'{text}, ' for text in texts)})" if len(texts) < 2 else _joined(texts)


def _joined(texts: Sequence[str]) -> str:
    return f"({', '.join(texts)})"


def condition_texts(conditions: SizeConditions, text: Callable[[IntExpr], str]) -> list[str]:
    """The texts of conditions on sizes; `text` gives the text of an expression."""
    found = []
    for expr, interval in conditions.needed().items():
        name, low, high = text(expr), interval.low, interval.high
        if low is not None and low == high:
            found.append(f"{name} == {low}")
        elif low is not None and high is not None:
            found.append(f"{low} <= {name} <= {high}")
        elif low is not None:
            found.append(f"{name} >= {low}")
        elif high is not None:
            found.append(f"{name} <= {high}")
        found += [f"{name} != {value}" for value in sorted(interval.excluded)]
    return found


def span_text(shape: Sequence[str], stride: Sequence[str], bytes_each: int) -> str:
    """The text of the bytes that a tensor spans, from its first element to its last."""
    if all(map(is_number, (*shape, *stride))):
        sizes, steps = [int(text) for text in shape], [int(text) for text in stride]
        last = sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
        return str(0 if 0 in sizes else (last + 1) * bytes_each)
    known = [text for text in shape if not is_number(text)]
    if "0" in shape:
        return "0"
    last_text = " + ".join(
        f"({size} - 1) * {step}"
        for size, step in zip(shape, stride, strict=True)
        if size != "1" and step != "0"
    )
    span = f"({last_text} + 1) * {bytes_each}" if last_text else str(bytes_each)
    return f"({span} if {' and '.join(known)} else 0)" if known else span
