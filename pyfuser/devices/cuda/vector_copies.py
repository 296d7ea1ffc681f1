"""Vectorized loops as vector loads and stores.

A vectorize loop that copies consecutive elements between memory and registers -> one call of
`load_contiguous` or `store_contiguous` (memory.cuh), which use vectors if the address is
aligned.  If the loop has a predicate, or reads through a window, the call runs where all elements
are in bounds, and the loop itself runs otherwise; vectors outside of the window are filled.  A
vector that an index points at is one of its row.  `spread_contiguous` stores the elements of a
vector that it loads apart from each other, in a thread's part of shared memory.  Any other
vectorize loop is just unrolled.

Where vectors are known to be aligned (alignment.py), `load_aligned`, `store_aligned` and
`spread_aligned` don't test their addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd

from ...dtypes import size_in_bytes
from ...ir.domains import ParallelType
from ...ir.kernel import (
    Access,
    Compute,
    For,
    Gathered,
    Guarded,
    Less,
    Literal,
    Operand,
    Predicate,
    Statement,
)
from ...ir.kernel_queries import operand_sizes, operands, walk
from ...ir.scalar_queries import coefficient_of, substitute
from ...ir.scalars import ONE, ZERO, Integer, IntExpr, Max, Min, Symbol, terms_of
from ...ir.schedule import MemoryType
from .alignment import Alignment
from .expressions import (
    THREAD_COUNT,
    access_text,
    gathered_text,
    is_private_array,
    operand_text,
)
from .spelling import condition_text, index_text

VECTOR_BYTES = 16  # of a thread's widest load or store


@dataclass(frozen=True, slots=True)
class VectorCopy:
    """A call of `name`, and the conditions under which all of its elements are in bounds.

    `inside` are those under which it reads no element that is filled instead, `partly` those
    without which all are: each is then `fill`, the statement of the loop.  `alignments` are
    conditions under which the address is aligned, in all threads and iterations alike; None if
    there are no such conditions.  `edges` are those under which no vector is partly inside.
    """

    name: str  # "load", "store", or "spread" into a thread's part of shared memory
    length: int
    to: str
    start: str
    conditions: tuple[Less, ...]
    inside: tuple[Less, ...]
    partly: tuple[Less, ...]
    fill: Compute
    alignments: tuple[Alignment, ...] | None
    edges: tuple[Alignment, ...] | None

    def text(self, is_aligned: bool) -> str:
        """The call; `is_aligned` if the conditions on the address are known to hold."""
        kind = "aligned" if is_aligned and self.alignments is not None else "contiguous"
        return f"{self.name}_{kind}<{self.length}>({self.to}, {self.start});"

    def text_or_filled(self, conditions: Sequence[Less]) -> str:
        """A load from an aligned address where all conditions hold, else `fill`."""
        tests = " && ".join(map(condition_text, conditions))
        filled = operand_text(self.fill.inputs[0], self.fill.output.buffer.dtype)
        return f"load_aligned_or<{self.length}>({self.to}, {tests}, {self.start}, {filled});"


def vector_copy(loop: For) -> VectorCopy | None:
    """The copy that a loop performs, or None for a loop that isn't a contiguous copy."""
    if loop.parallel_type is not ParallelType.vectorize or not isinstance(loop.stop, Integer):
        return None
    match loop.body:
        case [Compute(op="set", output=output, inputs=(operand,)) as statement]:
            if statement.cache_op:  # each element has its own load, with the cache operator
                return None
            found = _source(operand)
        case _:
            return None
    if found is None:
        return None
    source, inside = found
    conditions = _whole(statement.predicate, loop.index, loop.stop)
    inside_ = _whole(inside, loop.index, loop.stop)
    partly = _whole(inside, loop.index, loop.stop, of_any=True)
    if (
        conditions is None
        or inside_ is None
        or partly is None
        or output.buffer.dtype is not source.buffer.dtype
    ):
        return None
    to, start = _address(output, loop.index), _address(source, loop.index)
    if to is None or start is None or is_private_array(source.buffer):
        return None
    is_local = [a.buffer.memory is MemoryType.local for a in (output, source)]
    if is_local[0] == is_local[1]:
        return None
    if isinstance(operand, Gathered):
        if not is_local[0] or _depends(operand, loop.index):
            return None
        at_first = Access(source.buffer, substitute(operand.access.index, {loop.index: ZERO}))
        start = f"&{gathered_text(replace(operand, access=at_first))}"
    name, memory = ("load", source) if is_local[0] else ("store", output)
    if is_private_array(output.buffer):
        if inside_ or isinstance(operand, Gathered):
            return None
        first = Access(output.buffer, substitute(output.index, {loop.index: ZERO}))
        name, to = "spread", f"&{access_text(first)}, {THREAD_COUNT}"
    length = loop.stop.value
    alignments = _alignments(memory, loop.index, length)
    filled = operand.otherwise if isinstance(operand, Guarded) else operand
    fill = replace(statement, inputs=(filled,), predicate=())
    edges = edges_of(inside, loop.index, length)
    if not (is_local[0] and isinstance(filled, Literal)):  # it would need the predicate
        partly = ()
    return VectorCopy(
        *(name, length, to, start), conditions, inside_, partly, fill, alignments, edges
    )


def _source(operand: Operand) -> tuple[Access, Predicate] | None:
    """(what an operand reads, the conditions under which it does); None if it computes something.

    The element that an index points at is anywhere, a multiple of a stride away from the first.
    """
    match operand:
        case Access():
            return operand, ()
        case Guarded(value=Access() as value, inside=inside):
            return value, inside
        case Gathered(access=access, stride=stride):
            return Access(access.buffer, access.index + _ANY * stride), ()
        case _:
            return None


