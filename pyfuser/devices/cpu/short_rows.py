"""Rows of a few elements, one in each lane: loaded and stored as whole vectors.

    memory   a0 b0 c0 a1 b1 c1 a2 b2 c2 a3 b3 c3      (rows of 3, four lanes)
    vectors  [a0 b0 c0 a1] [b1 c1 a2 b2] [c2 a3 b3 c3]
    lanes    [a0 a1 a2 a3] [b0 b1 b2 b3] [c0 c1 c2 c3]

Elements of one place in all rows are steps apart, so each lane would be loaded by itself.  Instead,
the vectors are loaded once for all places, and shuffled; longer rows are loaded by a mask, as the
rows of a square that is transposed.  So are rows that don't follow each other in memory, of which a
loop takes every place.  Stores wait until all places of the rows are there.  Where only the first
lanes have a row, the memory of these is loaded and stored by masks.  Rows of more places than a
vector has lanes are loaded and stored in groups of places, if a schedule asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from ...dtypes import size_in_bytes
from ...ir.domains import ParallelType
from ...ir.kernel import Access, Buffer, Compute, For, Reduce, Statement, TensorParameter
from ...ir.kernel_queries import accesses, written
from ...ir.scalar_functions import minimum
from ...ir.scalar_queries import coefficient_of
from ...ir.scalars import ONE, ZERO, Integer, IntExpr, from_terms, terms_of
from .conversions import storage_type
from .llvm_types import LLVMType
from .llvm_writer import Value
from .transposition import transposed

if TYPE_CHECKING:
    from .memory_access import MemoryAccess

MOST_PLACES = 16  # of a row
# So many are written out in groups of those, if a schedule asks for it.
MOST_WRITTEN_OUT = 64
# Longer rows are transposed: shuffling takes the square of their length.
MOST_SHUFFLED = 4
# So are rows that are apart, unless they are shorter: a gather for each place takes less.
_LEAST_APART = 3


def split_evenly(start: int, stop: int, most: int) -> list[range]:
    """The places in groups of at most `most`: as few as can be, of as many each, or one less."""
    count = -(-(stop - start) // most)
    ends = [start + (stop - start) * number // max(count, 1) for number in range(count + 1)]
    return [range(a, b) for a, b in pairwise(ends)]


def _lengths(parameter: TensorParameter) -> list[int]:
    """The lengths of the rows in memory of a tensor's innermost axis, of that and the next, ..."""
    axes = {
        stride.value: size
        for size, stride in zip(parameter.sizes, parameter.strides, strict=True)
        if isinstance(stride, Integer) and size is not ONE
    }
    found, elements = list[int](), 1
    while isinstance(size := axes.get(elements), Integer) and size.value > 1:
        elements *= size.value
        found.append(elements)
    return found


def whole_rows(
    loop: For, lane_loops: Iterable[For], *, has_masks: bool
) -> tuple[bool, frozenset[IntExpr]]:
    """Whether a loop is over places of rows that lanes have, which are loaded and stored together.

    And the indices by which it goes over all places: the rows then have all these elements.  Other
    rows are known to have them only if they follow each other.
    """
    start, stop = loop.start, loop.stop
    most = _most_places(loop)
    if not isinstance(start, Integer) or not isinstance(stop, Integer) or stop.value > most:
        return False, frozenset()
    may_be_apart = has_masks and start is ZERO and stop.value >= _LEAST_APART
    follow, found = False, set[IntExpr]()
    for lanes in lane_loops:
        for statement in lanes.body:
            for access in accesses(statement):
                if coefficient_of(access.index, loop.index) is not ONE:
                    continue
                step = coefficient_of(access.index, lanes.index)
                if step in (None, ZERO, ONE):
                    continue
                follow |= isinstance(step, Integer) and stop.value <= step.value <= most
                if may_be_apart and _is_direct(access, statement, loop):
                    found.add(access.index)
    return follow or bool(found), frozenset(found)


def _most_places(loop: For) -> int:
    return MOST_WRITTEN_OUT if loop.parallel_type is ParallelType.unroll else MOST_PLACES


def _is_direct(access: Access, statement: Statement, loop: For) -> bool:
    """True if a statement accesses the element in every iteration of a loop."""
    if not isinstance(statement, Compute | Reduce):
        return False
    limits = (side for less in statement.predicate for side in (less.a, less.b))
    is_always = all(loop.index not in side.symbols for side in limits)
    return is_always and any(access is each for each in (*written(statement), *statement.inputs))


@dataclass(slots=True, frozen=True)
class _Place:
    """A place in rows: where the first lane's row starts, how long they are and how far apart."""

    start: IntExpr
    number: int
    length: int
    step: IntExpr

    @property
    def is_transposed(self) -> bool:
        """True if the rows are those of a square, not shuffled."""
        return self.length > MOST_SHUFFLED or self.step is not Integer.of(self.length)

    def row(self, number: int) -> IntExpr:
        """Where a lane's row starts."""
        return self.start + self.step * number


