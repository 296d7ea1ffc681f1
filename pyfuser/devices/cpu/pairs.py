"""Pairs of vectors of bfloat16: one takes the elements at even places, the next those at odd ones.

The elements of two vectors that follow each other in memory are the halves of one vector of words:

    word      = odd element << 16 | even element
    in float: even = word << 16,  odd = word with the lower half cleared

So a pair is loaded by one load and two instructions, where widening each vector takes a shuffle and
a shift, and stored by two instead of six: narrowing takes a shift and two instructions (without
AVX-512, it goes through both halves of a vector).  A kernel of bfloat16 in the cache takes about
two thirds of the instructions.  Measured on a Zen 4, in the third cache, against vectors in the
order of memory: x * w + b takes 0.68 of the time, sums of rows and squares 0.8, norms of rows 0.8,
x + y 0.9, GELU and softmax 0.95.

It is right where no result tells which lane had which element (`may_pair`): all accesses along the
lanes are such pairs, or go to accumulators whose lanes are combined in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...dtypes import DataType
from ...ir.domains import ParallelType
from ...ir.kernel import (
    Access,
    Allocate,
    Buffer,
    Compute,
    For,
    Gathered,
    Guarded,
    IndexValue,
    Initialise,
    Reduce,
    Statement,
)
from ...ir.kernel_queries import accesses, operands, walk
from ...ir.scalar_queries import coefficient_of
from ...ir.scalars import ONE, ZERO, Integer, IntExpr, Symbol, product
from ...ir.schedule import MemoryType
from ...ops.random_numbers import DISTRIBUTIONS
from .llvm_types import LLVMType
from .llvm_writer import FunctionWriter, Value
from .scopes import Scopes

_NO_PAIR = ("iota", *DISTRIBUTIONS)  # their results depend on the place of an element


class Pairs:
    """The pairs of one unrolled loop: every two of its iterations are one."""

    def __init__(self, writer: FunctionWriter, scopes: Scopes, unrolled: Symbol) -> None:
        self.writer, self.scopes, self.unrolled = writer, scopes, unrolled
        self._waiting: dict[tuple[Buffer, IntExpr], Value] = {}

    @property
    def is_odd(self) -> bool:
        """True for the second vector of a pair."""
        number = self.scopes.constants[self.unrolled]
        assert isinstance(number, Integer)
        return number.value % 2 == 1

    def start(self, index: IntExpr, lanes: int) -> IntExpr:
        """Where the pair begins of which a vector begins at `index`."""
        return index - lanes if self.is_odd else index

    def load(self, pointer: Value, lanes: int) -> Value:
        """The elements, as stored, of one of the two from the start of the pair."""
        w = self.writer
        words = w.load(LLVMType("i32", lanes), pointer, 2)
        if self.is_odd:
            words = w.lshr(words, w.constant(16, words.type))
        return w.truncate(words, "i16")

    def both(self, buffer: Buffer, start: IntExpr, stored: Value) -> Value | None:
        """All elements in the order of memory; None for the first vector, which waits for the
        other."""
        if not self.is_odd:
            self._waiting[buffer, start] = stored
            return None
        w, lanes = self.writer, stored.type.lanes
        even = w.zext(self._waiting.pop((buffer, start)), "i32")
        odd = w.zext(stored, "i32")
        words = w.or_(even, w.shl(odd, w.constant(16, odd.type)))
        return w.bitcast(words, stored.type.with_lanes(2 * lanes))


def may_pair(loop: For, uses: Uses, lane_count: Callable[[For], int]) -> bool:
    """True if the vectors of an unrolled loop, in a phase with these uses, may be pairs.

    `lane_count` says how many iterations of a loop over lanes run as one vector.
    """
    count = loop.stop
    if loop.start is not ZERO or not isinstance(count, Integer) or count.value % 2:
        return False
    analysis = _Analysis(loop, uses, lane_count)
    return all(analysis.allows(statement) for statement in loop.body) and analysis.has_pairs


class Uses:
    """Who writes and reads the buffers of a phase."""

    def __init__(self, body: list[Statement]) -> None:
        self.loops: dict[Symbol, IntExpr] = {}
        self.writers: dict[Buffer, list[Statement]] = {}
        self.readers: dict[Buffer, list[tuple[Statement, Access]]] = {}
        self._combined: dict[Buffer, bool] = {}
        for statement in walk(body):
            if isinstance(statement, For):
                self.loops[statement.index] = statement.stop
            written = list(_written(statement))
            for access in accesses(statement):
                if access in written:
                    self.writers.setdefault(access.buffer, []).append(statement)
                else:
                    self.readers.setdefault(access.buffer, []).append((statement, access))

    def are_combined(self, buffer: Buffer) -> bool:
        """True if all elements of accumulators are combined with each other, whoever reads them."""
        found = self._combined.get(buffer)
        if found is None:
            found = self._combined[buffer] = self._find(buffer, {buffer})
        return found

    def _find(self, buffer: Buffer, above: set[Buffer]) -> bool:
        writers = self.writers.get(buffer, ())
        if not all(isinstance(statement, Initialise | Reduce) for statement in writers):
            return False
        return all(self._combines(*use, above) for use in self.readers.get(buffer, ()))

    def _combines(self, statement: Statement, read: Access, above: set[Buffer]) -> bool:
        """True if a statement combines all accumulators of a buffer, at once or later on."""
        if not isinstance(statement, Reduce):
            return False
        along = read.index.symbols & self.loops.keys()
        conditions = {s for each in statement.predicate for s in each.a.symbols | each.b.symbols}
        reads_all = product(self.loops[symbol] for symbol in along) is read.buffer.size
        if not reads_all or not along.isdisjoint(conditions):
            return False
        for result in statement.outputs:
            if result.index.symbols.isdisjoint(along) or result.buffer in above:
                continue
            if result.buffer.memory is MemoryType.global_:
                return False
            if not self._find(result.buffer, above | {result.buffer}):
                return False
        return True


class _Analysis:
    """What the statements of an unrolled loop do along the lanes."""

    def __init__(self, loop: For, uses: Uses, lane_count: Callable[[For], int]) -> None:
        self.unrolled, self.uses, self.lane_count = loop.index, uses, lane_count
        found = (s.buffer for s in walk(loop.body) if isinstance(s, Allocate))
        self.local = {buffer for buffer in found if buffer.size is ONE}
        self.has_pairs = False

    def allows(self, statement: Statement) -> bool:
        """True for what has no lanes, and for loops over lanes whose order nothing depends on."""
        match statement:
            case For(parallel_type=ParallelType.block_x, start=start, stop=Integer(value=lanes)):
                is_vector = start is ZERO and lanes == self.lane_count(statement)
                inner = (self._in_lanes(each, statement.index, lanes) for each in statement.body)
                return is_vector and all(inner)
            case For():
                return False
            case _:
                return isinstance(statement, Allocate) or not _is_stored(statement)

    def _in_lanes(self, statement: Statement, lane: Symbol, lanes: int) -> bool:
        match statement:
            case Allocate():
                return True
            case Compute(op=op) if op in _NO_PAIR or statement.predicate:
                return False
            case Compute(inputs=inputs):
                outputs: tuple[Access, ...] = (statement.output,)
            case Reduce(inputs=inputs, outputs=outputs) if not statement.predicate:
                pass
            case _:
                return False
        for operand in operands(inputs):
            match operand:
                case Gathered() | Guarded():
                    return False
                case IndexValue(expr=expr) if not expr.symbols.isdisjoint((lane, self.unrolled)):
                    return False
                case Access() if not self._reads(operand, lane, lanes):
                    return False
        is_sum = isinstance(statement, Reduce)
        return all(self._writes(access, is_sum, lane, lanes) for access in outputs)

    def _reads(self, access: Access, lane: Symbol, lanes: int) -> bool:
        if access.buffer in self.local or self._is_uniform(access, lane):
            return True
        return self._is_pair(access, lane, lanes) and access.buffer not in self.uses.writers

    def _writes(self, access: Access, is_sum: bool, lane: Symbol, lanes: int) -> bool:
        if access.buffer in self.local:
            return True
        if not is_sum:
            return self._is_pair(access, lane, lanes)
        if access.buffer.memory is MemoryType.global_:
            return False
        return self._is_uniform(access, lane) or self.uses.are_combined(access.buffer)

    def _is_uniform(self, access: Access, lane: Symbol) -> bool:
        return access.index.symbols.isdisjoint((lane, self.unrolled))

    def _is_pair(self, access: Access, lane: Symbol, lanes: int) -> bool:
        """True for a vector in global memory that follows that of the iteration before."""
        index, buffer = access.index, access.buffer
        is_vector = coefficient_of(index, lane) is ONE
        step = coefficient_of(index, self.unrolled)
        follows = isinstance(step, Integer) and step.value == lanes
        is_bfloat16 = buffer.dtype is DataType.BFloat16 and buffer.memory is MemoryType.global_
        found = is_vector and follows and is_bfloat16
        self.has_pairs |= found
        return found


def _is_stored(statement: Statement) -> bool:
    """True if a statement outside of the lanes writes to global memory."""
    return any(access.buffer.memory is MemoryType.global_ for access in _written(statement))


def _written(statement: Statement) -> Iterator[Access]:
    match statement:
        case Compute():
            yield statement.output
        case Initialise() | Reduce():
            yield from statement.outputs
        case _ if not isinstance(statement, For | Allocate):
            yield from accesses(statement)
