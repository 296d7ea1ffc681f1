"""Minimum, maximum and exclusive or of symbolic integers: atoms, which no sum takes apart.

`smaller` and `larger` (bounds.py) also know the order of sizes.
"""

from __future__ import annotations

from .scalars import CeilDiv, FloorDiv, Integer, IntExpr, Max, Min, Xor, as_expr, binary


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
    return binary(Min, a, b)


def maximum(a: IntExpr, b: IntExpr | int) -> IntExpr:
    """max(a, b)."""
    b = as_expr(b)
    if a is b:
        return a
    if isinstance(a, Integer) and isinstance(b, Integer):
        return Integer.of(max(a.value, b.value))
    return binary(Max, a, b)


def xor(a: IntExpr, b: IntExpr) -> IntExpr:
    """a ^ b."""
    if isinstance(a, Integer) and isinstance(b, Integer):
        return Integer.of(a.value ^ b.value)
    # x ^ (x ^ y) is y: a swizzle undone
    for x, other in ((a, b), (b, a)):
        if isinstance(other, Xor) and x in (other.a, other.b):
            return other.b if other.a is x else other.a
    return binary(Xor, a, b)
