"""Takes the conditions of windows out of loops: cuts a loop where slices and pads begin and end.

Runs right after peeling, on loops whose predicates were taken out.  A cat is a sum of cases: each
element is computed by one part, and the others aren't read.  Within a part's range no case is left
to decide, so the loop there computes that part only.  The few iterations around a boundary keep all
conditions.  Targets whose threads are hardware decide by branches instead.

Before:  for j in [0, n) { for x in [0, 16) { T = a[j*16 + x] if j*16 + x < k else b[...] } }
After:   for j in [0, min(n, k // 16)) { for x in [0, 16) { T = a[j*16 + x] } }
         for j in [..., ceildiv(k, 16)) { for x in [0, 16) { T = a[...] if j*16 + x < k else b } }
         for j in [..., n) { for x in [0, 16) { T = b[...] } }
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from ..ir.bounds import proves_at_most
from ..ir.kernel import (
    Access,
    Allocate,
    Buffer,
    Compute,
    For,
    Guarded,
    Less,
    Literal,
    Operand,
    Reduce,
    Statement,
    accesses,
    walk,
)
from ..ir.scalar_queries import coefficient_of, substitute
from ..ir.scalars import (
    ZERO,
    Integer,
    IntExpr,
    Symbol,
    ceil_div,
    floor_div,
    maximum,
    maximum_value,
    minimum,
    terms_of,
)

# Each boundary adds two loops; a cat of more parts stays as it is.
_MOST_BOUNDARIES = 4


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


def split_at_windows(loop: For, checked: Sequence[Statement]) -> list[For]:
    """The loop as several, in order; itself if that isn't possible or there is nothing to gain.

    `checked` is a body for the few iterations around a boundary.
    """
    inner = frozenset(s.index for s in walk(loop.body) if isinstance(s, For))
    sides: dict[Less, _Side] = {}
    for condition in _conditions(loop.body):
        side = _side(condition, loop.index, inner)
        if side is not None:
            sides[condition] = side
    boundaries = _in_order(list({side.boundary: None for side in sides.values()}))
    if not boundaries:
        return [loop]
    result: list[For] = []
    start = loop.start
    for number in range(len(boundaries) + 1):
        passed = set(boundaries[:number])
        known = {c: (s.boundary in passed) != s.is_below for c, s in sides.items()}
        last = number == len(boundaries)
        stop = loop.stop
        if not last:
            stop = maximum(start, minimum(loop.stop, boundaries[number].low))
        result.append(replace(loop, start=start, stop=stop, body=decided(loop.body, known)))
        if not last:
            start = maximum(stop, minimum(loop.stop, boundaries[number].high))
            result.append(replace(loop, start=stop, stop=start, body=_copied(checked, {}, {})))
    return result


def _conditions(body: list[Statement]) -> dict[Less, None]:
    """The conditions of guarded operands, in order."""
    found: dict[Less, None] = {}
    for statement in walk(body):
        if isinstance(statement, Compute | Reduce):
            for operand in statement.inputs:
                if isinstance(operand, Guarded):
                    found |= dict.fromkeys(operand.inside)
    return found


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


def _part_of(expr: IntExpr, symbols: frozenset[Symbol]) -> IntExpr:
    """The terms that depend on these symbols."""
    return expr - substitute(expr, dict.fromkeys(symbols, ZERO))


def _in_order(boundaries: list[_Boundary]) -> Sequence[_Boundary]:
    """From the lowest to the highest; empty if that isn't known for all sizes, or they are many."""
    if len(boundaries) > _MOST_BOUNDARIES:
        return ()
    result: list[_Boundary] = []
    for boundary in boundaries:
        place = len(result)
        while place and not proves_at_most(result[place - 1].at, boundary.at):
            if not proves_at_most(boundary.at, result[place - 1].at):
                return ()
            place -= 1
        result.insert(place, boundary)
    return result


def decided(body: list[Statement], known: dict[Less, bool]) -> list[Statement]:
    """A copy of the body in which these conditions hold or don't, without what isn't used then."""
    values: dict[Buffer, Literal | None] = {}
    copied = _copied(body, known, values)
    _drop_unused(copied)
    return copied


def _copied(
    body: Sequence[Statement], known: dict[Less, bool], values: dict[Buffer, Literal | None]
) -> list[Statement]:
    result: list[Statement] = []
    for statement in body:
        match statement:
            case For():
                inner = _copied(statement.body, known, values)
                result.append(replace(statement, body=inner))
            case Allocate():
                values[statement.buffer] = None
                result.append(statement)
            case Compute() | Reduce():
                inputs = tuple(_decided(each, known) for each in statement.inputs)
                made = replace(statement, inputs=inputs)
                result.append(_chosen(made, values) if isinstance(made, Compute) else made)
            case _:
                result.append(statement)
    return result


def _decided(operand: Operand, known: dict[Less, bool]) -> Operand:
    if not isinstance(operand, Guarded):
        return operand
    if any(known.get(condition) is False for condition in operand.inside):
        return operand.otherwise
    left = tuple(condition for condition in operand.inside if condition not in known)
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


def _drop_unused(body: list[Statement]) -> None:
    """Removes what only writes registers of this body that nothing reads, and these."""
    while True:
        own = {s.buffer for s in walk(body) if isinstance(s, Allocate)}
        read = {
            access.buffer
            for statement in walk(body)
            for access in accesses(statement)
            if not (isinstance(statement, Compute) and access is statement.output)
        }
        if not _drop(body, own - read):
            break
    used = {access.buffer for statement in walk(body) for access in accesses(statement)}
    _drop_allocations(body, used)


def _drop_allocations(body: list[Statement], used: Collection[Buffer]) -> None:
    body[:] = [s for s in body if not (isinstance(s, Allocate) and s.buffer not in used)]
    for statement in body:
        if isinstance(statement, For):
            _drop_allocations(statement.body, used)


def _drop(body: list[Statement], unread: Collection[Buffer]) -> bool:
    changed = False
    for statement in list(body):
        if isinstance(statement, For):
            changed |= _drop(statement.body, unread)
        elif isinstance(statement, Compute) and statement.output.buffer in unread:
            if statement.is_checked:  # it may refuse an operand
                continue
            body.remove(statement)
            changed = True
    return changed
