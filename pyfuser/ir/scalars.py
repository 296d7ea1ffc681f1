"""Symbolic integers: the sizes, strides, offsets and loop indices of every noun.

    expr ::= Integer | Symbol | Sum | FloorDiv | CeilDiv | Mod | Min | Max | Xor

Expressions are interned (equal expressions are one object) and canonical: a `Sum` is a polynomial
whose monomials are sorted products of atoms with integer coefficients.  Equal polynomials of the
same atoms are therefore one object, and a stride with respect to a loop index can be read off.
Sizes and indices are non-negative; differences and constants may be negative.  A `Symbol` may carry
an exclusive upper bound, which allows divisions and predicates to be removed
(`(4*i + j) // 4 -> i` when `j < 4`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import gcd

from .interning import Interned

Monomial = tuple["IntExpr", ...]

# Arithmetic is memoised: the loops and accesses of one kernel repeat it many times.
MEMORY = 1 << 15

_interned = Interned()


class IntExpr:
    """A symbolic integer; compared and hashed by identity.

    `__reduce__` makes pickle intern what it loads.
    """

    __slots__ = ("__weakref__", "_symbols", "_text")
    _text: str
    _symbols: frozenset[Symbol] | None

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__

    def __add__(self, other: IntExpr | int) -> IntExpr:
        return add(self, as_expr(other))

    def __sub__(self, other: IntExpr | int) -> IntExpr:
        return add(self, multiply(as_expr(other), Integer.of(-1)))

    def __mul__(self, other: IntExpr | int) -> IntExpr:
        return multiply(self, as_expr(other))

    __radd__ = __add__
    __rmul__ = __mul__

    @property
    def symbols(self) -> frozenset[Symbol]:
        """Every symbol in the expression."""
        if self._symbols is None:
            found: frozenset[Symbol] = frozenset()
            for part in self.parts():
                found |= part.symbols
            self._symbols = found
        return self._symbols

    def parts(self) -> tuple[IntExpr, ...]:
        """The direct sub-expressions."""
        return ()

    @property
    def is_constant(self) -> bool:
        """True for an `Integer`."""
        return isinstance(self, Integer)

    @property
    def value(self) -> int:
        """The number; only an `Integer` has one."""
        raise TypeError(f"{self} is not a constant")


class Integer(IntExpr):
    """A number."""

    __slots__ = ("_value",)
    _value: int

    @staticmethod
    def of(value: int) -> Integer:
        """The interned constant `value`."""
        key = ("Integer", value)
        found: Integer | None = _interned.get(key)
        if found is None:
            made = Integer()
            made._value, made._text, made._symbols = value, str(value), frozenset()
            found = _interned.keep(key, made)
        return found

    def __reduce__(self) -> tuple[object, ...]:
        return Integer.of, (self._value,)

    @property
    def value(self) -> int:
        return self._value


class Symbol(IntExpr):
    """A named unknown: a size, a stride, or a loop index with the exclusive bound `upper`."""

    __slots__ = ("name", "upper")
    name: str
    upper: IntExpr | None

    @staticmethod
    def of(name: str, upper: IntExpr | None = None) -> Symbol:
        """The interned symbol with this name and bound."""
        key = ("Symbol", name, upper)
        found: Symbol | None = _interned.get(key)
        if found is None:
            made = Symbol()
            made.name, made.upper, made._text = name, upper, name
            made._symbols = frozenset((made,))
            found = _interned.keep(key, made)
        return found

    def __reduce__(self) -> tuple[object, ...]:
        return Symbol.of, (self.name, self.upper)


class Sum(IntExpr):
    """A polynomial of two or more monomials, or one monomial that is not a single atom."""

    __slots__ = ("terms",)
    terms: tuple[tuple[Monomial, int], ...]

    def __reduce__(self) -> tuple[object, ...]:
        return _sum, (self.terms,)

    def parts(self) -> tuple[IntExpr, ...]:
        return tuple(atom for monomial, _ in self.terms for atom in monomial)


class Binary(IntExpr):
    """Base class of the binary operations."""

    __slots__ = ("a", "b")
    a: IntExpr
    b: IntExpr

    def __reduce__(self) -> tuple[object, ...]:
        return binary, (type(self), self.a, self.b)

    def parts(self) -> tuple[IntExpr, ...]:
        return (self.a, self.b)


class FloorDiv(Binary):
    """a // b."""

    __slots__ = ()


