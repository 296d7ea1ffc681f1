"""Which symbolic sizes a definition forces to be equal.

Adding two tensors makes their sizes equal; one symbol then stands for all of a class, and a
constant for all symbols equal to it.  Loops can be shared only between equal extents, so this runs
before anything that compares them.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..ir.scalars import Integer, IntExpr, Symbol, substitute


def _preference(expr: IntExpr) -> tuple[int, int, str]:
    kind = 0 if isinstance(expr, Integer) else 1 if isinstance(expr, Symbol) else 2
    return kind, len(str(expr)), str(expr)


def representatives(pairs: Iterable[tuple[IntExpr, IntExpr]]) -> dict[Symbol, IntExpr]:
    """Symbol -> what stands for it; symbols that stand for themselves are absent."""
    chosen: dict[Symbol, IntExpr] = {}

    def resolve(expr: IntExpr) -> IntExpr:
        while True:
            replaced = substitute(expr, chosen)
            if replaced is expr:
                return expr
            expr = replaced

    for a, b in pairs:
        keep, drop = sorted((resolve(a), resolve(b)), key=_preference)
        if keep is not drop and isinstance(drop, Symbol) and drop not in keep.symbols:
            chosen[drop] = keep
    return {symbol: resolve(symbol) for symbol in chosen}
