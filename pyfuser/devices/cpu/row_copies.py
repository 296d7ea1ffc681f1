"""A loop in lanes that only copies a buffer to an output: a row by whole cache lines.

The loop may begin anywhere in the output's memory.  The elements before the first cache line and
those after the last whole one are stored by themselves; the lines between them may then be stored
past the caches.

If the rows of the loop around it follow each other in the output's memory, a row doesn't store the
elements after its last whole line: they are kept, and the next row begins with them.  Only the
first row and the last one store parts of a line.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ...ir.domains import ParallelType
from ...ir.kernel import Access, Buffer, Compute, For, Statement
from ...ir.kernel_queries import walk
from ...ir.scalar_functions import maximum, minimum
from ...ir.scalar_queries import coefficient_of, substitute
from ...ir.scalars import ONE, ZERO, IntExpr
from ...ir.schedule import MemoryType
from .llvm_types import LLVMType
from .llvm_writer import I32, I64, Value

if TYPE_CHECKING:
    from .codegen import PhaseGenerator

_MASKED_BYTES = 64  # of vectors that a processor must have for masks of elements of every size


@dataclass(frozen=True, slots=True)
class Rows:
    """The loop around a row copy, and the elements from one row of the output to the next."""

    loop: For
    step: IntExpr


@dataclass(frozen=True, slots=True)
class RowCopy:
    """The first elements of both rows, and how many there are; `rows`, if several may be joined."""

    source: Access
    target: Access
    count: IntExpr
    rows: Rows | None = None


def row_copy(loop: For, around: For | None = None) -> RowCopy | None:
    """What a loop copies from a task's buffer to an output; None if it does anything else.

    `around` is the innermost loop around it that runs in order.
    """
    if loop.parallel_type is not ParallelType.block_x or loop.start is not ZERO:
        return None
    match loop.body:
        case [Compute(op="set", output=target, inputs=(Access() as source,)) as statement]:
            pass
        case _:
            return None
    memories = (source.buffer.memory, target.buffer.memory)
    is_alike = source.buffer.dtype is target.buffer.dtype and source.buffer.bytes_each <= 8
    if not is_alike or memories != (MemoryType.shared, MemoryType.global_):
        return None
    start, count = {loop.index: ZERO}, loop.stop
    for less in statement.predicate:
        step = coefficient_of(less.a, loop.index)
        if loop.index in less.b.symbols or step is not ONE:
            return None
        count = minimum(count, maximum(less.b - substitute(less.a, start), ZERO))
    if any(coefficient_of(each.index, loop.index) is not ONE for each in (source, target)):
        return None
    source, target = (
        Access(each.buffer, substitute(each.index, start)) for each in (source, target)
    )
    is_inside = around is not None and any(each is loop for each in around.body)
    rows = _rows(around, target) if around is not None and is_inside else None
    return RowCopy(source, target, count, rows)


def _rows(around: For, target: Access) -> Rows | None:
    step = coefficient_of(target.index, around.index)
    return None if step is None or step is ZERO else Rows(around, step)


def copied_buffers(body: list[Statement]) -> set[Buffer]:
    """The buffers that row copies read.

    They read whole lines, also some elements before and after a row.
    """
    copies = (row_copy(loop) for loop in walk(body) if isinstance(loop, For))
    return {copy.source.buffer for copy in copies if copy is not None}


@dataclass(frozen=True, slots=True)
class _Joined:
    """Conditions: the row before, and the next one, is joined to this one; the rows `follow` each
    other.

    `kept` has what the row before hasn't stored, the first elements of a line.
    """

    to_the_last: Value
    to_the_next: Value
    follow: Value
    kept: Value


class RowCopies:
    """Writes row copies for one phase."""

    def __init__(self, phase: PhaseGenerator) -> None:
        self.phase, self.writer = phase, phase.writer

    def emit(self, copy: RowCopy) -> None:
        """The whole copy."""
        w, phase, bytes_each = self.writer, self.phase, copy.target.buffer.bytes_each
        element = LLVMType(f"i{8 * bytes_each}")
        line = phase.line_bytes // bytes_each
        count = phase.scopes.integer(copy.count)
        source, target = (
            w.element_pointer(
                phase.pointers[each.buffer], element.element, phase.scopes.integer(each.index)
            )
            for each in (copy.source, copy.target)
        )
        inside = w.binary("udiv", self._in_line(target), w.constant(bytes_each, I64))
        joined, number, none = self._joined(copy, line, count), count, w.constant(0, I64)
        left = start = none
        if joined is not None:
            # A row that follows another begins with what that one has left, at a line.
            left = w.select(joined.to_the_last, inside, none)
            start = w.select(joined.to_the_last, w.constant(line, I64), none)
            back = w.sub(none, left)
            source, target = (w.element_pointer(p, element.element, back) for p in (source, target))
            number = w.add(count, left)
        head = w.and_(w.sub(left, inside), w.constant(line - 1, I64))
        head = w.intrinsic("umin", I64, head, number)
        self._part(element, line, source, target, head)
        whole = w.and_(w.sub(number, head), w.constant(-line, I64))
        end, rows = w.add(head, whole), (source, target)

        def lines(suffix: str) -> None:
            if joined is not None:
                first = partial(self._joined_line, element, line, suffix, rows, joined.kept, left)
                phase.branch_on(joined.to_the_last, first)
            begin = w.add(head, start)
            phase.loop_between(begin, end, line, partial(self._line, element, line, suffix, rows))

        def past_caches() -> None:
            lines(", !nontemporal !0")
            fetch = partial(self._fetch_ends, copy, target, count)
            if joined is None:
                fetch()
            else:
                phase.branch_on(w.not_(joined.follow), fetch)

        flag = phase.statements.streaming.flag
        assert flag is not None
        phase.branch_on(flag, past_caches)
        phase.branch_on(w.not_(flag), lambda: lines(""))
        rest = w.sub(number, end)
        source, target = (w.element_pointer(each, element.element, end) for each in rows)
        part = partial(self._part, element, line, source, target, rest)
        if joined is None:
            part()
        else:
            keep = partial(self._keep, element, line, source, joined.kept)
            phase.branch_on(joined.to_the_next, keep, part)

    def _in_line(self, pointer: Value) -> Value:
        """How many bytes a pointer is after the begin of its cache line."""
        w = self.writer
        return w.and_(
            w.convert("ptrtoint", pointer, I64), w.constant(self.phase.line_bytes - 1, I64)
        )

    def _first(self, count: Value, line: int) -> Value:
        """The mask of the first elements of a line."""
        w = self.writer
        lanes = w.lane_numbers(I32.with_lanes(line))
        return w.icmp("slt", lanes, w.splat(w.truncate(count, "i32"), line))

    def _joined(self, copy: RowCopy, line: int, count: Value) -> _Joined | None:
        """Whether the row is joined to its neighbours; None if no row of the loop can be."""
        w, scopes, rows = self.writer, self.phase.scopes, copy.rows
        if rows is None:
            return None
        # A first row of at least a line has stored all before its last line.
        follow = w.and_(
            w.icmp("eq", scopes.integer(rows.step), count),
            w.icmp("sge", count, w.constant(line, I64)),
        )
        index, start, stop = (
            scopes.integer(each) for each in (rows.loop.index, rows.loop.start, rows.loop.stop)
        )
        last = w.sub(stop, w.constant(1, I64))
        with w.into(self.phase.entry):
            kept = w.alloca(LLVMType("i8"), self.phase.line_bytes, self.phase.line_bytes)
        return _Joined(
            w.and_(follow, w.icmp("sgt", index, start)),
            w.and_(follow, w.icmp("slt", index, last)),
            follow,
            kept,
        )

    def _keep(self, element: LLVMType, line: int, source: Value, kept: Value) -> None:
        w = self.writer
        value = w.load(element.with_lanes(line), source, element.bits // 8)
        w.store(value, kept, self.phase.line_bytes)

    def _joined_line(
        self,
        element: LLVMType,
        line: int,
        suffix: str,
        rows: tuple[Value, Value],
        kept: Value,
        left: Value,
    ) -> None:
        """A line of which the first elements, `left` of them, are those that were kept."""
        w, type_ = self.writer, element.with_lanes(line)
        value = w.load(type_, rows[0], element.bits // 8)
        before = w.load(type_, kept, self.phase.line_bytes)
        value = w.select(self._first(left, line), before, value)
        w.store(value, rows[1], self.phase.line_bytes, suffix)

    def _fetch_ends(self, copy: RowCopy, target: Value, count: Value) -> None:
        """Fetches the lines of which a later row stores only a part: the first and the last.

        A processor reads the rest of such a line before it stores what follows.
        """
        w, phase, buffer = self.writer, self.phase, copy.target.buffer
        if buffer.prefetch is ZERO:
            return
        begin = w.element_pointer(target, "i8", phase.scopes.integer(buffer.prefetch))
        size = w.mul(count, w.constant(buffer.bytes_each, I64))
        for end in (begin, w.element_pointer(begin, "i8", size)):
            is_part = w.icmp("ne", self._in_line(end), w.constant(0, I64))
            phase.branch_on(is_part, partial(w.prefetch_to_write, end))

    def _line(
        self, element: LLVMType, line: int, suffix: str, rows: tuple[Value, Value], start: Value
    ) -> None:
        w, type_ = self.writer, element.with_lanes(line)
        source, target = (w.element_pointer(each, element.element, start) for each in rows)
        value = w.load(type_, source, element.bits // 8)
        w.store(value, target, self.phase.line_bytes, suffix)

    def _part(
        self, element: LLVMType, line: int, source: Value, target: Value, count: Value
    ) -> None:
        """Copies fewer elements than a line has, by a mask if the processor has them.

        If there are none, nothing is stored, not even by an empty mask: some processors read the
        line for it, whose elements go past the caches later.  On an AMD EPYC, transpositions out of
        cache were a third as fast so.
        """
        w, alignment = self.writer, element.bits // 8

        def by_mask() -> None:
            type_ = element.with_lanes(line)
            mask = self._first(count, line)
            w.masked_store(w.masked_load(type_, source, mask, alignment), target, mask, alignment)

        if self.phase.vector_bytes >= _MASKED_BYTES:
            self.phase.branch_on(w.icmp("ne", count, w.constant(0, I64)), by_mask)
            return
        move_first(self.phase, element.with_lanes(line), source, target, count, alignment)


def move_first(
    phase: PhaseGenerator,
    vector: LLVMType,
    source: Value,
    target: Value,
    count: Value,
    alignment: int,
) -> None:
    """Moves the first elements of a vector in memory, fewer than all: for each bit of their number,
    as many at once."""
    w, part = phase.writer, vector.lanes // 2

    def move(type_: LLVMType, offset: Value) -> None:
        value = w.load(type_, w.element_pointer(source, type_.element, offset), alignment)
        w.store(value, w.element_pointer(target, type_.element, offset), alignment)

    while part:
        has = w.icmp("ne", w.and_(count, w.constant(part, I64)), w.constant(0, I64))
        offset = w.and_(count, w.constant(-2 * part & (vector.lanes - 1), I64))
        phase.branch_on(has, partial(move, vector.with_lanes(part), offset))
        part //= 2
