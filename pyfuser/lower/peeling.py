"""Takes predicates out of loops: separates the iterations that need them from those that don't.

Runs last in lowering.  For a predicate `a < b` with `a` growing in the loop index, the iterations
below a bound satisfy it whatever the inner loops do.  The loop is cut at that bound, and the first
part loses the predicate.  The rest of the range (at most the last iterations) keeps it.

Before:  for j in [0, ceildiv(n, 64)) { for x in [0, 64) { ... if j*64 + x < n } }
After:   for j in [0, n // 64) { for x in [0, 64) { ... } }
         for j in [n // 64, ceildiv(n, 64)) { for x in [0, 64) { ... if j*64 + x < n } }
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ..ir.domains import ParallelType
from ..ir.kernel import (
    Access,
    Allocate,
    Buffer,
    Compute,
    For,
    If,
    Initialise,
    Less,
    Reduce,
    Scan,
    Scatter,
    Statement,
)
from ..ir.kernel_queries import accesses, walk
from ..ir.scalar_functions import maximum, minimum
from ..ir.scalar_queries import coefficient_of, substitute
from ..ir.scalars import (
    ONE,
    ZERO,
    IntExpr,
    Mod,
    Symbol,
    Xor,
    ceil_div,
    floor_div,
    maximum_value,
    terms_of,
)
from ..ir.schedule import MemoryType
from .windows import Surroundings, has_threads, indices_in, split_at_windows


def _predicates(body: list[Statement]) -> list[Less]:
    found: dict[Less, None] = {}
    for statement in walk(body):
        if isinstance(statement, Compute | Reduce | Scan | Scatter):
            for condition in statement.predicate:
                found[condition] = None
    return list(found)


def _safe_bound(condition: Less, loop: For) -> IntExpr | None:
    """Below this value of the loop index the condition always holds; None if there is none.

    A condition that doesn't depend on the index either holds for all iterations or has to be
    checked in all of them: the bound is the stop, or 0.
    """
    coefficient = coefficient_of(condition.a, loop.index)
    if coefficient is None or any(c < 0 for _, c in terms_of(coefficient)):
        return None
    rest = Less(condition.a - coefficient * loop.index, condition.b)
    largest = _largest(rest, indices_in(loop.body))
    if largest is None or loop.index in condition.b.symbols:
        return None
    if coefficient is ZERO:
        return loop.stop * minimum(maximum(condition.b - largest, ZERO), ONE)
    # coefficient * index + largest < b  <=>  index < ceil((b - largest) / coefficient)
    numerator = condition.b - largest - 1 + coefficient
    if any(c < 0 for _, c in terms_of(numerator)):
        numerator = maximum(numerator, ZERO)
    return floor_div(numerator, coefficient)


def _copy(body: list[Statement], keep: Callable[[Less], bool]) -> list[Statement]:
    """The body without the predicates that `keep` rejects."""
    copied: list[Statement] = []
    for statement in body:
        match statement:
            case For():
                inner = _copy(statement.body, keep)
                copied.append(replace(statement, body=inner))
            case Compute() | Reduce() | Scan() | Scatter():
                predicate = tuple(filter(keep, statement.predicate))
                copied.append(replace(statement, predicate=predicate))
            case _:
                copied.append(statement)
    return copied


def _innermost_serial(loop: For) -> bool:
    """True if no serial loop inside this one could be cut instead."""
    return not any(
        isinstance(s, For) and s.parallel_type in (ParallelType.serial, ParallelType.unswitch)
        for s in walk(loop.body)
    )


def peel(
    body: list[Statement], at_windows: bool = False, surroundings: Surroundings | None = None
) -> list[Statement]:
    """Trims serial loops to the iterations that have an effect, and cuts those right outside
    unrolled and vectorised loops; these also where windows begin and end, if `at_windows`.
    """
    result: list[Statement] = []
    around = surroundings or Surroundings()
    for statement in body:
        if not isinstance(statement, For):
            around = around.after(statement)
            result.append(statement)
            continue
        serial = statement.parallel_type in (ParallelType.serial, ParallelType.unswitch)
        if serial and _innermost_serial(statement):
            parts = _by_outer_conditions(statement) if at_windows else _cut(statement)
            result += _at_windows(parts, around) if at_windows else parts
        else:
            if serial:
                statement = _trimmed(statement)
            statement.body = peel(statement.body, at_windows, around.within(statement))
            result.append(statement)
    return result


def _at_windows(parts: list[Statement], around: Surroundings) -> list[Statement]:
    """The parts of a loop, those without predicates in parts of their own."""
    result: list[Statement] = []
    for part in parts:
        match part:
            case For() if not _predicates(part.body):
                result += split_at_windows(part, _compact(part.body), around)
            case If():
                body, otherwise = (_at_windows(p, around) for p in (part.body, part.otherwise))
                result.append(If(part.predicate, body, otherwise))
            case _:
                result.append(part)
    return result


def _by_outer_conditions(loop: For) -> list[Statement]:
    """The loop, cut; or twice, if all its iterations have the same predicates: these are tested
    before it.
    """
    inner, predicates = indices_in(loop.body), _predicates(loop.body)
    common: dict[Less, None] = {}
    for condition in predicates:
        largest = _largest(condition, inner)
        is_common = loop.index not in condition.a.symbols | condition.b.symbols
        if not is_common or largest is None or has_threads(largest, condition.b):
            return _cut(loop)
        common[Less(largest, condition.b)] = None
    if not predicates:
        return _cut(loop)
    bare = replace(loop, body=_copy(loop.body, lambda condition: False))
    return [If(tuple(common), [bare], [_checked(loop, loop.start)])]


def _largest(condition: Less, inner: frozenset[Symbol]) -> IntExpr | None:
    """The largest value, over the inner loops, of the side of a condition that must be less."""
    if condition.b.symbols & inner or any(c < 0 for _, c in terms_of(condition.a)):
        return None
    side = condition.a
    return maximum_value(side, only=inner) if side.symbols & inner else side


def _compact(body: list[Statement]) -> list[Statement]:
    """The body with loops instead of unrolled code: it runs for the last elements only.

    Loops whose index addresses registers stay unrolled.
    """
    copied = _copy(body, lambda condition: True)
    addressing: set[Symbol] = set()
    for statement in walk(copied):
        for access in accesses(statement):
            if access.buffer.memory is not MemoryType.global_:
                addressing |= access.index.symbols
    loops = [statement for statement in walk(copied) if isinstance(statement, For)]
    for loop in loops:
        if loop.parallel_type is ParallelType.unroll and loop.index not in addressing:
            loop.parallel_type = ParallelType.serial
            _trimmed(loop)
    return copied


def _cut(loop: For) -> list[Statement]:
    bounds: dict[IntExpr, list[Less]] = {}
    for condition in _predicates(loop.body):
        bound = _safe_bound(condition, loop)
        # Threads must agree on where a loop is cut: it may hold a barrier or a block reduction.
        if bound is not None and not has_threads(bound):
            bounds.setdefault(bound, []).append(condition)
    if not bounds:
        return [loop]
    limit: IntExpr = loop.stop
    for bound in bounds:
        limit = minimum(limit, bound)
    dropped = {condition for conditions in bounds.values() for condition in conditions}
    fast = replace(
        loop,
        stop=limit,
        body=_copy(loop.body, lambda c: c not in dropped),
        is_conditional=any(loop.index not in c.a.symbols for c in dropped),
    )
    return [fast, _checked(loop, limit)]


def _checked(loop: For, start: IntExpr) -> For:
    """The iterations from `start` on, with all predicates."""
    checked = _trimmed(replace(loop, start=start, body=_compact(loop.body)))
    if _has_unrolled(checked.body):  # a tile: most of the last ones are whole
        checked.body = peel(checked.body)
    return checked


def _has_unrolled(body: list[Statement]) -> bool:
    return any(isinstance(s, For) and s.parallel_type is ParallelType.unroll for s in walk(body))


def _trimmed(loop: For) -> For:
    """The loop without the iterations in which a condition of all its statements never holds, and
    without the conditions that hold in all remaining iterations.
    """
    common = _common_conditions(loop.body)
    inner = dict.fromkeys(indices_in(loop.body), ZERO)
    implied: set[Less] = set()
    for condition in common:
        coefficient = coefficient_of(condition.a, loop.index)
        positive = all(c > 0 for _, c in terms_of(condition.a))
        if coefficient is None or coefficient is ZERO or not positive:
            continue
        if condition.b.symbols & (set(inner) | {loop.index}):
            continue
        rest = condition.a - coefficient * loop.index
        least = substitute(rest, inner)
        # Threads must agree on where a loop ends, just as on where it is cut.
        if _may_wrap(rest, inner) or has_threads(least):
            continue
        if loop.stop is not ceil_div(condition.b - least, coefficient):
            numerator = maximum(condition.b - least - 1 + coefficient, ZERO)
            loop.stop = minimum(loop.stop, floor_div(numerator, coefficient))
        if rest.symbols.isdisjoint(inner):
            implied.add(condition)
    if implied:
        loop.body = _copy(loop.body, lambda c: c not in implied)
    return loop


def _may_wrap(expr: IntExpr, inner: Mapping[Symbol, IntExpr]) -> bool:
    """True if the expression may be less at other values of `inner` than at zeros."""
    if expr.symbols.isdisjoint(inner):
        return False
    if isinstance(expr, Mod | Xor):
        return substitute(expr, inner) is not ZERO
    return any(_may_wrap(part, inner) for part in expr.parts())


def _common_conditions(body: list[Statement]) -> list[Less]:
    """The conditions without which nothing in a body has an effect outside it.

    The body's own partial results hold the identity where nothing was added to them, so adding them
    has no effect either.  A body that only fills buffers has its effect in them.
    """
    own = {s.buffer for s in walk(body) if isinstance(s, Allocate)}
    common: list[Less] | None = None
    of_buffers: list[Less] | None = None
    of_partials: dict[tuple[Buffer, str], set[Less]] = {}
    for statement in walk(body):
        match statement:
            case Compute():
                effective = statement.output.buffer.memory is MemoryType.global_
                if not effective and statement.output.buffer not in own:
                    known = list(statement.predicate)
                    of_buffers = [c for c in known if of_buffers is None or c in of_buffers]
            case Reduce() | Initialise():
                effective = any(o.buffer not in own for o in statement.outputs)
                if isinstance(statement, Reduce) and not effective:
                    needed = _needed(statement, of_partials)
                    for output in statement.outputs:
                        key = (output.buffer, statement.op)
                        of_partials[key] = of_partials.get(key, set(needed)) & set(needed)
            case Scan():
                is_global = statement.output.buffer.memory is MemoryType.global_
                effective = is_global or statement.running.buffer not in own
            case Scatter():
                effective = True
            case _:
                continue
        if effective:
            known = _needed(statement, of_partials)
            common = [c for c in known if common is None or c in common]
    return (of_buffers if common is None else common) or []


def _needed(
    statement: Compute | Reduce | Initialise | Scan | Scatter,
    of_partials: Mapping[tuple[Buffer, str], set[Less]],
) -> list[Less]:
    """The conditions of a statement, and those of the partial results it adds."""
    known = list(statement.predicate)
    if isinstance(statement, Reduce) and len(statement.inputs) == 1:
        (value,) = statement.inputs
        if isinstance(value, Access):
            known += sorted(of_partials.get((value.buffer, statement.op), ()), key=str)
    return known
