"""Symbolic integers: divisions keep their meaning where kernels divide towards 0."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from pyfuser.ir.scalar_functions import maximum, minimum
from pyfuser.ir.scalar_queries import evaluate
from pyfuser.ir.scalars import Integer, IntExpr, Symbol, ceil_div, floor_div, mod


def test_a_division_never_leaves_a_negative_rest() -> None:
    n, i = Symbol.of("n"), Symbol.of("i")
    index = n * 2 - 1 - i
    for expr in (mod(index, n), floor_div(index, n), ceil_div(index, n)):
        assert expr.parts()[0] is index
    assert evaluate(mod(index, n), {"n": 3, "i": 1}) == 1
    assert mod(n * 2 + i, n) is mod(i, n)
    assert floor_div(n * 2 + i, n) is floor_div(i, n) + 2


def test_multiples_of_sums_are_divided() -> None:
    n, m, k = (Symbol.of(name) for name in "nmk")
    both = n + m
    for factor in (Integer.of(3), k, n * 2, k + 5):
        assert floor_div(both * factor, both) is factor
        assert mod(both * factor, both) is Integer.of(0)
    for whole in (n * m + n, n * n + n, n + 1, n - 1):
        assert floor_div(whole, whole) is Integer.of(1)
    left = both * 3 + k
    assert evaluate(floor_div(left, both), {"n": 2, "m": 3, "k": 12}) == 5
    assert evaluate(mod(left, both), {"n": 2, "m": 3, "k": 12}) == 2


@pytest.mark.parametrize("divisor", [6, 12, 16, 64, 96])
@pytest.mark.parametrize("bounds", [(8, 2, 16), (5, 3, 4), (7, 4, 8), (3, 2, 32)])
def test_quotients_and_remainders_of_what_goes_in_steps(
    bounds: tuple[int, int, int], divisor: int
) -> None:
    """Sums of loops as splits make them; whatever is simplified, the numbers stay."""
    outer, unroll, lane = (
        Symbol.of(f"{name}{bound}", Integer.of(bound))
        for name, bound in zip("juz", bounds, strict=True)
    )
    index = (outer * bounds[1] + unroll) * bounds[2] + lane
    for offset in (0, 1, bounds[2], 5 * divisor):
        quotient, rest = floor_div(index + offset, divisor), mod(index + offset, divisor)
        for place in itertools.product(*map(range, bounds)):
            known = dict(zip((outer.name, unroll.name, lane.name), place, strict=True))
            value = evaluate(index, known) + offset
            found = evaluate(quotient, known), evaluate(rest, known)
            assert found == divmod(value, divisor)


def test_lanes_that_begin_at_a_multiple_of_their_number_are_neighbours() -> None:
    j, lane = Symbol.of("j", Integer.of(32)), Symbol.of("lane", Integer.of(16))
    assert floor_div(j * 16 + lane, 64) is floor_div(j, 4)
    assert mod(j * 16 + lane, 64) is mod(j, 4) * 16 + lane
    assert lane in mod(j * 8 + lane, 64).symbols  # they overlap: nothing is known


@pytest.mark.parametrize("extremum", [minimum, maximum])
def test_the_extremum_of_one_of_its_own_operands_is_itself(
    extremum: Callable[[IntExpr, IntExpr], IntExpr],
) -> None:
    i, j, eight = Symbol.of("i"), Symbol.of("j"), Integer.of(8)
    both = extremum(extremum(i, eight), j)
    for one in (i, j, eight, extremum(j, eight), both):
        assert extremum(both, one) is both
        assert extremum(one, both) is both
