"""When sizes and indices fit in 32 bits: Kernel -> conditions on its sizes and strides.

A GPU computes 64-bit integers as pairs of 32-bit ones, in several instructions and twice the
registers.  A kernel is therefore made with 32-bit indices, for the sizes for which every integer of
its text fits, and made again with 64-bit ones when a call needs that.

Each symbolic integer of a kernel has an upper bound that is a polynomial of sizes and strides: loop
indices are replaced by their last values, quotients by what they are at most, and what is
subtracted is bounded by itself.  Coefficients are fractions, so that the bound of a loop over
ceil_divide(n, 512) blocks of 512 elements is n + 511.

Invariant: products have their factors in the order of `index_factors` and sums begin with their
positive terms, as the text does, so no intermediate result is larger than the bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from math import ceil

from ...ir.domains import ParallelType
from ...ir.kernel import (
    Allocate,
    Compute,
    For,
    Gathered,
    Initialise,
    Kernel,
    Less,
    Phase,
    Predicate,
    Reduce,
    Scan,
    Scatter,
    Statement,
)
from ...ir.kernel_queries import (
    accesses,
    operand_sizes,
    operands,
    walk,
)
from ...ir.scalars import (
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
    from_terms,
    terms_of,
)

MOST = 2**31  # a 32-bit index is less
# What a loop over the blocks of a grid adds to its index: blocks along y and z.
_MOST_BLOCKS = 65535

# A polynomial of sizes and strides, which are at least 1 and 0 wherever a kernel runs.
_Bound = dict[Monomial, Fraction]


def narrow_conditions(kernel: Kernel) -> Predicate:
    """The conditions under which every index of the kernel's text fits in 32 bits."""
    found: dict[frozenset[tuple[Monomial, Fraction]], _Bound] = {}
    for phase in kernel.phases:
        bounds = _Bounds(phase)
        for bound in bounds.of_text():
            found[frozenset(bound.items())] = bound
    for symbol in kernel.symbols:
        found[frozenset({((symbol,), Fraction(1))})] = {(symbol,): Fraction(1)}
    strictest = _without_implied(list(found.values()), _sizes_of_outputs(kernel))
    most = Integer.of(MOST)
    return tuple(Less(_integral(bound), most) for bound in strictest if any(bound))


def _sizes_of_outputs(kernel: Kernel) -> frozenset[IntExpr]:
    """What is at least 1 wherever the kernel has something to do: factors of all outputs' sizes.

    The size of a reduced axis may be 0, as a stride may.
    """
    outputs = [tensor for tensor in kernel.tensors if tensor.is_output]
    factors = [
        {
            atom
            for size in tensor.sizes
            if len(terms_of(size)) == 1
            for atom in terms_of(size)[0][0]
            if isinstance(atom, Symbol)
        }
        for tensor in outputs
    ]
    return frozenset[IntExpr]().union(*factors[:1]).intersection(*factors)


def index_factors(monomial: Monomial) -> list[IntExpr]:
    """The factors of a product in the order in which they are multiplied: sizes come last.

    Sizes and strides are at least 1 if an index isn't 0, so the product only grows.
    """
    return sorted(monomial, key=_is_size)


def _is_size(atom: IntExpr) -> bool:
    """True for a size or a stride, which has no bound; the index of an axis of the grid or block
    may have none either.
    """
    return isinstance(atom, Symbol) and atom.upper is None and "." not in atom.name


