"""Where in the text a value may be computed: the open loops, and what is known in each.

The code generator runs no loop-invariant code motion afterwards; instead, every symbolic integer is
computed in the outermost open loop in which all its symbols are known.  Each scope has a
*preheader*, a list of lines that come before its loop begins, inside the enclosing scope.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ...errors import InternalError, expected
from ...ir.scalar_queries import substitute
from ...ir.scalars import (
    ZERO,
    CeilDiv,
    FloorDiv,
    Integer,
    IntExpr,
    Max,
    Min,
    Mod,
    Sum,
    Symbol,
    Xor,
    as_expr,
    binary,
    from_terms,
    terms_of,
)
from .counters import CountingLoop
from .llvm_writer import I64, FunctionWriter, Value

Lines = list["str | Lines"]
Getter = Callable[[IntExpr], Value]


@dataclass(slots=True, eq=False)
class Scope:
    """One open loop or branch: lines before it, and integers computed at its level.

    `is_conditional` if what is read in it may not exist elsewhere; `loop` if its index grows by
    one.
    """

    preheader: list[str]
    is_conditional: bool = False
    loop: CountingLoop | None = None
    integers: dict[IntExpr, Value] = field(default_factory=dict)
    others: dict[object, Value] = field(default_factory=dict)


class Scopes:
    """The open scopes, the values of symbols, and the emission of symbolic integers."""

    def __init__(self, writer: FunctionWriter) -> None:
        self.writer = writer
        self.open: list[Scope] = [Scope([])]
        self.level_of: dict[Symbol, int] = {}
        self.value_of: dict[Symbol, Value] = {}
        self.constants: dict[Symbol, IntExpr] = {}
        # Results cached since the symbols and the constants last changed.
        self._levels: dict[IntExpr, int] = {}
        self._resolved: dict[IntExpr, IntExpr] = {}
        self.value_level: dict[str, int] = {}

    @property
    def level(self) -> int:
        """The index of the innermost open scope."""
        return len(self.open) - 1

    def enter(self, *, is_conditional: bool = False) -> Scope:
        """Opens a scope; its preheader is at the current end of the text."""
        preheader: list[str] = []
        self.writer.lines.append(preheader)  # type: ignore[arg-type]
        scope = Scope(preheader, is_conditional)
        self.open.append(scope)
        return scope

    def leave(self) -> None:
        """Closes the innermost scope; values computed at its level are forgotten."""
        self.open.pop()
        level = len(self.open)
        for symbol in [s for s, at in self.level_of.items() if at >= level]:
            del self.level_of[symbol], self.value_of[symbol]
        self._levels.clear()
        self.writer.forget()

    def define(self, symbol: Symbol, value: Value) -> None:
        """Gives a symbol a value in the innermost scope."""
        self.level_of[symbol] = self.level
        self.value_of[symbol] = value
        self._levels.clear()

    def set_constant(self, symbol: Symbol, value: IntExpr | int | None) -> None:
        """Gives the index of a loop that is written out its value; None once the loop is over."""
        if value is None:
            self.constants.pop(symbol, None)
        else:
            self.constants[symbol] = as_expr(value)
        self._resolved.clear()

    def known(self, key: object) -> Value | None:
        """The value that an open scope has under a key of `Scope.others`."""
        return next((scope.others[key] for scope in self.open if key in scope.others), None)

    @contextmanager
    def at(self, level: int) -> Iterator[Scope]:
        """Writes into the outermost position where values of `level` are known."""
        if level >= self.level:
            yield self.open[-1]
            return
        scope = self.open[level + 1]
        saved = self.writer.lines
        self.writer.lines = scope.preheader
        try:
            yield scope
        finally:
            self.writer.lines = saved

    def level_of_expr(self, expr: IntExpr) -> int:
        """The level of the innermost symbol of an expression."""
        level = self._levels.get(expr)
        if level is None:
            level = max((self.level_of.get(s, 0) for s in expr.symbols), default=0)
            self._levels[expr] = level
        return level

    def level_of_read(self, index: IntExpr) -> int:
        """The level where an element may be read: not outside of a condition for its existence."""
        conditional = [level for level, scope in enumerate(self.open) if scope.is_conditional]
        return max(self.level_of_expr(index), *conditional[-1:], 0)

    def resolve(self, expr: IntExpr) -> IntExpr:
        """The expression, in which loops that are written out have the values of their indices."""
        if not self.constants:
            return expr
        found = self._resolved.get(expr)
        if found is None:
            found = self._resolved[expr] = substitute(expr, self.constants)
        return found

    def integer(self, expr: IntExpr) -> Value:
        """The i64 value of an expression (without lane indices)."""
        expr = self.resolve(expr)
        if isinstance(expr, Integer):
            return self.writer.constant(expr.value, I64)
        if isinstance(expr, Symbol):
            found = self.value_of.get(expr)
            if found is None:
                raise InternalError(expected("cpu codegen", "a symbol in scope", expr))
            return found
        for scope in self.open:
            if expr in scope.integers:
                return scope.integers[expr]
        level = self.level_of_expr(expr)
        if isinstance(expr, Sum):
            outer, inner = self._by_level(expr, level)
            if outer is not None and inner is not None:
                a, b = self.integer(outer), self.integer(inner)
                return self._remember(expr, level, lambda: self.writer.add(a, b))
        parts = [self.integer(part) for part in expr.parts()]  # emitted at their own levels first
        if isinstance(expr, FloorDiv | Mod) and self._is_counted(expr, parts[0], level):
            return self._count(expr, parts[0], level)
        return self._remember(expr, level, lambda: self._compute(expr))

    def _is_counted(self, expr: FloorDiv | Mod, dividend: Value, level: int) -> bool:
        """True if a loop may count the expression."""
        loop = self.open[level].loop
        if loop is None or self.level_of_expr(expr.b) >= level:
            return False
        if dividend.name not in loop.counted and isinstance(expr.a, Sum):
            self._note_sum(expr.a, dividend, level)
        return dividend.name in loop.counted

    def _note_sum(self, expr: Sum, value: Value, level: int) -> None:
        """Notes that a sum is counted, if it is one of what a loop counts and what is known."""
        loop = self.open[level].loop
        outer, inner = self._by_level(expr, level)
        if loop is None or outer is None or inner is None:
            return
        counted = loop.counted.get(self.integer(inner).name)
        if counted is not None and counted.restarts is None:
            with self.at(level - 1):
                first = self.writer.add(self.integer(outer), counted.first)
            loop.counts(value, first, counted.increment)

    def _count(self, expr: FloorDiv | Mod, dividend: Value, level: int) -> Value:
        scope = self.open[level]
        assert scope.loop is not None
        with self.at(level - 1):
            divisor = _divisor(self.writer, expr.b, self.integer)
            both = scope.loop.divide(self.writer, dividend, divisor)
        quotient, remainder = binary(FloorDiv, expr.a, expr.b), binary(Mod, expr.a, expr.b)
        scope.integers |= zip((quotient, remainder), both, strict=True)
        return scope.integers[expr]

    def _remember(self, expr: IntExpr, level: int, make: object) -> Value:
        with self.at(level) as scope:
            value: Value = make()  # type: ignore[operator]
            scope.integers[expr] = value
        return value

    def _by_level(self, expr: Sum, level: int) -> tuple[IntExpr | None, IntExpr | None]:
        """Splits a sum into the part known further out and the rest."""
        outer: dict[tuple[IntExpr, ...], int] = {}
        inner: dict[tuple[IntExpr, ...], int] = {}
        for monomial, coefficient in expr.terms:
            part = outer if self._term_level(monomial) < level else inner
            part[monomial] = coefficient
        return (from_terms(outer) if outer else None), (from_terms(inner) if inner else None)

    def _term_level(self, monomial: tuple[IntExpr, ...]) -> int:
        return max((self.level_of_expr(atom) for atom in monomial), default=0)

    def _compute(self, expr: IntExpr) -> Value:
        return emit_integer(self.writer, expr, self.integer)


def emit_integer(writer: FunctionWriter, expr: IntExpr, get: Getter) -> Value:
    """Emits one expression over existing values; `get` gives those of its parts."""
    match expr:
        case Sum():
            total: Value | None = None
            for monomial, coefficient in expr.terms:
                term = _monomial(writer, monomial, coefficient, get)
                total = term if total is None else writer.add(total, term)
            assert total is not None
            return total
        case FloorDiv():
            return writer.binary("udiv", get(expr.a), _divisor(writer, expr.b, get))
        case Mod():
            return writer.binary("urem", get(expr.a), _divisor(writer, expr.b, get))
        case CeilDiv():
            a, b = get(expr.a), _divisor(writer, expr.b, get)
            one = writer.constant(1, b.type)
            return writer.binary("udiv", writer.add(a, writer.sub(b, one)), b)
        case Min():
            return writer.intrinsic("smin", get(expr.a).type, get(expr.a), get(expr.b))
        case Max():
            return writer.intrinsic("smax", get(expr.a).type, get(expr.a), get(expr.b))
        case Xor():
            return writer.xor(get(expr.a), get(expr.b))
        case _:
            return get(expr)


def _divisor(writer: FunctionWriter, expr: IntExpr, get: Getter) -> Value:
    """At least 1: a division by an empty extent is hoisted out of the loop that never runs."""
    value = get(expr)
    if isinstance(expr, Integer):
        return value
    return writer.intrinsic("smax", value.type, value, writer.constant(1, value.type))


def _monomial(
    writer: FunctionWriter, monomial: tuple[IntExpr, ...], coefficient: int, get: Getter
) -> Value:
    if not monomial:
        return get(Integer.of(coefficient))
    product = get(monomial[0])
    for atom in monomial[1:]:
        product = writer.mul(product, get(atom))
    if coefficient != 1:
        product = writer.mul(product, get(Integer.of(coefficient)))
    return product


def split_constant(expr: IntExpr) -> tuple[IntExpr, int]:
    """(expression without its constant, the constant)."""
    terms = dict(terms_of(expr))
    constant = terms.pop((), 0)
    return (from_terms(terms) if terms else ZERO), constant


def flatten(lines: Lines) -> list[str]:
    """The text with the preheaders inserted."""
    flat: list[str] = []
    for line in lines:
        if isinstance(line, str):
            flat.append(line)
        else:
            flat += flatten(line)
    return flat
