"""Minimum, maximum and exclusive or of symbolic integers: atoms, which no sum takes apart.

`smaller` and `larger` (bounds.py) also know the order of sizes.
"""

from __future__ import annotations

from .scalars import Binary, CeilDiv, FloorDiv, Integer, IntExpr, Max, Min, Xor, as_expr, binary


def minimum(a: IntExpr, b: IntExpr | int) -> IntExpr:
    """min(a, b)."""
    b = as_expr(b)
    if a is b:
        return a
    if isinstance(a, Integer) and isinstance(b, Integer):
        return Integer.of(min(a.value, b.value))
    for floor, ceil in ((a, b), (b, a)):
        if (
            isinstance(floor, FloorDiv)
            and isinstance(ceil, CeilDiv)
            and (floor.a, floor.b) == (ceil.a, ceil.b)
        ):
            return floor
    return _extremum(Min, a, b)


def maximum(a: IntExpr, b: IntExpr | int) -> IntExpr:
    """max(a, b)."""
    b = as_expr(b)
    if a is b:
        return a
    if isinstance(a, Integer) and isinstance(b, Integer):
        return Integer.of(max(a.value, b.value))
    return _extremum(Max, a, b)


def _extremum(kind: type[Binary], a: IntExpr, b: IntExpr) -> IntExpr:
    """The larger or smaller of the two; one whose operands the other has adds nothing to it."""
    own, others = _operands(kind, a), _operands(kind, b)
    if own >= others:
        return a
    return b if own < others else binary(kind, a, b)


def _operands(kind: type[Binary], expr: IntExpr) -> set[IntExpr]:
    """What an expression is the largest or the smallest of."""
    if not isinstance(expr, kind):
        return {expr}
    return _operands(kind, expr.a) | _operands(kind, expr.b)


def xor(a: IntExpr, b: IntExpr) -> IntExpr:
    """a ^ b."""
    if isinstance(a, Integer) and isinstance(b, Integer):
        return Integer.of(a.value ^ b.value)
    # x ^ (x ^ y) is y: a swizzle undone
    for x, other in ((a, b), (b, a)):
        if isinstance(other, Xor) and x in (other.a, other.b):
            return other.b if other.a is x else other.a
    return binary(Xor, a, b)
