"""The vector context: which loop index runs over the lanes, and how accesses vary along it."""

from __future__ import annotations

from dataclasses import dataclass

from ...ir.scalar_queries import coefficient_of, substitute
from ...ir.scalars import ONE, Integer, IntExpr, Symbol
from .llvm_writer import Value
from .scopes import Scopes, emit_integer


@dataclass(slots=True, eq=False)
class Lanes:
    """`count` iterations of the loop over `symbol` run as one vector, starting at `base`.

    `mask` is None if all lanes are inside the loop.
    """

    symbol: Symbol
    count: int
    base: IntExpr
    mask: Value | None


def stride_along(expr: IntExpr, lanes: Lanes) -> IntExpr | None:
    """The step of an index from one lane to the next; None if it isn't constant."""
    return coefficient_of(expr, lanes.symbol)


def first_lane(expr: IntExpr, lanes: Lanes) -> IntExpr:
    """The index in the first lane."""
    return substitute(expr, {lanes.symbol: lanes.base})


def vector_integer(scopes: Scopes, expr: IntExpr, lanes: Lanes) -> Value:
    """The index in every lane, as a vector of i64."""
    writer = scopes.writer
    expr = scopes.resolve(expr)
    if lanes.symbol not in expr.symbols:
        return writer.splat(scopes.integer(expr), lanes.count)
    step = stride_along(expr, lanes)
    if step is not None:
        first = scopes.integer(first_lane(expr, lanes))
        if step is ONE:
            return writer.positions_from(first, lanes.count)
        steps = writer.splat(scopes.integer(step), lanes.count)
        numbers = writer.mul(writer.lane_numbers(steps.type), steps)
        return writer.add(writer.splat(first, lanes.count), numbers)

    def part(sub: IntExpr) -> Value:
        return vector_integer(scopes, sub, lanes)

    return emit_integer(writer, expr, part)


def constant_or_none(expr: IntExpr) -> int | None:
    """The number of a constant expression."""
    return expr.value if isinstance(expr, Integer) else None
