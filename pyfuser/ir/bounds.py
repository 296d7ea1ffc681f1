"""Decides which of two symbolic sizes is smaller, as far as this can be proved.

    proves_at_most(a, b)    a <= b for all sizes
    smaller, larger         min and max, simplified where the order is known

Slices need this because their bounds are clamped to the sizes: `min(n // 2, n)` has to simplify to
`n // 2` so that the two halves of a row are together as long as the row.  Unlike sizes, the
expressions here may be negative.
"""

from __future__ import annotations

from .scalar_functions import maximum, minimum
from .scalars import FloorDiv, IntExpr, Max, Min, from_terms, terms_of


def proves_at_most(a: IntExpr, b: IntExpr) -> bool:
    """True if a <= b holds for all sizes; sizes are at least 0."""
    if a is b or _is_sum_of_sizes(b - a):
        return True
    if isinstance(b, Min) and proves_at_most(a, b.a) and proves_at_most(a, b.b):
        return True
    if isinstance(a, Max) and proves_at_most(a.a, b) and proves_at_most(a.b, b):
        return True
    if isinstance(a, Min) and (proves_at_most(a.a, b) or proves_at_most(a.b, b)):
        return True
    if isinstance(b, Max) and (proves_at_most(a, b.a) or proves_at_most(a, b.b)):
        return True
    weaker = _raised(a)
    return weaker is not a and proves_at_most(weaker, b) or _by_one_term(a, b)


def _by_one_term(a: IntExpr, b: IntExpr) -> bool:
    """True if the rest of `a` is at most one of the sizes that `b` has in addition."""
    difference = terms_of(b - a)
    less = from_terms({m: -c for m, c in difference if c < 0})
    added = [from_terms({m: c}) for m, c in difference if c > 0]
    if len(added) < 2 and (less is a or not added):
        return False
    return all(map(_is_sum_of_sizes, added)) and any(proves_at_most(less, one) for one in added)


def _is_sum_of_sizes(expr: IntExpr) -> bool:
    """True for sums of products of sizes: all atoms and coefficients are at least 0."""
    return all(c >= 0 and all(map(_is_size, atoms)) for atoms, c in terms_of(expr))


def _is_size(atom: IntExpr) -> bool:
    """True for atoms that are at least 0: a minimum or a quotient is if its parts are."""
    match atom:
        case Min():
            return _is_sum_of_sizes(atom.a) and _is_sum_of_sizes(atom.b)
        case Max():
            return _is_sum_of_sizes(atom.a) or _is_sum_of_sizes(atom.b)
        case _:
            return all(_is_sum_of_sizes(part) for part in atom.parts())


def _raised(expr: IntExpr) -> IntExpr:
    """The expression with added terms made larger and simpler: x for x // k, b for min(a, b)."""
    terms = terms_of(expr)
    raised = from_terms({m: c for m, c in terms if not _raisable(m, c)})
    for atoms, coefficient in terms:
        if _raisable(atoms, coefficient):
            atom = atoms[0]
            assert isinstance(atom, FloorDiv | Min)
            larger_part = atom.a if isinstance(atom, FloorDiv) else atom.b
            raised = raised + larger_part * coefficient
    return raised


def _raisable(atoms: tuple[IntExpr, ...], coefficient: int) -> bool:
    return len(atoms) == 1 and coefficient > 0 and isinstance(atoms[0], FloorDiv | Min)


def smaller(a: IntExpr, b: IntExpr) -> IntExpr:
    """min(a, b)."""
    if proves_at_most(a, b):
        return a
    return b if proves_at_most(b, a) else minimum(a, b)


def larger(a: IntExpr, b: IntExpr) -> IntExpr:
    """max(a, b)."""
    if proves_at_most(a, b):
        return b
    return a if proves_at_most(b, a) else maximum(a, b)
