"""Takes the conditions of windows out of loops: cuts a loop where slices and pads begin and end.

Runs right after peeling, on loops whose predicates were taken out.  A cat is a sum of cases: each
element is computed by one part, and the others aren't read.  Within a part's range no case is left
to decide, so the loop there computes that part only.  The few iterations around a boundary keep all
conditions.  Targets whose threads are hardware decide by branches in the loop instead.

Before:  for j in [0, n) { for x in [0, 16) { T = a[j*16 + x] if j*16 + x < k else b[...] } }
After:   for j in [0, min(n, k // 16)) { for x in [0, 16) { T = a[j*16 + x] } }
         for j in [..., ceildiv(k, 16)) { for x in [0, 16) { T = a[...] if j*16 + x < k else b } }
         for j in [..., n) { for x in [0, 16) { T = b[...] } }

A loop of a few iterations, such as the columns of a row, is cut in the end at every boundary that
is between two of them, whatever else is tested in it.

A condition on the index of an outer loop holds for all iterations or none.  It is tested once,
before the loop, of which there is one for each case.

Before:  for j in [0, n) { T = a[...] if row < k else b[...] }
After:   if row < k { for j in [0, n) { T = a[...] } } else { for j in [0, n) { T = b[...] } }
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..dtypes import DataType
from ..ir.bounds import proves_at_most
from ..ir.domains import BLOCK, ParallelType
from ..ir.kernel import (
    Access,
    Allocate,
    Buffer,
    Compute,
    For,
    Guarded,
    If,
    Less,
    Literal,
    Operand,
    Predicate,
    Reduce,
    Statement,
)
from ..ir.kernel_queries import walk
from ..ir.scalar_functions import maximum, minimum
from ..ir.scalar_queries import coefficient_of, substitute
from ..ir.scalars import (
    ONE,
    ZERO,
    Integer,
    IntExpr,
    Symbol,
    ceil_div,
    floor_div,
    maximum_value,
    terms_of,
)
from ..ir.schedule import MemoryType
from .unused_registers import drop_unused_registers

_THREADS = frozenset(kind.value for kind in BLOCK)

# Each boundary adds two loops, of which one has all conditions.  A cat stays as it is if it has
# more boundaries, or if they are more than a few and these loops together have more statements.
# Measured on a Granite Rapids: a stack of nine products takes half the time, and 0.2 s more to
# compile.
_MOST_BOUNDARIES = 16
_FEW_BOUNDARIES = 4
_MOST_STATEMENTS = 400
# Loops that are cut at any number of boundaries, if these are between iterations.
_FEW_ITERATIONS = 64
# Cases of conditions on outer loops, each of which has its own loop.  What is more is tested in it.
_MOST_CASES = 32


@dataclass(frozen=True, slots=True)
class _Boundary:
    """Where conditions change: none of an iteration's positions reach it before `low`, all from
    `high` on.
    """

    at: IntExpr
    low: IntExpr
    high: IntExpr


@dataclass(frozen=True, slots=True)
class _Side:
    """What a condition says of a boundary: it holds below it, or from it on."""

    boundary: _Boundary
    is_below: bool


@dataclass(frozen=True, slots=True)
class _Facts:
    """What is known of conditions in a part of the iterations.

    `known` has those that hold or don't; those of `unmet` don't all hold.
    """

    known: Mapping[Less, bool]
    unmet: frozenset[Less] = frozenset()

    def holds(self, inside: Collection[Less]) -> bool | None:
        """Whether all these conditions hold; None if that isn't known."""
        found = [self.known.get(condition) for condition in inside]
        if False in found or (self.unmet and self.unmet.issubset(inside)):
            return False
        return None if None in found else True