class _Bounds:
    """The bounds of the integers of one phase."""

    def __init__(self, phase: Phase) -> None:
        self.phase = phase
        self.launched = {p.value: extent for p, extent in {**phase.grid, **phase.block}.items()}
        self.stops = {s.index: s.stop for s in walk(phase.body) if isinstance(s, For)}
        self.positive: dict[IntExpr, _Bound] = {}

    def of_text(self) -> Iterator[_Bound]:
        """The bounds of every integer that the text computes."""
        for axis, extent in self.phase.grid.items():
            overshoot = 0 if axis is ParallelType.grid_x else _MOST_BLOCKS
            yield _sum(self.most(extent), {(): Fraction(overshoot)})
        for expr in integers_of(self.phase.body):
            yield from self.of(expr)
        for statement in walk(self.phase.body):
            for gathered in _gathers(statement):
                moved = _product(self.most(gathered.extent), self.most(gathered.stride))
                yield _sum(moved, self.most(gathered.access.index))

    def of(self, expr: IntExpr) -> Iterator[_Bound]:
        """The bounds of an expression, of what it subtracts, and of its parts."""
        yield self.most(expr)
        yield self._negative(expr)
        for monomial, _ in terms_of(expr):
            sizes = [atom for atom in monomial if _is_size(atom)]
            if len(sizes) > 1:
                yield {tuple(sizes): Fraction(1)}
        if isinstance(expr, CeilDiv):
            yield _sum(self.most(expr.a), self.most(expr.b))
        for part in expr.parts():
            if not isinstance(part, Symbol | Integer):
                yield from self.of(part)

    def most(self, expr: IntExpr) -> _Bound:
        """An upper bound of an expression, if nothing were subtracted."""
        found = self.positive.get(expr)
        if found is None:
            found = self.positive[expr] = self._most(expr)
        return found

    def _most(self, expr: IntExpr) -> _Bound:
        match expr:
            case Integer(value=value):
                return {(): Fraction(max(value, 0))}
            case Sum():
                return self._terms((m, c) for m, c in terms_of(expr) if c > 0)
            case Symbol():
                return self._last(expr)
            case CeilDiv(a=a, b=Integer(value=value)):
                return _scaled(_sum(self.most(a), {(): Fraction(value - 1)}), Fraction(1, value))
            case FloorDiv(a=a, b=Integer(value=value)):
                return _scaled(self.most(a), Fraction(1, value))
            case FloorDiv():
                return _quotient(self.most(expr.a), expr.b)
            case CeilDiv():
                return self.most(expr.a)
            case Mod(b=Integer(value=value)):
                return {(): Fraction(value - 1)}
            case Mod():
                return _sum(self.most(expr.b), {(): Fraction(-1)})
            case Min():
                return _smaller(self.most(expr.a), self.most(expr.b))
            case Max() | Xor():
                return _larger(self.most(expr.a), self.most(expr.b), isinstance(expr, Xor))
        raise TypeError(f"not an integer expression: {expr!r}")

    def _last(self, symbol: Symbol) -> _Bound:
        """The last value of an index; a size or a stride is itself."""
        extent = self.launched.get(symbol.name) or symbol.upper or self.stops.get(symbol)
        if extent is None:
            return {(symbol,): Fraction(1)}
        return _sum(self.most(extent), {(): Fraction(-1)})

    def _negative(self, expr: IntExpr) -> _Bound:
        return self._terms((m, -c) for m, c in terms_of(expr) if c < 0)

    def _terms(self, terms: Iterable[tuple[Monomial, int]]) -> _Bound:
        total: _Bound = {}
        for monomial, coefficient in terms:
            largest: _Bound = {(): Fraction(coefficient)}
            for atom in monomial:
                factor = self.most(atom)
                if isinstance(atom, Sum):  # a difference as a factor
                    factor = _larger(factor, self._negative(atom))
                largest = _product(largest, factor)
            total = _sum(total, largest)
        return total


def integers_of(body: Sequence[Statement]) -> Iterator[IntExpr]:
    """Every symbolic integer of the statements."""
    for statement in walk(list(body)):
        yield from (access.index for access in accesses(statement))
        match statement:
            case For():
                yield from (statement.start, statement.stop)
            case Allocate(buffer=buffer):
                yield buffer.size
            case Initialise():
                yield from (side for each in statement.predicate for side in (each.a, each.b))
            case Compute() | Reduce() | Scan() | Scatter():
                yield from (side for each in statement.predicate for side in (each.a, each.b))
                yield from operand_sizes(statement.inputs)


