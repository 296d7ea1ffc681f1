"""Queries on symbolic integers: values, factors, and substitution of symbols."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from .scalar_functions import maximum, minimum, xor
from .scalars import (
    MEMORY,
    ONE,
    ZERO,
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
    ceil_div,
    floor_div,
    from_terms,
    mod,
    product,
    terms_of,
)


def divides(b: IntExpr, a: IntExpr) -> bool:
    """True if a % b == 0 can be proved."""
    return b is ONE or mod(a, b) is ZERO


@lru_cache(MEMORY)
def coefficient_of(expr: IntExpr, symbol: Symbol) -> IntExpr | None:
    """The factor of `symbol` in an expression (0 if absent); None if not affine in it."""
    factors: IntExpr = ZERO
    for monomial, coefficient in terms_of(expr):
        degree = sum(atom is symbol for atom in monomial)
        others = tuple(atom for atom in monomial if atom is not symbol)
        if degree > 1 or any(symbol in atom.symbols for atom in others):
            return None
        if degree:
            factors = factors + from_terms({others: coefficient})
    return factors


def substitute(expr: IntExpr, values: Mapping[Symbol, IntExpr]) -> IntExpr:
    """The expression with symbols replaced, simplified again."""
    if not values or expr.symbols.isdisjoint(values):
        return expr
    match expr:
        case Symbol():
            return values[expr]
        case Sum():
            terms: dict[Monomial, int] = {}
            for monomial, coefficient in expr.terms:
                replaced: Iterable[tuple[Monomial, int]] = ((monomial, 1),)
                if not all(atom.symbols.isdisjoint(values) for atom in monomial):
                    replaced = terms_of(product(substitute(atom, values) for atom in monomial))
                for m, c in replaced:
                    terms[m] = terms.get(m, 0) + c * coefficient
            return from_terms(terms)
        case Binary():
            rebuild = _REBUILD[type(expr)]
            return rebuild(substitute(expr.a, values), substitute(expr.b, values))
        case _:
            return expr


_REBUILD: dict[type[Binary], Callable[[IntExpr, IntExpr], IntExpr]] = {
    FloorDiv: floor_div,
    CeilDiv: ceil_div,
    Mod: mod,
    Min: minimum,
    Max: maximum,
    Xor: xor,
}


def evaluate(expr: IntExpr, values: Mapping[str, int]) -> int:
    """The value of the expression for these values of its symbols (by name)."""
    match expr:
        case Integer():
            return expr.value
        case Symbol():
            return values[expr.name]
        case Sum():
            total = 0
            for monomial, coefficient in expr.terms:
                for atom in monomial:
                    coefficient *= evaluate(atom, values)
                total += coefficient
            return total
        case Binary():
            a, b = evaluate(expr.a, values), evaluate(expr.b, values)
            return _EVALUATE[type(expr)](a, b)
    raise TypeError(f"not an integer expression: {expr!r}")


_EVALUATE: dict[type[Binary], Callable[[int, int], int]] = {
    FloorDiv: lambda a, b: a // b,
    CeilDiv: lambda a, b: -(-a // b),
    Mod: lambda a, b: a % b,
    Min: min,
    Max: max,
    Xor: lambda a, b: a ^ b,
}