@dataclass(frozen=True, slots=True)
class _Case:
    """Iterations of the outer loops in which the same conditions hold."""

    predicate: Predicate  # by which they differ from those of the cases after this one
    facts: _Facts


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is around a loop: the indices of the loops it is in, and registers that say whether a
    position is inside a window, with the conditions for that.
    """

    indices: frozenset[Symbol] = frozenset()
    masks: Mapping[Buffer, Sequence[Less]] = field(default_factory=dict)

    def within(self, loop: For) -> Surroundings:
        """What is around the statements of a loop."""
        return Surroundings(self.indices | {loop.index}, self.masks)

    def after(self, statement: Statement) -> Surroundings:
        """What is around the statements that follow one."""
        match statement:
            case Compute(
                op="set", inputs=(Guarded(value=Literal(True), otherwise=Literal(False)) as mask,)
            ) if statement.output.buffer.memory is MemoryType.local:
                masks = {**self.masks, statement.output.buffer: mask.inside}
                return Surroundings(self.indices, masks)
        return self


def split_at_windows(
    loop: For, checked: Sequence[Statement], surroundings: Surroundings, most: int = _MOST_CASES
) -> list[Statement]:
    """The loop in parts, in order; itself if that isn't possible or there is nothing to gain.

    `checked` is a body for the few iterations around a boundary. There are at most `most` cases of
    conditions on outer loops.
    """
    cases = _cases(loop, surroundings.indices)
    if not cases or len(cases) > most:
        return list(_split_along(loop, list(checked)))
    result: list[Statement] = []
    for case in reversed(cases):
        part, its_checked = (
            decided(body, case.facts, surroundings.masks) for body in (loop.body, checked)
        )
        made = replace(loop, body=part)
        split = split_at_windows(made, its_checked, surroundings, most // len(cases))
        result = [If(case.predicate, split, result)] if case.predicate else split
    return result


def _cases(loop: For, outer: frozenset[Symbol]) -> list[_Case]:
    """The first cases to tell apart by the outer loops' indices, if there are any.

    Windows side by side are told apart by the position: it is in one of them.  The conditions for a
    single window hold together, or the window isn't read.
    """
    inner = indices_in([loop])
    sides = _sides(loop, outer)
    chain = _longest_chain(_distinct(sides))
    windows = [
        tuple(
            c
            for c in inside
            if inner.isdisjoint(c.a.symbols | c.b.symbols) and not has_threads(c.a, c.b)
        )
        for inside in _windows(loop.body)
    ]
    between = {condition for condition, side in sides.items() if side.boundary in chain}
    concerned = dict.fromkeys(each for each in windows if not between.isdisjoint(each))
    if len(concerned) == 1:
        (window,) = concerned
        yes, no = dict.fromkeys(window, True), {window[0]: False} if len(window) == 1 else {}
        return [_Case(window, _Facts(yes)), _Case((), _Facts(no, frozenset(window)))]
    return [
        _Case(
            () if number == len(chain) else (_below(chain[number], sides),),
            _Facts(
                {
                    c: (s.boundary in chain[:number]) != s.is_below
                    for c, s in sides.items()
                    if s.boundary in chain
                }
            ),
        )
        for number in range(len(chain) + 1 if chain else 0)
    ]


def _below(boundary: _Boundary, sides: Mapping[Less, _Side]) -> Less:
    """The condition that a position is below a boundary."""
    condition, side = next((c, s) for c, s in sides.items() if s.boundary == boundary)
    return condition if side.is_below else Less(condition.b - 1, condition.a)


def split_short_loops(body: Sequence[Statement]) -> list[Statement]:
    """A body whose loops of a few iterations are cut wherever windows begin or end between two.

    There is no iteration around such a boundary, and each part computes only its own windows: this
    is worth it for any number of boundaries, and under any other condition.
    """
    result: list[Statement] = []
    for statement in body:
        match statement:
            case For():
                statement.body = split_short_loops(statement.body)
                result += _at_exact_boundaries(statement)
            case If():
                statement.body = split_short_loops(statement.body)
                statement.otherwise = split_short_loops(statement.otherwise)
                result.append(statement)
            case _:
                result.append(statement)
    return result


def _at_exact_boundaries(loop: For) -> list[For]:
    """The parts of a loop, or itself if it is long or has other boundaries along it."""
    limits = loop.start, loop.stop
    is_short = all(isinstance(n, Integer) and n.value <= _FEW_ITERATIONS for n in limits)
    is_short &= loop.parallel_type in (ParallelType.serial, ParallelType.unroll)
    if not is_short or not all(_can_be_cut(loop, each) for each in walk(loop.body)):
        return [loop]
    sides = _sides(loop)
    boundaries = _all_in_order(sides)
    are_exact = all(isinstance(b.low, Integer) and b.low is b.high for b in boundaries)
    if not boundaries or not are_exact:
        return [loop]
    return [part for part in _between(loop, boundaries, sides) if part.stop is not part.start]


def _can_be_cut(loop: For, statement: Statement) -> bool:
    """False for a statement inside of a loop that isn't the same in each part of it."""
    match statement:
        case If():
            return False
        case For():
            return loop.index not in statement.start.symbols | statement.stop.symbols
    return True


