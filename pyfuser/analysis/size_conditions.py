"""Decisions that depend on sizes, and the conditions under which they would be made again.

A `SizeNumber` is an int that knows the expression over sizes whose value it is.  Code that decides
something from the sizes of a call (a layout class, a heuristic's parameters) is run with such
numbers without noticing: arithmetic gives new ones, and the outcome of every comparison is recorded
in `SizeConditions`.  Other sizes for which all the recorded conditions hold lead to the same
decisions.  A plan checks the conditions in one line, and is valid for all sizes that satisfy them.
An operation whose answer can't be recorded raises TypeError; int(n), hashing, formatting and the
functions of `math` are what Python doesn't let a number notice, and record nothing.

    conditions = SizeConditions()
    n = conditions.number(Symbol.of("i0"), 1000)
    few = n // 8 < 4           # False, and recorded: i0 // 8 >= 4
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from math import gcd
from operator import index
from typing import NoReturn, SupportsIndex

from ..errors import expected
from ..ir.scalars import (
    ZERO,
    Integer,
    IntExpr,
    Symbol,
    as_expr,
    floor_div,
    from_terms,
    mod,
    multiply,
    terms_of,
)


@dataclass(slots=True)
class Interval:
    """Facts about an expression: `low <= it <= high` (None: no bound), and not `excluded`."""

    low: int | None = None
    high: int | None = None
    excluded: set[int] = field(default_factory=set)

    def at_least(self, low: int) -> None:
        """Raises the lower bound."""
        self.low = low if self.low is None else max(self.low, low)
        self._tighten()

    def at_most(self, high: int) -> None:
        """Lowers the upper bound."""
        self.high = high if self.high is None else min(self.high, high)
        self._tighten()

    def is_not(self, value: int) -> None:
        """Excludes one value."""
        below = self.low is not None and value < self.low
        above = self.high is not None and value > self.high
        if not below and not above:
            self.excluded.add(value)
            self._tighten()

    def _tighten(self) -> None:
        """Moves the bounds past excluded values at the ends, and forgets those outside."""
        while self.low is not None and self.low in self.excluded:
            self.low += 1
        while self.high is not None and self.high in self.excluded:
            self.high -= 1
        low, high = self.low, self.high
        self.excluded = {
            value
            for value in self.excluded
            if (low is None or value > low) and (high is None or value < high)
        }


class SizeConditions:
    """The answers to comparisons of sizes so far, as intervals of expressions.

    `least` is a known lower bound of every symbol except those whose names are in `unbounded`.
    """

    def __init__(self, least: int = 0, unbounded: Container[str] = ()) -> None:
        self.least, self.unbounded = least, unbounded
        self.intervals: dict[IntExpr, Interval] = {}

    def number(self, expr: IntExpr, value: int) -> int:
        """The value of an expression, as a number whose comparisons are recorded."""
        return value if isinstance(expr, Integer) else SizeNumber(value, expr, self)

    def of(self, expr: IntExpr) -> Interval:
        """What is known about an expression."""
        found = self.intervals.get(expr)
        if found is None:
            found = self.intervals[expr] = Interval(self._least(expr))
        return found

    def needed(self) -> dict[IntExpr, Interval]:
        """The intervals that say more than what is known about every size."""
        found = {}
        for expr, interval in self.intervals.items():
            low = None if interval.low == self._least(expr) else interval.low
            if low is not None or interval.high is not None or interval.excluded:
                found[expr] = Interval(low, interval.high, interval.excluded)
        return found

    def _least(self, expr: IntExpr) -> int | None:
        """The least value of an expression; None if it isn't known."""
        if any(symbol.name in self.unbounded for symbol in expr.symbols):
            return None
        total = 0
        for monomial, coefficient in terms_of(expr):
            if coefficient < 0:
                return None
            for atom in monomial:
                coefficient *= self.least if isinstance(atom, Symbol) else 0
            total += coefficient
        return total


