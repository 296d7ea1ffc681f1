"""Recorded conditions on sizes: sizes that satisfy them lead to the same decisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyfuser.analysis.layouts import layout_of
from pyfuser.analysis.size_conditions import SizeConditions
from pyfuser.ir.scalar_queries import evaluate
from pyfuser.ir.scalars import IntExpr, Symbol

Decision = Callable[[int, int, int], object]
NAMES = ("a", "b", "c")


def block(a: int, b: int, c: int) -> object:
    size = 8
    while size * 2 <= min(a, b, 2048):
        size *= 2
    return size, a * b >= 4096, c % 3 == 0


def thirds(a: int, b: int, c: int) -> object:
    return [max(a // 3, b) - c > 10, -(-a // 4) == b, a != 1, bool(c), (a - b) * 2 > c]


def lengths(a: int, b: int, c: int) -> object:
    return a.bit_length(), (a * b).bit_length(), 12 * a > 5 * c


def rounded(a: int, b: int, c: int) -> object:
    rows, left = divmod(a, 7)
    return [rows >> 2 > 3, left, round(b) << 1 > 100, abs(c - b) < 9, +a > 5]


def layout(a: int, b: int, c: int) -> object:
    return layout_of([a, b, 4], [4 * b, 4, c])


DECISIONS: tuple[Decision, ...] = (block, thirds, lengths, rounded, layout)


def holds(conditions: SizeConditions, sizes: Mapping[str, int]) -> bool:
    def inside(expr: IntExpr) -> bool:
        interval, value = conditions.intervals[expr], evaluate(expr, sizes)
        low = interval.low is None or interval.low <= value
        high = interval.high is None or value <= interval.high
        return low and high and value not in interval.excluded

    return all(inside(expr) for expr in conditions.needed())


def decided(decision: Decision, sizes: Mapping[str, int]) -> tuple[object, SizeConditions]:
    conditions = SizeConditions()
    a, b, c = (conditions.number(Symbol.of(name), sizes[name]) for name in NAMES)
    return decision(a, b, c), conditions


SIZES = st.fixed_dictionaries({name: st.integers(0, 5000) | st.integers(0, 9) for name in NAMES})


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(DECISIONS), SIZES, SIZES)
def test_sizes_that_satisfy_the_conditions_decide_alike(
    decision: Decision, first: Mapping[str, int], other: Mapping[str, int]
) -> None:
    answer, conditions = decided(decision, first)
    assert answer == decision(*(first[name] for name in NAMES))
    assert holds(conditions, first)
    if holds(conditions, other):
        assert decision(*(other[name] for name in NAMES)) == answer


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda d: d.__name__)
def test_conditions_hold_for_more_than_one_size(decision: Decision) -> None:
    """They could be trivially right by naming each size."""
    first = {"a": 1000, "b": 600, "c": 1}
    _, conditions = decided(decision, first)
    others = [{**first, "a": 1000 + n} for n in (-2, -1, 1, 2)]
    assert any(holds(conditions, other) for other in others)


def test_what_every_size_satisfies_is_no_condition() -> None:
    conditions = SizeConditions(least=2)
    n = conditions.number(Symbol.of("n"), 5)
    assert n > 1 and n * 3 >= 6 and not n < 0 and n != 1
    assert conditions.needed() == {}
    assert n > 2
    assert list(map(str, conditions.needed())) == ["n"]


def test_equal_expressions_are_no_question() -> None:
    conditions = SizeConditions()
    n, m = (conditions.number(Symbol.of(name), value) for name, value in (("n", 3), ("m", 7)))
    assert (n + m) * 2 == m * 2 + n * 2
    assert not conditions.intervals


def test_bounds_are_joined() -> None:
    conditions = SizeConditions()
    n = conditions.number(Symbol.of("n"), 100)
    assert n > 3 and n > 50 and n <= 1000 and n != 51 and 4 * n < 2000
    (interval,) = conditions.needed().values()
    assert (interval.low, interval.high, interval.excluded) == (52, 499, set())


def test_nothing_is_known_of_a_symbol_that_stands_for_an_expression() -> None:
    """The length of an axis may be such a symbol minus one: not at least 2, as other sizes are."""
    conditions = SizeConditions(least=2, unbounded={"s // 2"})
    half = Symbol.of("s // 2")
    assert conditions.number(half, 1) - 1 != 1
    assert holds(conditions, {"s // 2": 1})
    assert not holds(conditions, {"s // 2": 2})


@pytest.mark.parametrize(
    "operation", [lambda n: n / 2, lambda n: n & 7, lambda n: 1 << n, lambda n: n**2, float]
)
def test_what_cannot_be_recorded_is_refused(operation: Callable[[int], object]) -> None:
    number = SizeConditions().number(Symbol.of("a"), 12)
    with pytest.raises(TypeError, match="size: expected .*int\\(n\\) has no conditions"):
        operation(number)
