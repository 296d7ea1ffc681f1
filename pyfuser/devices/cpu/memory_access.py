"""Reads of a kernel's buffers, along the lanes; writes are in stores.py.

An access is classified along the lanes: step 1 is a vector access, step -1 one whose lanes are
reversed, step 0 a scalar one; a square tile that was written by rows is transposed in registers;
anything else is a gather.  Conditions become lane masks, or branches where no lanes are open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...dtypes import DataType, size_in_bytes
from ...errors import InternalError, expected
from ...ir.kernel import (
    Access,
    Buffer,
    Less,
)
from ...ir.scalars import ONE, ZERO, Integer, IntExpr, Symbol, proves_less
from ...ir.schedule import MemoryType
from .accumulators import FreshAccumulators
from .conditions import Conditions
from .conversions import load_convert, storage_type
from .lanes import Lanes, constant_or_none, first_lane, stride_along, vector_integer
from .llvm_types import LLVMType
from .llvm_writer import I1, I64, FunctionWriter, Value
from .pairs import Pairs
from .refusals import Refusals
from .scopes import Scope, Scopes, split_constant
from .short_rows import ShortRows
from .streaming import StreamingStores
from .transposition import transposed

if TYPE_CHECKING:
    from .codegen import PhaseGenerator


BACK = Integer.of(-1)
_LEAST_MASKED_BYTES = 4  # of an element that AVX2 loads by a mask


class MemoryAccess(Conditions):
    """Reads for one phase, and what waits to be written."""

    def __init__(self, writer: FunctionWriter, scopes: Scopes, phase: PhaseGenerator) -> None:
        super().__init__(writer, scopes)
        self.phase = phase
        self.refusals = Refusals(writer, phase.entry)
        self.scalars: dict[str, Value] = {}
        self.streaming = StreamingStores(writer, scopes, phase.line_bytes)
        self.values: dict[object, tuple[Value, int]] = {}
        self.has_slow_masks = phase.vector_bytes < 64
        self.pairs: Pairs | None = None  # of the unrolled loop that is being written
        self.tiles: dict[Buffer, tuple[Scope, list[Value]]] = {}  # and where columns are known
        self.uniform: set[Buffer] = set()  # registers with the same value in all lanes
        self.parameters = {tensor.buffer: tensor for tensor in phase.kernel.tensors}
        self.rows = ShortRows(self)
        self.fresh = FreshAccumulators(scopes)
        self.outputs = {t.buffer for t in phase.kernel.tensors if t.is_output}
        self.inputs = {t.buffer for t in phase.kernel.tensors if not t.is_output}

    # -- addresses

    def address(self, access: Access, index: IntExpr) -> Value:
        """The address of a scalar index, computed as far out as possible."""
        w = self.writer
        element = storage_type(access.buffer.dtype).element
        rest, constant = split_constant(self.scopes.resolve(index))
        pointer = self.phase.pointers[access.buffer]
        if rest is not ZERO:
            key = ("address", pointer, rest)  # a cut loop's halves may have a buffer each
            found = self.scopes.known(key)
            if found is None:
                offset = self.scopes.integer(rest)
                with self.scopes.at(self.scopes.level_of_expr(rest)) as scope:
                    found = w.element_pointer(pointer, element, offset)
                    scope.others[key] = found
            pointer = found
        return w.element_pointer(pointer, element, w.constant(constant, I64))

    def _indexed(self, access: Access) -> tuple[IntExpr, IntExpr | None]:
        """(index of the first lane, step along the lanes: None if it isn't affine)."""
        index = self.scopes.resolve(access.index)
        lanes = self.lanes
        if lanes is None:
            return index, ZERO
        if access.buffer in self.phase.widened:
            if lanes.symbol not in index.symbols:
                return index * lanes.count, ONE
            # another element in each lane: a widened buffer has one of each for every lane
            index = index * lanes.count + lanes.symbol - lanes.base
        if lanes.symbol not in index.symbols:
            return index, ZERO
        step = stride_along(index, lanes)
        return (first_lane(index, lanes) if step is not None else index), step

    def load(self, access: Access, active: Value | None) -> Value:
        """A tensor's element(s) in compute type."""
        if access.buffer in self.phase.registers:
            return self._register(access)
        if access.buffer in self.outputs:
            self.flush()
        index, step = self._indexed(access)
        is_unrolled = bool(self.scopes.constants) and step is not None
        if active is None and is_unrolled and access.buffer in self.inputs:
            return self._loaded_once(access, index, step)
        return self._load(access, index, step, active)

    def _loaded_once(self, access: Access, index: IntExpr, step: IntExpr | None) -> Value:
        """An input's element(s); unrolled code that repeats the load has them from the first."""
        how = (step, self.lanes and self.lanes.count, self._is_in_pair(access))
        key = ("loaded", access.buffer, index, *how)
        known = self.scopes.known(key)
        if known is not None:
            return known
        value = self.scopes.open[-1].others[key] = self._load(access, index, step, None)
        return value

    def _load(
        self, access: Access, index: IntExpr, step: IntExpr | None, active: Value | None
    ) -> Value:
        w, dtype = self.writer, access.buffer.dtype
        in_loop = self.lanes.mask if self.lanes is not None else None
        gathered = in_loop if active is None else active  # an inactive lane may point anywhere
        if access.buffer.memory is not MemoryType.global_:
            # Loops that are cut differently from the buffer's own may go beyond its end.
            is_inside = active is None or proves_less(access.index, access.buffer.size)
            active = in_loop if is_inside else active
        if self.lanes is None:
            return self._guarded_scalar(access, index, active)
        count = self.lanes.count
        type_ = storage_type(dtype, count)
        if step is ZERO:
            return w.splat(self._scalar_in_lanes(access, index, active), count)
        if step is ONE:
            pointer = self.address(access, index)
            alignment, ahead = size_in_bytes(dtype), access.buffer.prefetch
            # What is left of a row is fetched only if the next one may be elsewhere.
            if ahead is not ZERO and (active is None or ahead.symbols):
                self._fetch(access, index, pointer, ahead)
            if active is None:
                if self._is_in_pair(access):
                    value = self._of_pair(access, index)
                else:
                    value = w.load(type_, pointer, alignment)
            else:
                pointer = self._inside(access, pointer, active)
                value = self._masked_load(type_, pointer, active, alignment)
            return load_convert(w, value, dtype)
        if step is BACK:
            pointer = self.address(access, index - (count - 1))
            if active is None:
                value = w.load(type_, pointer, size_in_bytes(dtype))
            else:
                pointer, mask = self._inside(access, pointer, active), self._backwards(active)
                value = w.masked_load(type_, pointer, mask, size_in_bytes(dtype))
            return load_convert(w, self._backwards(value), dtype)
        column = self._tile_column(access, index, step)
        if column is not None:
            return load_convert(w, column, dtype)
        shuffled = None if step is None else self._in_steps(access, index, step, type_, gathered)
        if shuffled is not None:
            return load_convert(w, shuffled, dtype)
        value = w.gather(
            type_,
            self._addresses(access, index, step),
            gathered if gathered is not None else self._all(count),
            size_in_bytes(dtype),
        )
        return load_convert(w, value, dtype)

    def _is_in_pair(self, access: Access) -> bool:
        """True for a vector of a loop whose vectors are pairs, if it isn't a local accumulator."""
        return self.pairs is not None and access.buffer.memory is MemoryType.global_

    def _of_pair(self, access: Access, index: IntExpr) -> Value:
        assert self.pairs is not None and self.lanes is not None
        start = self.pairs.start(index, self.lanes.count)
        return self.pairs.load(self.address(access, start), self.lanes.count)

    def _fetch(self, access: Access, index: IntExpr, pointer: Value, distance: IntExpr) -> None:
        """Fetches the lines of a vector that is `distance` bytes after an address.

        Once per line: in an unrolled loop, by the first of the vectors in it.
        """
        assert self.lanes is not None
        bytes_each, line = size_in_bytes(access.buffer.dtype), self.phase.line_bytes
        _, constant = split_constant(self.scopes.resolve(index))
        first = -constant * bytes_each % line
        bytes_ahead = constant_or_none(distance)
        if bytes_ahead is None:
            pointer = self.writer.element_pointer(pointer, "i8", self.scopes.integer(distance))
        for start in range(first, self.lanes.count * bytes_each, line):
            self.writer.prefetch(pointer, (bytes_ahead or 0) + start)

    def _inside(self, access: Access, pointer: Value, active: Value) -> Value:
        """The address, or that of the tensor's first element if no lane is active.

        Where the address would be in a page that the process doesn't have, a load by an empty mask
        takes hundreds of cycles (measured on a Zen 5: transpositions of 257 rows took up to 5 times
        as long).
        """
        has_any = self.for_all_lanes.get(active.name)
        if has_any is None or access.buffer.memory is not MemoryType.global_:
            return pointer
        return self.writer.select(has_any, pointer, self.phase.pointers[access.buffer])

    def _masked_load(self, type_: LLVMType, pointer: Value, active: Value, alignment: int) -> Value:
        """Loads the active lanes; the others are 0.

        Elements for which the processor has no masks are loaded one by one, unless all lanes are
        active (ends of rows are often whole vectors).
        """
        w, count = self.writer, self.first_lanes.get(active.name)
        if count is None or not self.has_slow_masks or alignment >= _LEAST_MASKED_BYTES:
            return w.masked_load(type_, pointer, active, alignment)
        all_active = w.icmp("eq", count, w.constant(type_.lanes, I64))
        whole, partly, done = w.fresh("whole"), w.fresh("partly"), w.fresh("loaded")
        w.branch_if(all_active, whole, partly)
        w.label(whole)
        vector = w.load(type_, pointer, alignment)
        w.branch(done)
        w.label(partly)
        lanes = w.masked_load(type_, pointer, active, alignment)
        w.branch(done)
        w.label(done)
        return w.phi(type_, [(vector, whole), (lanes, partly)])

    def _in_steps(
        self, access: Access, index: IntExpr, step: IntExpr, type_: LLVMType, active: Value | None
    ) -> Value | None:
        """Loads the lanes' elements, which are a step apart; None if a gather does it best.

        Elements a few places apart come from vectors, of which the last ends with the last one.
        """
        w, alignment, lanes = self.writer, size_in_bytes(access.buffer.dtype), type_.lanes
        rows = self.rows.load(access, index, step, lanes, active)
        if rows is not None:
            return rows
        is_every_second = constant_or_none(step) == 2
        if is_every_second and active is not None and self.has_masks(access, active):
            return self._first_of_every_second(access, index, type_, self.bounds[active.name])
        if active is not None:
            return None
        if is_every_second:
            ends = (self.address(access, index), self.address(access, index + (lanes - 1)))
            first, second = (w.load(type_, pointer, alignment) for pointer in ends)
            return w.shufflevector(
                first, second, [*range(0, lanes, 2), *range(lanes + 1, 2 * lanes, 2)]
            )
        if not self.has_slow_masks:
            return None
        base, value = self.address(access, index), w.undefined(type_)
        for lane in range(type_.lanes):
            pointer = w.element_pointer(base, type_.element, self.scopes.integer(step * lane))
            element = w.load(type_.with_lanes(1), pointer, alignment)
            value = w.insertelement(value, element, lane)
        return value

    def _first_of_every_second(
        self, access: Access, index: IntExpr, type_: LLVMType, count: IntExpr
    ) -> Value:
        """The first `count` of all lanes' elements, of which each is the second after the last."""
        w, lanes, vectors = self.writer, type_.lanes, list[Value]()
        for start in (0, lanes):
            mask = self.lanes_below(count * 2 - (start + 1), lanes)
            pointer = self.address(access, index + start)
            vectors.append(w.masked_load(type_, pointer, mask, size_in_bytes(access.buffer.dtype)))
        return self.rows.every(vectors, 0, 2)

    def has_masks(self, access: Access, active: Value | None) -> bool:
        """True if the active lanes are all or the first, and parts of vectors have masks."""
        if active is None:
            return True
        is_fast = access.buffer.bytes_each >= _LEAST_MASKED_BYTES or not self.has_slow_masks
        return is_fast and active.name in self.bounds

    def _tile_column(self, access: Access, index: IntExpr, step: IntExpr | None) -> Value | None:
        """A column of a square tile that was written by rows, which is transposed in registers."""
        assert self.lanes is not None
        count = self.lanes.count
        is_square = constant_or_none(access.buffer.size) == count * count
        column = constant_or_none(index)
        if not is_square or step is None or constant_or_none(step) != count or column is None:
            return None
        scope, columns = self.tiles.get(access.buffer, (None, []))
        if scope not in self.scopes.open:
            pointer = self.phase.pointers[access.buffer]
            dtype = access.buffer.dtype
            row_type = storage_type(dtype, count)
            rows = []
            for number in range(count):
                offset = self.writer.constant(number * count, I64)
                place = self.writer.element_pointer(pointer, storage_type(dtype).element, offset)
                rows.append(self.writer.load(row_type, place, size_in_bytes(dtype)))
            columns = transposed(self.writer, rows)
            self.tiles[access.buffer] = self.scopes.open[-1], columns
        return columns[column]

    def _backwards(self, vector: Value) -> Value:
        """The lanes from the last to the first."""
        return self.writer.shufflevector(vector, None, range(vector.type.lanes)[::-1])

    def _all(self, count: int) -> Value:
        return self.writer.constant(True, I1.with_lanes(count))

    def _addresses(
        self, access: Access, index: IntExpr, step: IntExpr | None, lanes: Lanes | None = None
    ) -> Value:
        """One address per lane."""
        w, lanes = self.writer, lanes or self.lanes
        assert lanes is not None
        element = storage_type(access.buffer.dtype).element
        if step is None:
            offsets = vector_integer(self.scopes, index, lanes)
            return w.element_pointer(self.phase.pointers[access.buffer], element, offsets)
        key = ("steps", step, lanes.count)
        level = self.scopes.level_of_expr(step)
        found = self.scopes.known(key)
        if found is None:
            amount = self.scopes.integer(step)
            with self.scopes.at(level) as scope:
                numbers = w.lane_numbers(I64.with_lanes(lanes.count))
                found = w.mul(numbers, w.splat(amount, lanes.count))
                scope.others[key] = found
        return w.element_pointer(self.address(access, index), element, found)

    def _register(self, access: Access) -> Value:
        """The SSA value of a register; a scalar from outside is splatted there."""
        value, level = self.values[access.buffer]
        count = self.lanes.count if self.lanes is not None else 1
        if value.type.lanes == count:
            return value
        if value.type.lanes != 1:
            raise InternalError(
                expected("cpu codegen", f"T{access.buffer.name} outside of its lanes", "a vector")
            )
        key = ("splat", value.typed, count)
        known = self.scopes.known(key)
        if known is not None:
            return known
        with self.scopes.at(level) as scope:
            spread = self.writer.splat(value, count)
            scope.others[key] = spread
        return spread

    def _scalar_in_lanes(self, access: Access, index: IntExpr, active: Value | None) -> Value:
        """One element that all lanes read; not read at all if no lane is active.

        Inputs don't change during a call, so an unconditional read moves out of the loops.
        """
        if active is not None:
            return self._guarded_scalar(access, index, self.writer.any(active))
        resolved = self.scopes.resolve(index)
        level = self.scopes.level_of_read(resolved)
        if access.buffer not in self.inputs or level >= self.scopes.level:
            return self._guarded_scalar(access, index, None)
        key = ("element", access.buffer, resolved)
        known = self.scopes.known(key)
        if known is not None:
            return known
        dtype = access.buffer.dtype
        with self.scopes.at(level) as scope:
            pointer = self._with_memory(access, self.address(access, resolved))
            raw = self.writer.load(storage_type(dtype), pointer, size_in_bytes(dtype))
            value = load_convert(self.writer, raw, dtype)
            scope.others[key] = value
        return value

    def _with_memory(self, access: Access, pointer: Value) -> Value:
        """The address, or a dummy address if the input may have no elements.

        The loops that run then have no iterations, but the read has moved out of them.  An axis of
        stride 0 is in no index, so nothing else ensures that it isn't empty.
        """
        w, kernel, parameter = self.writer, self.phase.kernel, self.parameters[access.buffer]
        pairs = zip(parameter.sizes, parameter.strides, strict=True)
        still = set[Symbol]().union(*(n.symbols for n, stride in pairs if stride is ZERO))
        # For a size that is passed as part of a product: if the product is 0, no loop over it runs.
        sizes = [n for n in kernel.symbols if not still.isdisjoint(kernel.joined.get(n, n).symbols)]
        if not sizes:
            return pointer
        has_elements = self.condition(tuple(Less(ZERO, size) for size in sizes))
        assert has_elements is not None
        key = ("nothing",)
        nothing = self.scopes.open[0].others.get(key)
        if nothing is None:
            with self.scopes.at(0) as scope:
                nothing = scope.others[key] = w.alloca(I64, 2, 16)
        return w.select(has_elements, pointer, nothing)

    def _guarded_scalar(self, access: Access, index: IntExpr, active: Value | None) -> Value:
        """A scalar load, under a branch if there is a condition; zero where it fails."""
        return self._guarded_load(self.address(access, index), access.buffer.dtype, active)

    def _guarded_load(self, pointer: Value, dtype: DataType, active: Value | None) -> Value:
        w = self.writer
        type_, alignment = storage_type(dtype), size_in_bytes(dtype)
        if active is None:
            return load_convert(w, w.load(type_, pointer, alignment), dtype)
        before, then, done = w.fresh("test"), w.fresh("read"), w.fresh("done")
        w.branch(before)
        w.label(before)
        w.branch_if(active, then, done)
        w.label(then)
        value = w.load(type_, pointer, alignment)
        w.branch(done)
        w.label(done)
        loaded = w.phi(type_, [(value, then), (w.constant(0, type_), before)])
        return load_convert(w, loaded, dtype)

    def flush(self) -> None:
        """Writes what waits for other stores; it doesn't outlive the block that computed it."""
        self.rows.flush()
        self.streaming.flush()

    def store_vector(self, access: Access, index: IntExpr, stored: Value) -> None:
        """Writes a whole vector."""
        raise NotImplementedError

    def store_masked(self, access: Access, index: IntExpr, value: Value, active: Value) -> None:
        """Stores the active lanes of a vector."""
        raise NotImplementedError