class CeilDiv(Binary):
    """(a + b - 1) // b."""

    __slots__ = ()


class Mod(Binary):
    """a % b."""

    __slots__ = ()


class Min(Binary):
    """The smaller of the two."""

    __slots__ = ()


class Max(Binary):
    """The larger of the two."""

    __slots__ = ()


class Xor(Binary):
    """a ^ b, bit by bit; both operands are below the same power of two (swizzles)."""

    __slots__ = ()


_FORMATS: dict[type[Binary], str] = {
    FloorDiv: "({} // {})",
    CeilDiv: "ceildiv({}, {})",
    Mod: "({} % {})",
    Min: "min({}, {})",
    Max: "max({}, {})",
    Xor: "({} ^ {})",
}


def binary(kind: type[Binary], a: IntExpr, b: IntExpr) -> IntExpr:
    """The interned atom with these operands, as they are."""
    key = (kind, a, b)
    found: IntExpr | None = _interned.get(key)
    if found is None:
        made = kind()
        made.a, made.b, made._symbols = a, b, None
        made._text = _FORMATS[kind].format(_grouped(a), _grouped(b))
        found = _interned.keep(key, made)
    return found


def _grouped(expr: IntExpr) -> str:
    return f"({expr})" if isinstance(expr, Sum) else str(expr)


ZERO = Integer.of(0)
ONE = Integer.of(1)


def as_expr(value: IntExpr | int) -> IntExpr:
    """An int as an `Integer`, an expression as it is."""
    return value if isinstance(value, IntExpr) else Integer.of(value)


def terms_of(expr: IntExpr) -> tuple[tuple[Monomial, int], ...]:
    """The expression as (monomial, coefficient) pairs; the constant has the empty monomial."""
    if isinstance(expr, Sum):
        return expr.terms
    if isinstance(expr, Integer):
        return (((), expr.value),) if expr.value else ()
    return (((expr,), 1),)


def _monomial_text(monomial: Monomial, coefficient: int) -> str:
    factors = [_grouped(atom) for atom in monomial]
    if coefficient != 1 or not factors:
        factors.append(str(coefficient))
    return "*".join(factors)


def from_terms(terms: Mapping[Monomial, int]) -> IntExpr:
    """The canonical expression with these monomials and coefficients."""
    key = ("terms", frozenset(terms.items()))
    found: IntExpr | None = _interned.get(key)
    if found is None:
        found = _interned.keep(key, _canonical(terms))
    return found


def _canonical(terms: Mapping[Monomial, int]) -> IntExpr:
    present = {m: c for m, c in terms.items() if c}
    _join_quotients(present)
    if not present:
        return ZERO
    if len(present) == 1:
        ((monomial, coefficient),) = present.items()
        if not monomial:
            return Integer.of(coefficient)
        if coefficient == 1 and len(monomial) == 1:
            return monomial[0]
    return _sum(tuple(sorted(present.items(), key=lambda t: (-len(t[0]), [str(a) for a in t[0]]))))


def _sum(ordered: tuple[tuple[Monomial, int], ...]) -> IntExpr:
    found: IntExpr | None = _interned.get(("Sum", ordered))
    if found is None:
        made = Sum()
        made.terms, made._symbols = ordered, None
        made._text = " + ".join(_monomial_text(m, c) for m, c in ordered).replace("+ -", "- ")
        found = _interned.keep(("Sum", ordered), made)
    return found


def _product(a: Monomial, b: Monomial) -> Monomial:
    return tuple(sorted(a + b, key=str)) if a and b else a or b