def has_threads(*exprs: IntExpr) -> bool:
    """True if threads may not agree about the values."""
    return any(symbol.name in _THREADS for expr in exprs for symbol in expr.symbols)


def indices_in(body: list[Statement]) -> frozenset[Symbol]:
    """The indices of the loops in a body."""
    return frozenset(s.index for s in walk(body) if isinstance(s, For))


def _split_along(loop: For, checked: list[Statement]) -> list[For]:
    """The loop in parts between the boundaries along it, and around them."""
    sides = _sides(loop)
    count = len(_distinct(sides))
    statements = sum(isinstance(s, Compute | Reduce) for s in walk(checked))
    is_few = count <= _FEW_BOUNDARIES or count * statements <= _MOST_STATEMENTS
    boundaries = _all_in_order(sides) if count <= _MOST_BOUNDARIES and is_few else []
    if not boundaries:
        return [loop]
    result: list[For] = []
    start = loop.start
    for part in _between(loop, boundaries, sides):
        if part.start is not start:
            body = _copied(checked, _Facts({}), {})
            result.append(replace(loop, start=start, stop=part.start, body=body))
        if part.stop is not part.start:
            result.append(part)
        start = part.stop
    return result


def _between(
    loop: For, boundaries: Sequence[_Boundary], sides: Mapping[Less, _Side]
) -> Iterator[For]:
    """The iterations that no boundary is in, without the conditions that are known in them."""
    start = loop.start
    for number in range(len(boundaries) + 1):
        passed = set(boundaries[:number])
        known = {c: (s.boundary in passed) != s.is_below for c, s in sides.items()}
        stop = loop.stop
        if number < len(boundaries):
            stop = _reached(loop, boundaries[number].low, start)
        yield replace(loop, start=start, stop=stop, body=decided(loop.body, _Facts(known)))
        if number < len(boundaries):
            low, high = boundaries[number].low, boundaries[number].high
            start = stop if low is high else _reached(loop, high, stop)


def _reached(loop: For, bound: IntExpr, start: IntExpr) -> IntExpr:
    """Where the iterations before a bound, which isn't negative, end that begin at `start`."""
    if bound is ZERO:
        return start
    reached = minimum(loop.stop, bound)
    return reached if start is ZERO else maximum(start, reached)


def _sides(loop: For, outer: frozenset[Symbol] | None = None) -> dict[Less, _Side]:
    """What a loop's conditions say about boundaries along it, or about those of outer loops."""
    inner = indices_in([loop])
    found: dict[Less, _Side] = {}
    for condition in dict.fromkeys(c for inside in _windows(loop.body) for c in inside):
        if outer is None:
            side = _side(condition, loop.index, inner - {loop.index})
        else:
            side = _outer_side(condition, inner, outer)
        if side is not None:
            found[condition] = side
    return found


def _windows(body: list[Statement]) -> list[Predicate]:
    """The conditions of each guarded operand, in order."""
    return [
        operand.inside
        for statement in walk(body)
        if isinstance(statement, Compute | Reduce)
        for operand in statement.inputs
        if isinstance(operand, Guarded)
    ]


def _side(condition: Less, index: Symbol, inner: frozenset[Symbol]) -> _Side | None:
    """What a condition says about one boundary of the loop's positions; None if it isn't one."""
    is_below = index in condition.a.symbols
    position, bound = (condition.a, condition.b) if is_below else (condition.b - 1, condition.a)
    if bound.symbols & (inner | {index}):
        return None
    coefficient = coefficient_of(position, index)
    if not isinstance(coefficient, Integer) or coefficient.value < 1:
        return None
    rest = position - coefficient * index
    spread = _part_of(rest, inner)
    if any(c < 0 for _, c in terms_of(spread)):
        return None
    largest = maximum_value(spread, only=inner) if spread.symbols else spread
    if largest is None or substitute(spread, dict.fromkeys(inner, ZERO)) is not ZERO:
        return None
    at = bound - (rest - spread)  # the same for all conditions on one axis
    low = floor_div(maximum(at - largest - 1 + coefficient, ZERO), coefficient)
    high = ceil_div(maximum(at, ZERO), coefficient)
    return _Side(_Boundary(at, low, high), is_below)


