"""Writes to a kernel's buffers, along the lanes.

A vector is stored at once, also backwards; elements that all lanes write, once; those a step apart
wait for their neighbours (short_rows.py) or are scattered.  Conditions become lane masks, or
branches.  Vectors that go to an output may be stored past the caches: streaming.py.
"""

from __future__ import annotations

from functools import partial

from ...dtypes import size_in_bytes
from ...ir.kernel import Access
from ...ir.scalars import ONE, ZERO, IntExpr
from ...ir.schedule import MemoryType
from .conversions import store_convert
from .lanes import Lanes
from .llvm_writer import I64, Value
from .memory_access import BACK, MemoryAccess
from .row_copies import move_first


class Stores(MemoryAccess):
    """The writes of one phase."""

    def store(self, access: Access, value: Value, active: Value | None) -> None:
        """Writes a value in compute type; inactive lanes are left alone."""
        if access.buffer in self.phase.registers:
            self.values[access.buffer] = (value, self.scopes.level)
            return
        w, dtype = self.writer, access.buffer.dtype
        if access.buffer.memory is not MemoryType.global_:
            active = self.lanes.mask if self.lanes is not None else None
        self.tiles.pop(access.buffer, None)
        stored = store_convert(w, value, dtype)
        index, step = self._indexed(access)
        alignment = size_in_bytes(dtype)
        if self.lanes is None:
            self._guarded_store(access, stored, index, active)
        elif step is ONE:
            if active is not None:
                self.store_masked(access, index, stored, active)
            elif self._is_in_pair(access):
                self._store_pair(access, index, stored)
            else:
                self.store_vector(access, index, stored)
        elif step is BACK:
            pointer = self.address(access, index - (self.lanes.count - 1))
            if active is not None:
                w.masked_store(self._backwards(stored), pointer, self._backwards(active), alignment)
            else:
                w.store(self._backwards(stored), pointer, alignment)
        elif step is ZERO:
            first = w.extractelement(stored, 0)
            self._guarded_store(access, first, index, None if active is None else w.any(active))
        else:
            alone = partial(self._store_apart, access, index, step, stored, active, self.lanes)
            if step is None or not self.rows.store(access, index, step, stored, active, alone):
                alone()

    def _store_apart(
        self,
        access: Access,
        index: IntExpr,
        step: IntExpr | None,
        value: Value,
        active: Value | None,
        lanes: Lanes,
    ) -> None:
        """Stores each lane's element by itself: a scatter, or scalar stores where that is slow."""
        w, alignment = self.writer, size_in_bytes(access.buffer.dtype)
        if step is None or active is not None or not self.has_slow_masks:
            addresses = self._addresses(access, index, step, lanes)
            mask = self._all(lanes.count) if active is None else active
            w.scatter(value, addresses, mask, alignment)
            return
        base = self.address(access, index)
        for lane in range(value.type.lanes):
            offset = self.scopes.integer(step * lane)
            pointer = w.element_pointer(base, value.type.element, offset)
            w.store(w.extractelement(value, lane), pointer, alignment)

    def store_vector(self, access: Access, index: IntExpr, stored: Value, pieces: int = 1) -> None:
        """Stores a vector; past the caches, in so many pieces."""
        pointer = self.address(access, index)
        is_output = access.buffer in self.outputs
        if not (is_output and self.streaming.add(access, index, stored, pointer, pieces)):
            self.writer.store(stored, pointer, size_in_bytes(access.buffer.dtype))
        elif not self.scopes.constants:
            self.streaming.flush()

    def _store_pair(self, access: Access, index: IntExpr, stored: Value) -> None:
        """Stores both vectors of a pair with the second."""
        assert self.pairs is not None and self.lanes is not None
        start = self.pairs.start(index, self.lanes.count)
        both = self.pairs.both(access.buffer, start, stored)
        if both is not None:
            self.store_vector(access, start, both, pieces=2)

    def store_masked(self, access: Access, index: IntExpr, value: Value, active: Value) -> None:
        """Stores the active lanes.

        If they are the first lanes, a whole vector is stored as those before it were: a cache line
        of which one half goes past the caches and the other through them takes ten times as long
        (measured: rows of 48 bfloat16 at 6 % of a copy's bandwidth).  A part of one goes to the
        stack, and from there in parts of half the size each time: without AVX-512, storing by a
        mask takes longer (measured: 56 instead of 40 ns for a norm of 63 elements), and there are
        no masks for narrow elements.
        """
        w, lanes, pointer = self.writer, value.type.lanes, self.address(access, index)
        alignment = size_in_bytes(access.buffer.dtype)
        count = self.first_lanes.get(active.name)
        is_streamed = access.buffer in self.streaming.buffers
        if count is None or not (self.has_slow_masks or is_streamed):
            w.masked_store(value, self._inside(access, pointer, active), active, alignment)
            return

        def whole() -> None:
            if not (is_streamed and self.streaming.add(access, index, value, pointer)):
                w.store(value, pointer, alignment)

        def partly() -> None:
            if self.has_slow_masks:
                self._store_parts(value, pointer, count, alignment)
            else:
                w.masked_store(value, pointer, active, alignment)

        self.phase.branch_on(w.icmp("eq", count, w.constant(lanes, I64)), whole)
        self.phase.branch_on(w.icmp("ne", count, w.constant(lanes, I64)), partly)

    def _store_parts(self, value: Value, pointer: Value, count: Value, alignment: int) -> None:
        """Stores the first lanes, fewer than all: for each bit of their number, as many at once."""
        w = self.writer
        with w.into(self.phase.entry):
            place = w.alloca(value.type, 1, 64)
        w.store(value, place, 64)
        move_first(self.phase, value.type, place, pointer, count, alignment)

    def _guarded_store(
        self, access: Access, value: Value, index: IntExpr, active: Value | None
    ) -> None:
        alignment = size_in_bytes(access.buffer.dtype)
        pointer = self.address(access, index)
        if active is None:
            self.writer.store(value, pointer, alignment)
            return
        self.phase.branch_on(active, lambda: self.writer.store(value, pointer, alignment))