_ANY = Symbol.of("any", Integer.of(1 << 31))


def _depends(operand: Gathered, index: Symbol) -> bool:
    """True if the position, or the source's shape, depends on an index."""
    parts = [operand.stride, operand.extent]
    parts += [each.index for each in operands((operand.position,)) if isinstance(each, Access)]
    parts += operand_sizes((operand.position,))
    return any(index in part.symbols for part in parts)


def alignments(body: list[Statement]) -> list[Alignment]:
    """The conditions under which vectors of a body are aligned in all threads and iterations."""
    copies = _copies(body)
    found = [a for copy in copies for a in (*(copy.alignments or ()), *(copy.edges or ()))]
    found += [a for loop in _loops(body) for a in with_whole_windows(loop)[1]]
    return list(dict.fromkeys(found))


def has_edges(body: list[Statement]) -> bool:
    """True if some vector of a body may be partly out of bounds."""
    return any(copy.conditions for copy in _copies(body))


def _copies(body: list[Statement]) -> list[VectorCopy]:
    return [copy for copy in map(vector_copy, _loops(body)) if copy is not None]


def _loops(body: list[Statement]) -> list[For]:
    return [each for each in walk(body) if isinstance(each, For)]


def _alignments(access: Access, index: Symbol, length: int) -> tuple[Alignment, ...] | None:
    """See VectorCopy: of the buffer, and of the sizes and strides by which indices are multiplied.

    A part of the index that is no multiple of the vector is one of a size that has to be.  Arrays
    in shared memory are aligned for all vectors.
    """
    buffer, each = access.buffer, size_in_bytes(access.buffer.dtype)
    width = min(length, VECTOR_BYTES // each)
    is_shared = buffer.memory is MemoryType.shared
    conditions = [] if is_shared else [Alignment(buffer, width * each)]
    sizes = _multiples(substitute(access.index, {index: ZERO}), width)
    return None if sizes is None else tuple(dict.fromkeys([*conditions, *sizes]))


def _multiples(expr: IntExpr, width: int) -> list[Alignment] | None:
    """Conditions under which an expression is a multiple of a number; None if there are none."""
    found = []
    for monomial, coefficient in terms_of(expr):
        if coefficient % width == 0:
            continue
        divisor = width // gcd(width, coefficient)
        sizes = [atom for atom in monomial if isinstance(atom, Symbol) and atom.upper is None]
        if sizes:
            found.append(Alignment(tuple(sizes), divisor))
            continue
        bound = next((atom for atom in monomial if isinstance(atom, Min | Max)), None)
        sides = () if bound is None else (bound.a, bound.b)
        parts = [_multiples(side, divisor) for side in sides]
        if bound is None or None in parts:
            return None
        found += [each for part in parts for each in part or ()]
    return found


def edges_of(inside: Predicate, index: Symbol, length: int) -> tuple[Alignment, ...] | None:
    """Conditions under which a window contains all elements of a vector or none, so that its first
    one tells; None if there are no such conditions.

    a < b holds as long as b - a, which decreases or increases by one from element to element, is
    positive: from a multiple of the length on, or from one more.
    """
    found: list[Alignment] = []
    for condition in inside:
        left = condition.b - condition.a
        growth = coefficient_of(left, index)
        if growth is ZERO:
            continue
        if not isinstance(growth, Integer) or abs(growth.value) != 1:
            return None
        first = substitute(left, {index: ZERO}) - (ONE if growth is ONE else ZERO)
        sizes = _multiples(first, length)
        if sizes is None:
            return None
        found += sizes
    return tuple(dict.fromkeys(found))


def with_whole_windows(loop: For) -> tuple[For, list[Alignment]]:
    """A loop of constant length, in which one test tells whether its elements are in a window, and
    the conditions under which it does.
    """
    found: list[Alignment] = []
    if not isinstance(loop.stop, Integer) or loop.start is not ZERO:
        return loop, found
    length = loop.stop.value

    def of_all(operand: Operand) -> Operand:
        edges = None
        if isinstance(operand, Guarded) and not isinstance(operand.value, Access):
            edges = edges_of(operand.inside, loop.index, length)
        if edges is None or not isinstance(operand, Guarded):
            return operand
        found.extend(edges)
        first = {loop.index: ZERO}
        inside = (Less(substitute(c.a, first), substitute(c.b, first)) for c in operand.inside)
        return replace(operand, inside=tuple(inside))

    body = [
        replace(each, inputs=tuple(map(of_all, each.inputs))) if isinstance(each, Compute) else each
        for each in loop.body
    ]
    return replace(loop, body=body), list(dict.fromkeys(found))


def _address(access: Access, index: Symbol) -> str | None:
    """The address of element 0, or None if the elements aren't consecutive."""
    if coefficient_of(access.index, index) is not ONE:
        return None
    first = substitute(access.index, {index: ZERO})
    name = access.buffer.name
    return name if first is ZERO else f"&{name}[{index_text(first)}]"


def _whole(
    predicate: Predicate, index: Symbol, stop: IntExpr, of_any: bool = False
) -> Predicate | None:
    """The predicate at the index where it is strictest, each condition at the one where it holds
    first for `of_any`; None if this isn't known.
    """
    conditions = []
    for condition in predicate:
        growth = coefficient_of(condition.a - condition.b, index)
        if not isinstance(growth, Integer):
            return None
        strictest = {index: stop - 1 if (growth.value >= 0) is not of_any else ZERO}
        conditions.append(
            Less(substitute(condition.a, strictest), substitute(condition.b, strictest))
        )
    return tuple(conditions)
