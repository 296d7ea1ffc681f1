"""Stores past the caches, for outputs that don't fit in them: memory isn't read to be overwritten.

Vectors are collected until the unrolled loops around them are done, and those of one row, which
follow each other in memory, are written together.  Where several rows take turns, each must get
whole cache lines: the processor has few buffers in which a line can wait for the rest of it.  One
test of the launch's flag chooses between both ways to store.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from ...dtypes import size_in_bytes
from ...ir.kernel import Access, Buffer
from ...ir.scalars import Integer, IntExpr, Symbol, product, terms_of
from .llvm_writer import HALF, I64, FunctionWriter, Value
from .scopes import Scopes, split_constant

_VECTOR_BYTES = (16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class _Row:
    """Where vectors follow each other: `start` + a constant; all steps of the loops around them."""

    buffer: Buffer
    start: IntExpr
    steps: tuple[IntExpr, ...]


@dataclass(frozen=True, slots=True)
class _Vector:
    """A store that waits, so many elements after the start of its row.

    Past the caches it goes in pieces, so that rows needn't be multiples of the whole.
    """

    offset: int
    value: Value
    pointer: Value
    pieces: int = 1

    @property
    def lanes(self) -> int:
        """Of all pieces."""
        return self.value.type.lanes

    @property
    def lanes_each(self) -> int:
        """Of one piece."""
        return self.lanes // self.pieces

    @property
    def bytes_each(self) -> int:
        """Of one piece."""
        return self.lanes_each * self.value.type.bits // 8


class StreamingStores:
    """The stores that wait.  `flag` is the launch's; `multiples` are its conditions.

    Each is (step, count): a step in elements that must be a multiple of this count.
    """

    def __init__(self, writer: FunctionWriter, scopes: Scopes, line_bytes: int) -> None:
        self.writer, self.scopes, self.line_bytes = writer, scopes, line_bytes
        self.flag: Value | None = None
        self.multiples: dict[tuple[IntExpr, int], None] = {}
        self.buffers: set[Buffer] = set()  # those that are written past the caches row by row
        self._rows: dict[_Row, list[_Vector]] = {}

    def add(
        self, access: Access, index: IntExpr, value: Value, pointer: Value, pieces: int = 1
    ) -> bool:
        """Takes the store of a vector to an output; False if it can't be aligned."""
        start, offset = split_constant(self.scopes.resolve(index))
        vector, steps = _Vector(offset, value, pointer, pieces), self._steps(start)
        if vector.bytes_each not in _VECTOR_BYTES or offset % vector.lanes_each or steps is None:
            return False
        self._rows.setdefault(_Row(access.buffer, start, steps), []).append(vector)
        return True

    def _steps(self, start: IntExpr) -> tuple[IntExpr, ...] | None:
        """What each loop and each size adds to a row's start; None if a loop adds something else
        than multiples."""
        loops = {symbol for symbol, level in self.scopes.level_of.items() if level > 0}
        steps: list[IntExpr] = []
        for monomial, coefficient in terms_of(start):
            outside: list[IntExpr | int] = []
            for atom in monomial:
                if isinstance(atom, Symbol) and atom in loops:
                    continue
                if atom.symbols & loops:
                    return None
                outside.append(atom)
            steps.append(product(outside) * coefficient)
        return tuple(steps)

    def flush(self) -> None:
        """Writes what waits, past the caches if the launch says so."""
        rows, self._rows = self._rows, {}
        if not rows:
            return
        assert self.flag is not None
        streamed = {row for row, vectors in rows.items() if self._may_stream(row, vectors, rows)}
        w = self.writer
        values = {each: self._stored(each.value) for each in chain.from_iterable(rows.values())}
        past, through, done = w.fresh("past"), w.fresh("through"), w.fresh("stored")
        w.branch_if(self.flag, past, through)
        for label in (past, through):
            w.label(label)
            for row, vectors in rows.items():
                for each in vectors:
                    if label is past and row in streamed:
                        self._store_past(each, values[each])
                    else:
                        w.store(values[each], each.pointer, size_in_bytes(row.buffer.dtype))
            w.branch(done)
        w.label(done)

    def _store_past(self, vector: _Vector, value: Value) -> None:
        w, lanes, element = self.writer, vector.lanes_each, value.type.element
        alignment = min(vector.bytes_each, self.line_bytes)
        for number, piece in enumerate(w.pieces(value, lanes)):
            place = w.element_pointer(vector.pointer, element, w.constant(number * lanes, I64))
            w.store(piece, place, alignment, ", !nontemporal !0")

    def _stored(self, value: Value) -> Value:
        """Half precision as integers: LLVM 22 has no instruction for a vector of `half` that is
        stored past the caches, and stores it as any other.

        They must be integers before the branch; in a store's own block LLVM combines both.
        """
        is_half = value.type.element == HALF.element
        return self.writer.bitcast(value, "i16") if is_half else value

    def _may_stream(self, row: _Row, vectors: list[_Vector], rows: Iterable[_Row]) -> bool:
        """False if the row's cache lines would wait for the rest of them; notes the conditions."""
        multiple = vectors[0].lanes_each
        if sum(other.buffer is row.buffer for other in rows) > 1:
            multiple = max(multiple, self.line_bytes // size_in_bytes(row.buffer.dtype))
            places = {each.offset + lane for each in vectors for lane in range(each.lanes)}
            if len(places) < multiple * len({place // multiple for place in places}):
                return False
        else:
            self.buffers.add(row.buffer)
        for step in row.steps:
            if not (isinstance(step, Integer) and step.value % multiple == 0):
                self.multiples[(step, multiple)] = None
        return True