def _join_quotients(terms: dict[Monomial, int]) -> None:
    """(x // q)*q + x % q  ->  x, in place."""
    for monomial in [m for m in terms if any(isinstance(a, Mod) for a in m)]:
        for position, atom in enumerate(monomial):
            if not isinstance(atom, Mod) or monomial not in terms:
                continue
            rest = monomial[:position] + monomial[position + 1 :]
            coefficient = terms[monomial]
            partners: dict[Monomial, int] = {}
            for q_monomial, q_coefficient in terms_of(floor_div(atom.a, atom.b)):
                for d_monomial, d_coefficient in terms_of(atom.b):
                    partner = _product(_product(q_monomial, d_monomial), rest)
                    value = coefficient * q_coefficient * d_coefficient
                    partners[partner] = partners.get(partner, 0) + value
            if any(terms.get(partner) != value for partner, value in partners.items()):
                continue
            for partner in (*partners, monomial):
                del terms[partner]
            for m, c in terms_of(atom.a):
                key = _product(m, rest)
                terms[key] = terms.get(key, 0) + c * coefficient
                if not terms[key]:
                    del terms[key]


@lru_cache(MEMORY)
def add(a: IntExpr, b: IntExpr) -> IntExpr:
    """a + b."""
    if a is ZERO:
        return b
    if b is ZERO:
        return a
    terms = dict(terms_of(a))
    for monomial, coefficient in terms_of(b):
        terms[monomial] = terms.get(monomial, 0) + coefficient
    return from_terms(terms)


@lru_cache(MEMORY)
def multiply(a: IntExpr, b: IntExpr) -> IntExpr:
    """a * b."""
    if a is ONE:
        return b
    if b is ONE:
        return a
    terms: dict[Monomial, int] = {}
    for m1, c1 in terms_of(a):
        for m2, c2 in terms_of(b):
            key = _product(m1, m2)
            terms[key] = terms.get(key, 0) + c1 * c2
    return from_terms(terms)


def product(factors: Iterable[IntExpr | int]) -> IntExpr:
    """The product of the factors; 1 when there are none."""
    total: IntExpr = ONE
    for factor in factors:
        total = multiply(total, as_expr(factor))
    return total


def _divide_terms(a: IntExpr, b: IntExpr) -> tuple[IntExpr, IntExpr]:
    """(quotient, rest) with a == quotient * b + rest, extracting the terms that b divides.

    The rest isn't negative if `a` isn't: kernels divide towards 0.  What is left of n*2 - 1 - i
    without the multiples of n would be.
    """
    if a is b:
        return ONE, ZERO
    if b is ZERO:
        return ZERO, a
    term, *others = terms_of(b)
    quotient, rest = _divided_by_term(a, *term)
    if others:  # a multiple of a sum, or nothing
        return (quotient, ZERO) if multiply(quotient, b) is a else (ZERO, a)
    if any(coefficient < 0 for _, coefficient in terms_of(rest)):
        return ZERO, a
    return quotient, rest


def _divided_by_term(a: IntExpr, divisor: Monomial, by: int) -> tuple[IntExpr, IntExpr]:
    quotient: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for monomial, coefficient in terms_of(a):
        remaining = list(monomial)
        try:
            for atom in divisor:
                remaining.remove(atom)
        except ValueError:
            rest[monomial] = coefficient
            continue
        whole, left = divmod(coefficient, by)
        if whole:
            key = tuple(remaining)
            quotient[key] = quotient.get(key, 0) + whole
        if left:
            rest[monomial] = left
    return from_terms(quotient), from_terms(rest)


