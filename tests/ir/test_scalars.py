"""Symbolic integers: divisions keep their meaning where kernels divide towards 0."""

from __future__ import annotations

from pyfuser.ir.scalar_queries import evaluate
from pyfuser.ir.scalars import Symbol, ceil_div, floor_div, mod


def test_a_division_never_leaves_a_negative_rest() -> None:
    n, i = Symbol.of("n"), Symbol.of("i")
    index = n * 2 - 1 - i
    for expr in (mod(index, n), floor_div(index, n), ceil_div(index, n)):
        assert expr.parts()[0] is index
    assert evaluate(mod(index, n), {"n": 3, "i": 1}) == 1
    assert mod(n * 2 + i, n) is mod(i, n)
    assert floor_div(n * 2 + i, n) is floor_div(i, n) + 2