def _gathers(statement: Statement) -> list[Gathered]:
    if not isinstance(statement, Compute | Reduce | Scan | Scatter):
        return []
    return [each for each in operands(statement.inputs) if isinstance(each, Gathered)]


# -- polynomials


def _sum(a: _Bound, b: _Bound) -> _Bound:
    total = dict(a)
    for monomial, coefficient in b.items():
        total[monomial] = total.get(monomial, Fraction(0)) + coefficient
    return {m: c for m, c in total.items() if c}


def _scaled(a: _Bound, factor: Fraction) -> _Bound:
    return {monomial: coefficient * factor for monomial, coefficient in a.items()}


def _product(a: _Bound, b: _Bound) -> _Bound:
    total: _Bound = {}
    for m, c in a.items():
        for n, d in b.items():
            joined = tuple(sorted(m + n, key=str))
            total[joined] = total.get(joined, Fraction(0)) + c * d
    return {m: c for m, c in total.items() if c}


def _quotient(a: _Bound, b: IntExpr) -> _Bound:
    """At most a // b for a divisor that is at least 1: terms that don't contain it stay."""
    divisor = terms_of(b)
    if len(divisor) != 1 or divisor[0][1] != 1:
        return a
    total: _Bound = {}
    for monomial, coefficient in a.items():
        left = list(monomial)
        for atom in divisor[0][0]:
            if atom in left:
                left.remove(atom)
            else:
                left = list(monomial)
                break
        if coefficient > 0 or len(left) < len(monomial):
            total = _sum(total, {tuple(left): coefficient})
    return total


def _smaller(a: _Bound, b: _Bound) -> _Bound:
    """The bound of a minimum: one of the two, a number if there is one."""
    if set(b) <= {()} or _implies(a, b, frozenset()):
        return b
    return a


def _larger(a: _Bound, b: _Bound, adds: bool = False) -> _Bound:
    """The bound of a maximum; or of something that is at most the sum."""
    if not adds and _implies(a, b, frozenset()):
        return a
    if not adds and _implies(b, a, frozenset()):
        return b
    return _sum(_positive(a), _positive(b))


def _positive(a: _Bound) -> _Bound:
    return {monomial: coefficient for monomial, coefficient in a.items() if coefficient > 0}


def _implies(a: _Bound, b: _Bound, positive: frozenset[IntExpr]) -> bool:
    """True if b <= a: each term of b is a part of one of a's, whose other factors are positive."""
    if any(coefficient < 0 and monomial for monomial, coefficient in a.items()):
        return False
    left = _positive(a)
    constant = a.get((), Fraction(0)) - b.get((), Fraction(0))
    for monomial, coefficient in b.items():
        if coefficient <= 0 or not monomial:
            continue
        for other, available in left.items():
            if available >= coefficient and _is_part(monomial, other, positive):
                left[other] = available - coefficient
                break
        else:
            return False
    return constant >= 0


def _is_part(a: Monomial, b: Monomial, positive: frozenset[IntExpr]) -> bool:
    others = list(b)
    for atom in a:
        if atom not in others:
            return False
        others.remove(atom)
    return positive.issuperset(others)


def _without_implied(bounds: Sequence[_Bound], positive: frozenset[IntExpr]) -> list[_Bound]:
    """The bounds that no other one implies, in order.

    Constants come from padding, so the largest serves for all, and fewer conditions are left to
    check.
    """
    constant = max((bound.get((), Fraction(0)) for bound in bounds), default=Fraction(0))
    kept: list[_Bound] = []
    for bound in bounds:
        padded = {**_positive(bound), (): constant}
        if any(_implies(other, padded, positive) for other in kept):
            continue
        kept = [other for other in kept if not _implies(padded, other, positive)]
        kept.append(padded)
    return kept


def _integral(bound: _Bound) -> IntExpr:
    """The bound with whole coefficients, which are no smaller."""
    return from_terms({monomial: ceil(c) for monomial, c in bound.items()})