def _in_steps(a: IntExpr, b: IntExpr) -> tuple[int, IntExpr, IntExpr]:
    """(step, coarse, fine) with a == coarse * step + fine, 0 <= fine < step, which divides `b`.

    Lanes that begin at a multiple of their number have one quotient, and remainders that follow
    each other: (j * 16 + lane) // 64 is j // 4.  The step is as large as possible; 1 if there is
    none.
    """
    terms = terms_of(a)
    steps = {gcd(b.value, c) for _, c in terms} if isinstance(b, Integer) and b.value > 0 else set()
    for step in sorted(steps - {1}, reverse=True):
        fine = from_terms({m: c for m, c in terms if c % step})
        if proves_less(fine, Integer.of(step)):
            coarse = from_terms({m: c // step for m, c in terms if c % step == 0})
            return step, coarse, fine
    return 1, a, ZERO


@lru_cache(MEMORY)
def floor_div(a: IntExpr, b: IntExpr | int) -> IntExpr:
    """a // b, simplified using the bounds of what a contains."""
    b = as_expr(b)
    if b is ONE or a is ZERO:
        return a
    if isinstance(a, Integer) and isinstance(b, Integer):
        return Integer.of(a.value // b.value)
    quotient, rest = _divide_terms(a, b)
    if proves_less(rest, b):
        return quotient
    if isinstance(rest, FloorDiv):
        return add(quotient, floor_div(rest.a, multiply(rest.b, b)))
    step, coarse, _ = _in_steps(rest, b)
    if step > 1:
        return add(quotient, floor_div(coarse, floor_div(b, step)))
    return add(quotient, binary(FloorDiv, rest, b))


@lru_cache(MEMORY)
def mod(a: IntExpr, b: IntExpr | int) -> IntExpr:
    """a % b, simplified using the bounds of what a contains."""
    b = as_expr(b)
    if b is ONE:
        return ZERO
    if isinstance(a, Integer) and isinstance(b, Integer):
        return Integer.of(a.value % b.value)
    _, rest = _divide_terms(a, b)
    if proves_less(rest, b):
        return rest
    step, coarse, fine = _in_steps(rest, b)
    if step > 1:
        return add(multiply(mod(coarse, floor_div(b, step)), Integer.of(step)), fine)
    return binary(Mod, rest, b)


@lru_cache(MEMORY)
def ceil_div(a: IntExpr, b: IntExpr | int) -> IntExpr:
    """(a + b - 1) // b."""
    b = as_expr(b)
    if b is ONE or a is ZERO:
        return a
    if isinstance(a, Integer) and isinstance(b, Integer):
        return Integer.of(-(-a.value // b.value))
    quotient, rest = _divide_terms(a, b)
    if rest is ZERO:
        return quotient
    if isinstance(rest, CeilDiv):
        return add(quotient, ceil_div(rest.a, multiply(rest.b, b)))
    step, coarse, fine = _in_steps(rest, b)
    if fine is ZERO and step > 1:
        return add(quotient, ceil_div(coarse, floor_div(b, step)))
    return add(quotient, binary(CeilDiv, rest, b))


def upper_bound(atom: IntExpr) -> IntExpr | None:
    """An exclusive bound of an atom, or None if none is known."""
    match atom:
        case Symbol():
            return atom.upper
        case Mod():
            return atom.b
        case Xor():
            return upper_bound(atom.b)
        case FloorDiv():
            largest = maximum_value(atom.a)
            return None if largest is None else ceil_div(largest + 1, atom.b)
        case _:
            return None


def maximum_value(expr: IntExpr, only: frozenset[Symbol] | None = None) -> IntExpr | None:
    """The value with every bounded atom at its maximum, or at 0 where it is subtracted.

    With `only`, just these symbols are replaced, the others stay symbolic; None if one of them has
    no bound.
    """
    result: IntExpr = ZERO
    for monomial, coefficient in terms_of(expr):
        largest: IntExpr = Integer.of(coefficient)
        for atom in monomial:
            stays = only is not None and not atom.symbols & only
            bound = None if stays else upper_bound(atom)
            if bound is None and only is not None and atom.symbols & only:
                return None
            most = atom if bound is None else bound - 1 if coefficient > 0 else ZERO
            largest = largest * most
        result = result + largest
    return result


@lru_cache(MEMORY)
def proves_less(a: IntExpr, b: IntExpr) -> bool:
    """True if 0 <= a < b holds for all values of the symbols."""
    if a is ZERO:
        # b is a divisor here, so it is at least 1 wherever the code runs.
        return True
    if any(coefficient < 0 for _, coefficient in terms_of(a)):
        return False
    largest = maximum_value(a)
    if largest is None:
        return False
    slack = b - largest - 1
    return all(coefficient >= 0 for _, coefficient in terms_of(slack))