def _outer_side(
    condition: Less, inner: frozenset[Symbol], outer: frozenset[Symbol]
) -> _Side | None:
    """What a condition says about one boundary of the outer loops' positions: all iterations of the
    loops inside are on one side of it.  None if it isn't one.
    """
    difference = condition.b - condition.a
    if difference.symbols & inner or has_threads(difference):
        return None
    moving = terms_of(_part_of(difference, outer))
    if not moving or len({c > 0 for _, c in moving}) > 1:
        return None
    is_below = moving[0][1] < 0  # the condition is position < bound, or bound < position + 1
    at = difference if is_below else ONE - difference
    return _Side(_Boundary(at, ZERO, ZERO), is_below)


def _part_of(expr: IntExpr, symbols: frozenset[Symbol]) -> IntExpr:
    """The terms that depend on these symbols."""
    return expr - substitute(expr, dict.fromkeys(symbols, ZERO))


def _distinct(sides: Mapping[Less, _Side]) -> list[_Boundary]:
    return list({side.boundary: None for side in sides.values()})


def _all_in_order(sides: Mapping[Less, _Side]) -> list[_Boundary]:
    """All boundaries, from the lowest to the highest; none if that isn't known for some."""
    boundaries = _distinct(sides)
    chain = _longest_chain(boundaries)
    return chain if len(chain) == len(boundaries) else []


def _longest_chain(boundaries: Sequence[_Boundary]) -> list[_Boundary]:
    """The most boundaries whose order is known for all sizes, from the lowest to the highest."""
    chains: list[list[_Boundary]] = []
    for boundary in boundaries:
        for chain in chains:
            if _insert(chain, boundary):
                break
        else:
            chains.append([boundary])
    return max(chains, key=len, default=[])


def _insert(chain: list[_Boundary], boundary: _Boundary) -> bool:
    """Puts a boundary in its place in a chain; False if that isn't known."""
    place = len(chain)
    while place and not proves_at_most(chain[place - 1].at, boundary.at):
        if not proves_at_most(boundary.at, chain[place - 1].at):
            return False
        place -= 1
    chain.insert(place, boundary)
    return True


def decided(
    body: Sequence[Statement], facts: _Facts, masks: Mapping[Buffer, Sequence[Less]] | None = None
) -> list[Statement]:
    """A copy of the body for iterations of which this is known, without what isn't used then.

    `masks` are registers that were computed before, and the conditions for which they are true.
    """
    values: dict[Buffer, Literal | None] = {}
    for buffer, inside in (masks or {}).items():
        holds = facts.holds(inside)
        if holds is not None:
            values[buffer] = Literal(holds, DataType.Bool)
    copied = _copied(body, facts, values)
    drop_unused_registers(copied)
    return copied


def _copied(
    body: Sequence[Statement], facts: _Facts, values: dict[Buffer, Literal | None]
) -> list[Statement]:
    result: list[Statement] = []
    for statement in body:
        match statement:
            case For():
                inner = _copied(statement.body, facts, values)
                result.append(replace(statement, body=inner))
            case Allocate():
                values[statement.buffer] = None
                result.append(statement)
            case Compute() | Reduce():
                inputs = tuple(_decided(each, facts) for each in statement.inputs)
                made = replace(statement, inputs=inputs)
                result.append(_chosen(made, values) if isinstance(made, Compute) else made)
            case _:
                result.append(statement)
    return result


def _decided(operand: Operand, facts: _Facts) -> Operand:
    if not isinstance(operand, Guarded):
        return operand
    if facts.holds(operand.inside) is False:
        return operand.otherwise
    left = tuple(condition for condition in operand.inside if condition not in facts.known)
    return replace(operand, inside=left) if left else operand.value


def _chosen(statement: Compute, values: dict[Buffer, Literal | None]) -> Compute:
    """A `where` of a known condition is a copy of what it chooses.

    `values` has the registers allocated so far, and their values where these are constants.
    """
    value, buffer = statement.inputs[0], statement.output.buffer
    if buffer in values:
        values[buffer] = value if statement.op == "set" and isinstance(value, Literal) else None
    if statement.op != "where":
        return statement
    condition = statement.inputs[0]
    if isinstance(condition, Access):
        condition = values.get(condition.buffer) or condition
    if not isinstance(condition, Literal):
        return statement
    place = 1 if condition.value else 2
    kept = (statement.inputs[place],)
    return replace(statement, op="set", inputs=kept, compute=statement.compute[place : place + 1])
