"""Reads at computed positions: windows under a condition, and elements that an index points at.

A padded read is a masked load, in which the lanes outside the window touch no memory.  A gather
whose index is the same in all lanes (a row of an embedding) is one scalar index and then vector
loads; if lanes have different indices, each lane has its own address.  An index that is out of
range is noted and clamped, so the read is always inside its source.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable

from ...dtypes import DataType, size_in_bytes
from ...errors import InternalError, expected
from ...ir.kernel import (
    Access,
    Gathered,
    Guarded,
    IndexValue,
    Less,
    Literal,
    Operand,
    Predicate,
    ScalarParameter,
)
from ...ir.scalar_functions import maximum, minimum
from ...ir.scalar_queries import substitute
from ...ir.scalars import ONE, ZERO, Integer, floor_div
from .conversions import emit_cast, load_convert, storage_type, store_convert
from .lanes import first_lane, stride_along
from .llvm_writer import Value
from .stores import Stores

# How far ahead an indexed read of rows fetches: so many rows, if they aren't longer than this in
# all.  Measured on a Zen 3, an embedding and an addition, tables of 8 to 25 MB: rows of 64 to 400
# bytes 1.5 to 3 times as fast as without fetching, of 3 KiB 1.2 times; 16 rows are better for rows
# of 64 bytes, worse for 3 KiB.  From the caches the same.
_ROWS_AHEAD = 8
_BYTES_AHEAD = 64 << 10


class ReadAccess(Stores):
    """The operands of reads for one phase."""

    def operand(self, operand: Operand, dtype: DataType, active: Value | None) -> Value:
        """An operand in the compute type of `dtype`, one value per lane."""
        raise NotImplementedError

    # -- windows

    def guarded(self, operand: Guarded, dtype: DataType, active: Value | None) -> Value:
        """The value inside a window, the fill elsewhere."""
        ends = self._some_and_every(operand.inside)
        if ends is None or not isinstance(operand.value, Access):
            return self._selected(operand, dtype, active)
        some, every = ends
        otherwise = self.operand(operand.otherwise, dtype, active)

        def read() -> Value:
            return self.operand(operand.value, dtype, active)

        def read_some() -> Value:
            return read() if some == every else self._selected(operand, dtype, active)

        def read_if_any() -> Value:
            return self._either(some, read_some, lambda: otherwise)

        if some == every or active is not None:  # at the end of a row, vectors are rarely whole
            return read_if_any()
        return self._either(every, read, read_if_any)

    def _selected(self, operand: Guarded, dtype: DataType, active: Value | None) -> Value:
        """The value in the lanes that are inside, the fill in the others."""
        w = self.writer
        inside = self.condition(operand.inside)
        assert inside is not None
        if self.lanes is not None and inside.type.lanes == 1:
            inside = w.splat(inside, self.lanes.count)
        both = inside if active is None else w.and_(active, inside)
        value = self.operand(operand.value, dtype, both)
        if _is_zero(operand.otherwise) and self._reads_zeros(operand.value):
            return value
        return w.select(inside, value, self.operand(operand.otherwise, dtype, active))

    def _some_and_every(self, inside: Predicate) -> tuple[Predicate, Predicate] | None:
        """Scalar conditions: that a lane may be inside, and that all are; None if there are none.

        A vector that is wholly inside, as most are, needs no mask.  One that is wholly outside
        isn't read: a masked load with an empty mask would still look up its page, which takes
        hundreds of cycles if the page doesn't exist (measured: tensors side by side along the outer
        axis, 8 times as slow).
        """
        lanes = self.lanes
        if lanes is None or not inside:
            return None
        some, every = [], []
        for less in inside:
            a, b = self.scopes.resolve(less.a), self.scopes.resolve(less.b)
            a_step, b_step = stride_along(a, lanes), stride_along(b, lanes)
            if not (isinstance(a_step, Integer) and isinstance(b_step, Integer)):
                return None
            if min(a_step.value, b_step.value) < 0:
                return None
            a, b, last = first_lane(a, lanes), first_lane(b, lanes), lanes.count - 1
            some.append(Less(a, b + b_step * last))
            every.append(Less(a + a_step * last, b))
        return tuple(some), tuple(every)

    def _either(
        self, condition: Predicate, body: Callable[[], Value], otherwise: Callable[[], Value]
    ) -> Value:
        """The value of `body` where a scalar condition holds, that of `otherwise` elsewhere."""
        w = self.writer
        holds = self.condition(condition)
        assert holds is not None
        names = [w.fresh(name) for name in ("read", "else", "done")]
        w.branch_if(holds, *names[:2])
        ends = []
        for name, value in zip(names, (body, otherwise), strict=False):
            w.label(name)
            self.scopes.enter(is_conditional=True)
            found, last = value(), w.fresh("last")
            w.branch(last)  # the value may have ended in another block than it began in
            w.label(last)
            w.branch(names[2])
            self.scopes.leave()
            ends.append((found, last))
        w.label(names[2])
        return w.phi(ends[0][0].type, ends)

    def _reads_zeros(self, value: Operand) -> bool:
        """True if the inactive lanes of a load are 0."""
        if not isinstance(value, Access):
            return False
        return self.lanes is None or self._indexed(value)[1] is not ZERO

    # -- gathers

    def gathered(self, operand: Gathered, active: Value | None) -> Value:
        """The elements that an index points at."""
        shift, _ = self.checked_shift(operand, active)
        if active is None:
            self.fetch_ahead(operand)
        return self.load_shifted(operand.access, shift, self.readable(operand, active))

    def fetch_ahead(self, operand: Gathered) -> None:
        """Fetches the same part of a row that is read or written some iterations later.

        Only the index says where it is: the processor's prefetchers can't know.  The later index
        isn't checked, since fetching reads nothing.
        """
        lanes, access, position = self.lanes, operand.access, operand.position
        if lanes is None or not isinstance(position, Access):
            return
        index, step = self._indexed(access)
        if step is not ONE or position.buffer not in self.inputs or not self.is_uniform(position):
            return
        later = self._later_shift(operand, position)
        if later is not None:
            element = storage_type(access.buffer.dtype).element
            pointer = self.writer.element_pointer(self.address(access, index), element, later)
            self._fetch(access, index, pointer, ZERO)

    def _later_shift(self, operand: Gathered, position: Access) -> Value | None:
        """How far the index of a later iteration moves the access; None if it isn't known."""
        w, index = self.writer, self.scopes.resolve(position.index)
        level = self.scopes.level_of_expr(index)
        inner = [s for s in index.symbols if self.scopes.level_of.get(s, 0) == level]
        if level == 0 or len(inner) != 1:
            return None
        if substitute(index, {inner[0]: inner[0] + 1}) - index is not ONE:
            return None
        key = ("later shift", position.buffer, index, operand.stride)
        known = self.scopes.known(key)
        if known is not None:
            return known
        tensor = self.parameters[position.buffer]
        pairs = zip(tensor.sizes, tensor.strides, strict=True)
        last = functools.reduce(operator.add, ((n - 1) * stride for n, stride in pairs), ZERO)
        if not all(symbol in self.scopes.value_of for symbol in last.symbols):
            return None  # a size that the kernel doesn't get, because no loop ends there
        with self.scopes.at(self.scopes.level_of_read(index)) as scope:
            dtype = position.buffer.dtype
            row = maximum(operand.stride, 1) * size_in_bytes(operand.access.buffer.dtype)
            ahead = minimum(floor_div(Integer.of(_BYTES_AHEAD), row), _ROWS_AHEAD)
            pointer = self.address(position, minimum(index + ahead, last))
            raw = w.load(storage_type(dtype), pointer, size_in_bytes(dtype))
            later = emit_cast(w, load_convert(w, raw, dtype), dtype, DataType.Int)
            shift = w.mul(later, self.scopes.integer(operand.stride))
            scope.others[key] = shift
        return shift

    def checked_shift(self, operand: Gathered, active: Value | None) -> tuple[Value, Value]:
        """(how far the index moves the access, a value other than 0 where it is out of range).

        The shift is in elements, for each lane or for all. A call with a wrong index is refused.
        """
        if self.lanes is None or self.is_uniform(operand.position):
            return self._uniform_shift(operand, active)
        shift, wrong = self._shift(operand, self._position(operand, active))
        self.refusals.note(wrong, active)
        return shift, wrong

    def readable(self, operand: Gathered, active: Value | None) -> Value | None:
        """Where there are elements to read; the call is refused if there are none."""
        inside = self.condition(operand.inside)
        if inside is None:
            return active
        w = self.writer
        if self.lanes is not None:
            inside = w.splat(inside, self.lanes.count)
        self.refusals.note_mask(w.not_(inside), active)
        return inside if active is None else w.and_(active, inside)

    def is_uniform(self, operand: Operand) -> bool:
        """True if all lanes are known to have the same value."""
        lanes = self.lanes
        if lanes is None:
            return True
        match operand:
            case Literal() | ScalarParameter():
                return True
            case IndexValue(expr=expr):
                return lanes.symbol not in self.scopes.resolve(expr).symbols
            case Access(buffer=buffer) if buffer in self.phase.registers:
                return buffer in self.uniform or self.values[buffer][0].type.lanes == 1
            case Access():
                return self._indexed(operand)[1] is ZERO
            case Gathered(access=access, position=position):
                return self.is_uniform(access) and self.is_uniform(position)
            case Guarded():
                return False

    def _position(self, operand: Gathered, active: Value | None) -> Value:
        """The index as i64, one per lane."""
        value = self.operand(operand.position, DataType.Int, active)
        if isinstance(operand.position, Access):
            dtype = operand.position.buffer.dtype
            return emit_cast(self.writer, value, dtype, DataType.Int)
        return value

    def _uniform_shift(self, operand: Gathered, active: Value | None) -> tuple[Value, Value]:
        """`checked_shift` for all lanes; computed as far out as it is known.

        The index is refused only here, because the loops in between may have no iterations.
        """
        position = operand.position
        if isinstance(position, Access) and position.buffer in self.inputs:
            resolved = self.scopes.resolve(position.index)
            key = ("shift", position.buffer, resolved, operand.stride, operand.extent)
            found = next((s for s in self.scopes.open if key in s.others), None)
            if found is None and active is None:
                with self.scopes.at(self.scopes.level_of_read(resolved)) as found:
                    dtype = position.buffer.dtype
                    pointer = self.address(position, resolved)
                    raw = self.writer.load(storage_type(dtype), pointer, size_in_bytes(dtype))
                    value = load_convert(self.writer, raw, dtype)
                    index = emit_cast(self.writer, value, dtype, DataType.Int)
                    found.others[key], found.others["wrong", key] = self._shift(operand, index)
            if found is not None:
                shift, wrong = found.others[key], found.others["wrong", key]
                if active is None:
                    self._note_once(wrong)
                else:
                    self.refusals.note(wrong, active)
                return shift, wrong
        index = self._position(operand, active)
        if index.type.lanes > 1:
            index = self.writer.extractelement(index, 0)
        shift, wrong = self._shift(operand, index)
        self.refusals.note(wrong, active)
        return shift, wrong

    def _note_once(self, wrong: Value) -> None:
        """Notes a value that may be computed further out, unless an open scope has noted it."""
        key = ("noted", wrong.name)
        if self.scopes.known(key) is None:
            self.refusals.note(wrong, None)
            self.scopes.open[-1].others[key] = wrong

    def _shift(self, operand: Gathered, index: Value) -> tuple[Value, Value]:
        """(stride * index, a value other than 0 where the index isn't in [0, extent)).

        An index out of range becomes the last one.
        """
        w, lanes = self.writer, index.type.lanes
        if operand.wraps:
            extent = w.splat(self.scopes.integer(operand.extent), lanes)
            is_negative = w.icmp("slt", index, w.constant(0, index.type))
            index = w.select(is_negative, w.add(index, extent), index)
        last = w.splat(self.scopes.integer(operand.extent - 1), lanes)
        clamped = w.intrinsic("umin", index.type, index, last)  # negative: beyond all others
        wrong = w.xor(index, clamped)
        if operand.stride is ONE:
            return clamped, wrong
        return w.mul(clamped, w.splat(self.scopes.integer(operand.stride), lanes)), wrong

    def load_shifted(self, access: Access, shift: Value, active: Value | None) -> Value:
        """The elements at `shift` after an access."""
        w, dtype, lanes = self.writer, access.buffer.dtype, self.lanes
        pointers, is_vector = self._shifted(access, shift)
        alignment = size_in_bytes(dtype)
        if lanes is None:
            return self._guarded_load(pointers, dtype, active)
        if pointers.type.lanes == 1 and not is_vector:
            some = None if active is None else w.any(active)
            return w.splat(self._guarded_load(pointers, dtype, some), lanes.count)
        type_ = storage_type(dtype, lanes.count)
        if not is_vector:
            mask = active if active is not None else self._all(lanes.count)
            return load_convert(w, w.gather(type_, pointers, mask, alignment), dtype)
        if active is None:
            return load_convert(w, w.load(type_, pointers, alignment), dtype)
        pointer = self._inside(access, pointers, active)
        return load_convert(w, w.masked_load(type_, pointer, active, alignment), dtype)

    def store_shifted(
        self, access: Access, value: Value, shift: Value, active: Value | None
    ) -> None:
        """Writes a value in compute type to the elements at `shift` after an access."""
        w, dtype, lanes = self.writer, access.buffer.dtype, self.lanes
        pointers, is_vector = self._shifted(access, shift)
        stored, alignment = store_convert(w, value, dtype), size_in_bytes(dtype)
        if lanes is None:
            assert active is None  # the caller's branch
            w.store(stored, pointers, alignment)
        elif not is_vector:
            if pointers.type.lanes == 1:
                raise InternalError(expected("scatter", "a place for each lane", "one for all"))
            mask = active if active is not None else self._all(lanes.count)
            w.scatter(stored, pointers, mask, alignment)
        elif active is None:
            w.store(stored, pointers, alignment)
        else:
            w.masked_store(stored, pointers, active, alignment)

    def _shifted(self, access: Access, shift: Value) -> tuple[Value, bool]:
        """(the address at `shift` after an access, or the lanes'; True if it is a vector's)."""
        w, lanes = self.writer, self.lanes
        index, step = self._indexed(access)
        element = storage_type(access.buffer.dtype).element
        if lanes is None or (shift.type.lanes == 1 and step in (ZERO, ONE)):
            pointer = w.element_pointer(self.address(access, index), element, shift)
            return pointer, lanes is not None and step is ONE
        if step is ZERO:
            pointers = self.address(access, index)
        else:
            pointers = self._addresses(access, index, step)
        if shift.type.lanes == 1:
            shift = w.splat(shift, lanes.count)
        return w.element_pointer(pointers, element, shift), False


def _is_zero(operand: Operand) -> bool:
    """True for the constant 0, but not for -0.0."""
    if not isinstance(operand, Literal) or isinstance(operand.value, complex):
        return False
    return operand.value == 0 and math.copysign(1.0, operand.value) > 0