@dataclass(slots=True)
class _Rows:
    """Stores that wait: values by their place in the rows, and how to store each by itself."""

    access: Access
    place: _Place
    count: IntExpr | None  # of the rows there are; None: one for each lane
    values: dict[int, Value] = field(default_factory=dict)
    alone: list[Callable[[], None]] = field(default_factory=list)


class ShortRows:
    """The rows of one phase that lanes share."""

    def __init__(self, memory: MemoryAccess) -> None:
        self.memory, self.writer, self.scopes = memory, memory.writer, memory.scopes
        self._waiting: dict[tuple[Buffer, IntExpr, IntExpr, IntExpr | None], _Rows] = {}
        self._loop: tuple[For, range] | None = None
        self._whole = frozenset[IntExpr]()

    @contextmanager
    def over_places(self, loop: For, places: range, whole: frozenset[IntExpr]) -> Iterator[None]:
        """Some places of a loop over those of rows, and the indices by which it takes them all."""
        saved = self._loop, self._whole
        self._loop, self._whole = (loop, places), whole
        yield
        self._loop, self._whole = saved

    def load(
        self, access: Access, index: IntExpr, step: IntExpr, lanes: int, active: Value | None
    ) -> Value | None:
        """The elements `step` apart from `index` on, as stored; None if not of whole rows."""
        found = self._place(access, index, step, lanes)
        if found is None or not self.memory.has_masks(access, active):
            return None
        count = self._count(active)
        type_ = storage_type(access.buffer.dtype, lanes)
        shape = ("row", access.buffer, found.start, found.step, found.length, lanes, count)
        keys = [(*shape, number) for number in range(found.length)]
        if self.scopes.known(keys[0]) is None:
            make = self._columns if found.is_transposed else self._vectors
            made = zip(keys, make(access, found, type_, count), strict=False)
            self.scopes.open[-1].others |= dict(made)
        if found.is_transposed:
            return self.scopes.known(keys[found.number])
        vectors = [vector for key in keys if (vector := self.scopes.known(key)) is not None]
        return self.every(vectors, found.number, found.length)

    def every(self, vectors: Sequence[Value], first: int, step: int) -> Value:
        """Every element that is `step` (at least 2) after the one before, from vectors in order."""
        lanes = vectors[0].type.lanes
        places = [divmod(first + step * lane, lanes) for lane in range(lanes)]
        (start, _), (last, _) = places[0], places[-1]
        made = vectors[start]
        for number in range(start + 1, last + 1):
            chosen = [
                lanes + place if vector == number else lane if number > start + 1 else place
                for lane, (vector, place) in enumerate(places)
            ]
            made = self.writer.shufflevector(made, vectors[number], chosen)
        return made

    def store(
        self,
        access: Access,
        index: IntExpr,
        step: IntExpr,
        value: Value,
        active: Value | None,
        alone: Callable[[], None],
    ) -> bool:
        """Takes the store of a place of all lanes' rows; False if it isn't in whole rows.

        `alone` stores it if another place never comes.
        """
        found = self._place(access, index, step, value.type.lanes)
        if found is None or not self.memory.has_masks(access, active):
            return False
        if found.is_transposed and self.memory.has_slow_masks:
            return False
        count = self._count(active)
        key = (access.buffer, found.start, found.step, count)
        rows = self._waiting.setdefault(key, _Rows(access, found, count))
        if found.number in rows.values:
            self._emit(self._waiting.pop(key))
            rows = self._waiting[key] = _Rows(access, found, count)
        rows.values[found.number] = value
        rows.alone.append(alone)
        if len(rows.values) == found.length:
            self._emit(self._waiting.pop(key))
        return True

    def _count(self, active: Value | None) -> IntExpr | None:
        return None if active is None else self.memory.bounds[active.name]

    def flush(self) -> None:
        """Stores what waits."""
        waiting, self._waiting = self._waiting, {}
        for rows in waiting.values():
            self._emit(rows)

    def _emit(self, rows: _Rows) -> None:
        length = rows.place.length
        if len(rows.values) < length:
            for store in rows.alone:
                store()
            return
        values = [rows.values[place] for place in range(length)]
        lanes = values[0].type.lanes
        if not rows.place.is_transposed:
            for number in range(length):
                self._store(rows, number, self._mixed(values, number))
            return
        w, alignment = self.writer, size_in_bytes(rows.access.buffer.dtype)
        square = [*values, *[w.undefined(values[0].type)] * (lanes - length)]
        for number, row in enumerate(transposed(w, square)):
            pointer = self.memory.address(rows.access, rows.place.row(number))
            mask = self._row(length, lanes, number, rows.count)
            w.masked_store(row, pointer, mask, alignment)

    def _store(self, rows: _Rows, number: int, vector: Value) -> None:
        """Stores one of the vectors of memory that have the rows."""
        lanes, length = vector.type.lanes, rows.place.length
        start = rows.place.start + lanes * number
        if rows.count is None:
            self.memory.store_vector(rows.access, start, vector)
            return
        mask = self.memory.lanes_below(rows.count * length - lanes * number, lanes)
        self.memory.store_masked(rows.access, start, vector, mask)

    def _mixed(self, values: Sequence[Value], number: int) -> Value:
        """A vector of memory, from the lanes of all places."""
        lanes, length = values[0].type.lanes, len(values)
        places = [number * lanes + lane for lane in range(lanes)]
        made = values[0]
        for place in range(1, length):
            chosen = [
                lanes + p // length if p % length == place else (lane if place > 1 else p // length)
                for lane, p in enumerate(places)
            ]
            made = self.writer.shufflevector(made, values[place], chosen)
        return made

    def _place(self, access: Access, index: IntExpr, step: IntExpr, lanes: int) -> _Place | None:
        """The place in the lanes' rows of what is accessed; None if it isn't in whole rows."""
        if access.buffer not in self.memory.parameters:
            return None
        return self._in_whole_rows(access, index, step, lanes) or self._in_rows_apart(
            access, index, step, lanes
        )

    def _in_whole_rows(
        self, access: Access, index: IntExpr, step: IntExpr, lanes: int
    ) -> _Place | None:
        """The place in rows that follow each other in memory."""
        together = min(lanes, MOST_PLACES)
        most = together if self._loop is None else max(together, _most_places(self._loop[0]))
        if not isinstance(step, Integer) or not 2 <= step.value <= most:
            return None
        length = step.value
        if length > MOST_SHUFFLED and self.memory.has_slow_masks and access.buffer.bytes_each < 4:
            return None
        if length not in _lengths(self.memory.parameters[access.buffer]):
            return None
        terms = dict(terms_of(self.scopes.resolve(index)))
        constant = terms.pop((), 0)
        if any(coefficient % length for coefficient in terms.values()):
            return None
        place = constant % length
        group = next(g for g in split_evenly(0, length, together) if place in g)
        if len(group) < length and (len(group) < _LEAST_APART or self.memory.has_slow_masks):
            return None
        terms[()] = constant - place + group.start
        return _Place(from_terms(terms), place - group.start, len(group), step)

    def _in_rows_apart(
        self, access: Access, index: IntExpr, step: IntExpr, lanes: int
    ) -> _Place | None:
        """The place in rows of which the loop takes every one."""
        if self._loop is None or self.memory.has_slow_masks or access.index not in self._whole:
            return None
        loop, places = self._loop
        number = self.scopes.constants.get(loop.index)
        if not isinstance(number, Integer) or not _LEAST_APART <= len(places) <= lanes:
            return None
        place = number.value - places.start
        return _Place(index - place, place, len(places), step)

    def _vectors(
        self, access: Access, place: _Place, type_: LLVMType, count: IntExpr | None
    ) -> Sequence[Value]:
        """The vectors of memory that have the rows."""
        w, lanes, alignment = self.writer, type_.lanes, size_in_bytes(access.buffer.dtype)
        length = place.length
        firsts = [lanes * number for number in range(length)]
        pointers = [self.memory.address(access, place.start + first) for first in firsts]
        if count is None:
            return [w.load(type_, pointer, alignment) for pointer in pointers]
        masks = [self.memory.lanes_below(count * length - first, lanes) for first in firsts]
        pairs = zip(pointers, masks, strict=True)
        return [w.masked_load(type_, pointer, mask, alignment) for pointer, mask in pairs]

    def _columns(
        self, access: Access, place: _Place, type_: LLVMType, count: IntExpr | None
    ) -> Sequence[Value]:
        """The places of rows of more elements, one vector each."""
        w, lanes, alignment = self.writer, type_.lanes, size_in_bytes(access.buffer.dtype)
        rows = [
            w.masked_load(
                type_,
                self.memory.address(access, place.row(number)),
                self._row(place.length, lanes, number, count),
                alignment,
            )
            for number in range(lanes)
        ]
        return transposed(w, rows)

    def _row(self, length: int, lanes: int, number: int, count: IntExpr | None) -> Value:
        """The mask of a row's elements: no lane if there are fewer than `number` + 1 rows."""
        if count is None:
            return self.memory.lanes_below(Integer.of(length), lanes)
        # length * 1 or less than 1: 0 lanes for the rows that aren't there
        return self.memory.lanes_below(minimum((count - number) * length, length), lanes)