class _Question:
    """The comparison of two numbers, as a comparison of an expression without a constant.

    a - b = factor * expr + constant; nothing has to be recorded if this is a constant.
    """

    def __init__(self, a: int, b: int, conditions: SizeConditions) -> None:
        difference = _expr(a) - _expr(b)
        terms = dict(terms_of(difference))
        self.bound = -terms.pop((), 0)
        self.factor = gcd(*terms.values()) if terms else 1
        self.interval: Interval | None = None
        if terms:
            scaled = {monomial: c // self.factor for monomial, c in terms.items()}
            self.interval = conditions.of(from_terms(scaled))

    def below(self, answer: bool) -> bool:
        """Records whether a < b."""
        if self.interval is not None:
            least = -(-self.bound // self.factor)
            if answer:
                self.interval.at_most(least - 1)
            else:
                self.interval.at_least(least)
        return answer

    def above(self, answer: bool) -> bool:
        """Records whether a > b."""
        if self.interval is not None:
            most = self.bound // self.factor
            if answer:
                self.interval.at_least(most + 1)
            else:
                self.interval.at_most(most)
        return answer

    def equal(self, answer: bool) -> bool:
        """Records whether a == b."""
        if self.interval is not None and self.bound % self.factor == 0:
            value = self.bound // self.factor
            if answer:
                self.interval.at_least(value)
                self.interval.at_most(value)
            else:
                self.interval.is_not(value)
        return answer


def _expr(value: int) -> IntExpr:
    """The expression of a size or an integer; TypeError for a float, which would be cut to one."""
    return value.expr if isinstance(value, SizeNumber) else as_expr(index(value))


class SizeNumber(int):
    """The value of an expression over sizes; see the module's docstring."""

    expr: IntExpr
    conditions: SizeConditions

    def __new__(cls, value: int, expr: IntExpr, conditions: SizeConditions) -> SizeNumber:
        made = super().__new__(cls, value)
        made.expr, made.conditions = expr, conditions
        return made

    def _made(self, value: int, expr: IntExpr) -> int:
        return self.conditions.number(expr, value)

    # -- arithmetic

    def __add__(self, other: int) -> int:
        return self._made(int(self) + int(other), self.expr + _expr(other))

    __radd__ = __add__

    def __sub__(self, other: int) -> int:
        return self._made(int(self) - int(other), self.expr - _expr(other))

    def __rsub__(self, other: int) -> int:
        return self._made(int(other) - int(self), _expr(other) - self.expr)

    def __mul__(self, other: int) -> int:
        return self._made(int(self) * int(other), multiply(self.expr, _expr(other)))

    __rmul__ = __mul__

    def __neg__(self) -> int:
        return self._made(-int(self), ZERO - self.expr)

    def __floordiv__(self, other: int) -> int:
        return self._made(int(self) // int(other), floor_div(self.expr, _expr(other)))

    def __rfloordiv__(self, other: int) -> int:
        return self._made(int(other) // int(self), floor_div(_expr(other), self.expr))

    def __mod__(self, other: int) -> int:
        return self._made(int(self) % int(other), mod(self.expr, _expr(other)))

    def __rmod__(self, other: int) -> int:
        return self._made(int(other) % int(self), mod(_expr(other), self.expr))

    def __divmod__(self, other: int) -> tuple[int, int]:
        return self // other, self % other

    def __rdivmod__(self, other: int) -> tuple[int, int]:
        return other // self, other % self

    def __lshift__(self, bits: int) -> int:
        return self * (1 << index(bits))

    def __rshift__(self, bits: int) -> int:
        return self // (1 << index(bits))

    def __pos__(self) -> int:
        return self

    __trunc__ = __floor__ = __ceil__ = __pos__

    def __round__(self, digits: SupportsIndex = 0) -> int:
        return self

    def __abs__(self) -> int:
        return -self if self < 0 else self

    def _refuse(self, *operands: object) -> NoReturn:
        """Raises TypeError: the answer would hold for this size only, and nothing would say so."""
        what = "+, -, *, //, %, <<, >> or a comparison; int(n) has no conditions"
        raise TypeError(expected("size", what, "another operation"))

    __truediv__ = __rtruediv__ = __float__ = __complex__ = _refuse
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = _refuse
    __rlshift__ = __rrshift__ = __pow__ = __rpow__ = _refuse

    def bit_length(self) -> int:
        """The bit length, which later sizes must have as well."""
        length = int(self).bit_length()
        interval = self.conditions.of(self.expr)
        interval.at_least(1 << (length - 1) if length else 0)
        interval.at_most((1 << length) - 1)
        return length

    # -- comparisons

    def __lt__(self, other: int) -> bool:
        return _Question(self, other, self.conditions).below(int(self) < int(other))

    def __ge__(self, other: int) -> bool:
        return not self < other

    def __gt__(self, other: int) -> bool:
        return _Question(self, other, self.conditions).above(int(self) > int(other))

    def __le__(self, other: int) -> bool:
        return not self > other

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, int):
            return NotImplemented
        return _Question(self, other, self.conditions).equal(int(self) == int(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __bool__(self) -> bool:
        return self != 0

    __hash__ = int.__hash__
