"""Quotients and remainders of a loop's index, which are counted instead of divided.

    for i in [begin, end):                  quotient, remainder = begin // n, begin % n
        ... i // n, i % n ...       ->      for i in [begin, end):
                                                ... quotient, remainder ...
                                                remainder += 1
                                                if remainder == n: remainder, quotient += 0, 1

A division of 64 bits takes as long as a row of a few vectors.  Quotients and remainders of what is
counted are counted, too: (i // n) % m, (i % n) // m; so are those of sums, (block * 16 + i) // n.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .llvm_writer import I64, FunctionWriter, Value


@dataclass(slots=True, frozen=True)
class _Counted:
    """A value that an iteration changes in a known way."""

    first: Value  # when the loop is entered
    increment: Value  # 0 or 1
    restarts: Value | None = None  # i1: it is 0 in the next iteration


@dataclass(slots=True, eq=False)
class CountingLoop:
    """A loop whose index grows by one: its blocks, and the lines that counters add to them."""

    before: str  # the block that enters the loop
    latch: str  # the block that goes back
    phis: list[str]
    steps: list[str]  # in the latch
    counted: dict[str, _Counted] = field(default_factory=dict)

    def counts_from(self, index: Value, begin: Value) -> None:
        """Tells the loop's index, and where it begins."""
        self.counted[index.name] = _Counted(begin, Value("1", I64))

    def counts(self, value: Value, first: Value, increment: Value) -> None:
        """Tells of a value that grows by an increment, from a first one on."""
        self.counted[value.name] = _Counted(first, increment)

    def divide(
        self, writer: FunctionWriter, dividend: Value, divisor: Value
    ) -> tuple[Value, Value]:
        """(quotient, remainder) of a counted value; the text goes before the loop."""
        known = self.counted[dividend.name]
        first = writer.binary("udiv", known.first, divisor)
        first_rest = writer.binary("urem", known.first, divisor)
        quotient, remainder = (Value(f"%{writer.fresh('count')}", I64) for _ in range(2))
        none = writer.constant(0, I64)
        with writer.into(self.steps):
            grown = writer.add(remainder, known.increment)
            is_whole = writer.icmp("eq", grown, divisor)
            carry = writer.zext(is_whole, I64)
            rest = writer.select(is_whole, none, grown)
            total = writer.add(quotient, carry)
            restarts = is_whole
            if known.restarts is not None:
                rest = writer.select(known.restarts, none, rest)
                total = writer.select(known.restarts, none, total)
                restarts = writer.or_(known.restarts, is_whole)
        self._phi(quotient, first, total)
        self._phi(remainder, first_rest, rest)
        self.counted[quotient.name] = _Counted(first, carry, known.restarts)
        self.counted[remainder.name] = _Counted(first_rest, known.increment, restarts)
        return quotient, remainder

    def _phi(self, value: Value, first: Value, following: Value) -> None:
        incoming = f"[ {first.name}, %{self.before} ], [ {following.name}, %{self.latch} ]"
        self.phis.append(f"  {value.name} = phi {I64} {incoming}")
