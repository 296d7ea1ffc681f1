"""Statements of a kernel as instructions: operands, operations, reductions."""

from __future__ import annotations

from collections.abc import Callable

from ...dtypes import FLOATING, DataType, compute_dtype, size_in_bytes
from ...ir.kernel import (
    Access,
    Compute,
    Gathered,
    Guarded,
    IndexValue,
    Initialise,
    Literal,
    Operand,
    Reduce,
    ScalarParameter,
    Scan,
    Scatter,
)
from ...ir.scalar_queries import divides, substitute
from ...ir.scalars import ONE, ZERO, Integer, IntExpr
from ...ir.schedule import MemoryType
from ...ops.binding import convert_number
from ...ops.random_numbers import DISTRIBUTIONS, numbers_per_call
from ...ops.table import OPS, REDUCTIONS
from .conversions import compute_type, emit_cast, load_convert, storage_type, store_convert
from .lanes import first_lane, stride_along, vector_integer
from .llvm_writer import I64, FunctionWriter, Value
from .op_emitter import emit_op, emit_refused
from .random_numbers import RandomOperands, emit_random
from .read_access import ReadAccess
from .scan_lanes import scan_in_order, scan_lanes
from .welford import (
    combine_welford,
    halves,
    initial_welford,
    reduce_welford_lanes,
    welford_of_values,
)

# The instruction that combines a floating element with the result so far, which is never NaN.
_SKIPPING_NAN: dict[str, Callable[[FunctionWriter, Value, Value], Value]] = {
    "nanmax": FunctionWriter.fmax_number,
    "nanmin": FunctionWriter.fmin_number,
}


class StatementEmitter(ReadAccess):
    """Emits the statements of one phase."""

    def emit(self, statement: Compute | Initialise | Reduce | Scan | Scatter) -> None:
        """One statement."""
        match statement:
            case Compute():
                self._compute(statement)
            case Initialise():
                self._initialise(statement)
            case Reduce():
                self._reduce(statement)
                self.fresh.written(statement.outputs)
            case Scan():
                self._scan(statement)
            case Scatter():
                self._scatter(statement)

    # -- reading

    def operand(self, operand: Operand, dtype: DataType, active: Value | None) -> Value:
        """An operand in the compute type of `dtype`, one value per lane."""
        lanes = self.lanes.count if self.lanes is not None else 1
        match operand:
            case Literal(value=number):
                return self._literal(number, dtype, lanes)
            case ScalarParameter():
                return self._scalar_parameter(operand, dtype, lanes)
            case IndexValue(expr=expr):
                if self.lanes is None:
                    value = self.scopes.integer(expr)
                else:
                    value = vector_integer(self.scopes, expr, self.lanes)
                return emit_cast(self.writer, value, DataType.Int, dtype)
            case Access():
                return self.load(operand, active)
            case Gathered():
                return self.gathered(operand, active)
            case Guarded():
                return self.guarded(operand, dtype, active)

    def _literal(self, number: complex, dtype: DataType, lanes: int) -> Value:
        """The number, converted as a tensor's would be, but not rounded to half precision."""
        type_ = compute_type(dtype, lanes)
        converted = convert_number(number, compute_dtype(dtype))
        assert not isinstance(converted, complex)
        return self.writer.constant(converted, type_)

    def _scalar_parameter(self, operand: ScalarParameter, dtype: DataType, lanes: int) -> Value:
        """The parameter, converted and splatted before all loops."""
        key = ("scalar", operand.name, dtype, lanes)
        outermost = self.scopes.open[0]
        if key not in outermost.others:
            with self.scopes.at(0) if self.scopes.level else self.scopes.at(1):
                w, bits = self.writer, self.scalars[operand.name]
                if operand.dtype in FLOATING:
                    value = emit_cast(w, w.bitcast(bits, "double"), DataType.Double, dtype)
                elif operand.dtype is DataType.Bool:
                    one = w.icmp("ne", bits, w.constant(0, I64))
                    value = emit_cast(w, one, DataType.Bool, dtype)
                else:
                    is_unsigned = operand.dtype is DataType.UInt64
                    source = DataType.UInt64 if is_unsigned else DataType.Int
                    value = emit_cast(w, bits, source, dtype)
                outermost.others[key] = w.splat(value, lanes)
        return outermost.others[key]

    # -- operations

    def _compute(self, statement: Compute) -> None:
        active = self.active(statement.predicate)
        types = statement.compute
        if statement.op == "iota":
            value = self._iota(statement, active)
        elif statement.op in DISTRIBUTIONS:
            value = self._random(statement, active)
        elif statement.op == "set":
            value = self.operand(statement.inputs[0], types[0], active)
        else:
            operands = [
                self.operand(o, d, active) for o, d in zip(statement.inputs, types, strict=True)
            ]
            if statement.is_checked:
                bad = emit_refused(self.writer, statement.op, operands, types[-1])
                self.refusals.note_mask(bad, active)
            value = self._result(statement, operands)
        self.store(statement.output, value, active)
        if statement.output.buffer in self.phase.registers:
            is_uniform = all(map(self.is_uniform, statement.inputs))
            (self.uniform.add if is_uniform else self.uniform.discard)(statement.output.buffer)

    def _iota(self, statement: Compute, active: Value | None) -> Value:
        start, step, index = (
            self.operand(operand, dtype, active)
            for operand, dtype in zip(statement.inputs, statement.compute, strict=True)
        )
        match statement.inputs[:2]:
            case (Literal(value=0), Literal(value=1)):
                return index
        dtype = statement.compute[0]
        scaled = emit_op(self.writer, "mul", [index, step], dtype, dtype)
        return emit_op(self.writer, "add", [start, scaled], dtype, dtype)

    def _result(self, statement: Compute, operands: list[Value]) -> Value:
        """The result of an operation; unrolled code that repeats a function computes it once."""
        w, op, dtype = self.writer, statement.op, statement.compute[-1]
        if not (self.scopes.constants and OPS[op].is_expensive):
            return emit_op(w, op, operands, dtype, statement.result, statement.bits)
        names = tuple(operand.name for operand in operands)
        key = ("result", op, names, dtype, statement.result, statement.bits)
        known = self.scopes.known(key)
        if known is not None:
            return known
        value = emit_op(w, op, operands, dtype, statement.result, statement.bits)
        self.scopes.open[-1].others[key] = value
        return value

    def _random(self, statement: Compute, active: Value | None) -> Value:
        """Random numbers; consecutive lanes share calls where this can be proved."""
        seed, offset, place = statement.inputs
        assert isinstance(place, IndexValue)
        key = [self.operand(o, DataType.Int, active) for o in (seed, offset)]
        is_uniform = all(map(self.is_uniform, (seed, offset)))
        shared = numbers_per_call(statement.result)
        lanes = 1 if self.lanes is None else self.lanes.count
        first, is_aligned = self._first_of_row(place, shared)
        if first is None or not is_uniform:
            first = self.operand(place, DataType.Int, active)
        operands = RandomOperands(key[0], key[1], first, lanes, is_aligned)
        return emit_random(self.writer, statement.op, operands, statement.result)

    def _first_of_row(self, place: IndexValue, shared: int) -> tuple[Value | None, bool]:
        """The index in the first lane if the others follow it and fill two calls or more, and
        whether it is known to be a multiple of `shared`."""
        lanes = self.lanes
        if lanes is None or lanes.count % (2 * shared):
            return None, False
        expr = self.scopes.resolve(place.expr)
        if stride_along(expr, lanes) is not ONE:
            return None, False
        # The first lane's loop index is a multiple of the number of lanes.
        start = substitute(expr, {lanes.symbol: ZERO})
        first = self.scopes.integer(first_lane(expr, lanes))
        return first, divides(Integer.of(shared), start)

    # -- reductions

    def _initialise(self, statement: Initialise) -> None:
        lanes = self.lanes.count if self.lanes is not None else 1
        active = self.active(statement.predicate)
        if statement.op == "welford":
            values = initial_welford(self.writer, statement.outputs[0].buffer.dtype, lanes)
        else:
            dtype = statement.outputs[0].buffer.dtype
            values = [self._identity(statement.op, dtype, lanes)]
        for access, value in zip(statement.outputs, values, strict=True):
            self.store(access, value, active)
        if active is None or not any(map(_is_global, statement.outputs)):
            self.fresh.initialised(statement.op, statement.outputs, self.lanes)

    def _identity(self, op: str, dtype: DataType, lanes: int) -> Value:
        return self._literal(REDUCTIONS[op].identity(dtype), dtype, lanes)

    def _accumulator_step(self, access: Access) -> IntExpr | None:
        return self._indexed(access)[1]

    def _reduce(self, statement: Reduce) -> None:
        active = self.active(statement.predicate)
        across_lanes = (
            self.lanes is not None and self._accumulator_step(statement.outputs[0]) is ZERO
        )
        if statement.op == "welford":
            self._reduce_welford(statement, active, across_lanes)
            return
        access = statement.outputs[0]
        dtype = access.buffer.dtype
        value = self.operand(statement.inputs[0], dtype, active)
        value = self._converted(statement.inputs[0], value, dtype)
        if across_lanes:
            if active is not None:
                value = self.writer.select(
                    active, value, self._identity(statement.op, dtype, value.type.lanes)
                )
            value = self._across(statement.op, value, dtype)
            self._where_any(
                active, access, lambda: self._combine_scalar(statement.op, access, value, dtype)
            )
            return
        if self.lanes is None and active is not None:
            self.phase.branch_on(
                active, lambda: self._accumulate(statement.op, access, value, dtype, None)
            )
            return
        self._accumulate(statement.op, access, value, dtype, active)

    def _converted(self, operand: Operand, value: Value, dtype: DataType) -> Value:
        """A literal or parameter is already in `dtype`; a tensor is in its own compute type."""
        if isinstance(operand, Access):
            return emit_cast(self.writer, value, operand.buffer.dtype, dtype)
        return value

    def _combined(self, op: str, a: Value, b: Value, dtype: DataType) -> Value:
        picks = _SKIPPING_NAN.get(op)
        if picks is not None and b.type.is_float:
            return picks(self.writer, b, a)  # `a`, a result so far, is never NaN
        return emit_op(self.writer, REDUCTIONS[op].combine, [a, b], dtype, dtype)

    def _accumulate(
        self, op: str, access: Access, value: Value, dtype: DataType, active: Value | None
    ) -> None:
        old = self._accumulated(access, active)
        is_fresh = self.fresh.has(access, self.lanes)
        new = value if is_fresh else self._combined(op, old, value, dtype)
        if active is not None:
            new = self.writer.select(active, new, old)
        self.store(access, new, active)

    def _accumulated(self, access: Access, active: Value | None) -> Value:
        """The reduction so far; all lanes of a local buffer, because all are written back."""
        return self.load(access, active if _is_global(access) else None)

    def _where_any(self, active: Value | None, access: Access, update: Callable[[], None]) -> None:
        """Updates an accumulator; in global memory only if some lane has something to add."""
        if active is None or not _is_global(access):
            update()
        else:
            self.phase.branch_on(self.writer.any(active), update)

    def _across(self, op: str, vector: Value, dtype: DataType) -> Value:
        """Combines the lanes of a vector, halving it.

        Floating maxima and minima use the machine's instruction, which loses NaN: whether there was
        a NaN is tested once, on the whole vector.
        """
        w = self.writer
        if op in _SKIPPING_NAN and vector.type.is_float:
            nothing = self._identity(op, dtype, vector.type.lanes)
            vector = w.select(w.is_nan(vector), nothing, vector)
        whole = vector
        picks = {"max": w.fmax_number, "min": w.fmin_number}.get(op)
        if picks is None or not vector.type.is_float:
            while vector.type.lanes > 1:
                low, high = halves(w, vector)
                vector = self._combined(op, low, high, dtype)
            return vector
        while vector.type.lanes > 1:
            low, high = halves(w, vector)
            vector = picks(high, low)
        missing = w.constant(float("nan"), vector.type)
        return w.select(w.any(w.is_nan(whole)), missing, vector)

    def _combine_scalar(self, op: str, access: Access, value: Value, dtype: DataType) -> None:
        """accumulator = combine(accumulator, value), once for all lanes."""
        w = self.writer
        index, _ = self._indexed(access)
        pointer = self.address(access, index)
        alignment = size_in_bytes(dtype)
        old = load_convert(w, w.load(storage_type(dtype), pointer, alignment), dtype)
        new = value if self.fresh.has(access, None) else self._combined(op, old, value, dtype)
        w.store(store_convert(w, new, dtype), pointer, alignment)

    # -- scans

    def _scan(self, statement: Scan) -> None:
        """A running result for each lane, or one that goes through the lanes."""
        active = self.active(statement.predicate)
        running, op = statement.running, statement.op
        dtype = running.buffer.dtype
        value = self.operand(statement.inputs[0], dtype, active)
        value = self._converted(statement.inputs[0], value, dtype)
        if self.lanes is not None and self._accumulator_step(running) is ZERO:
            result = self._scan_lanes(op, running, value, dtype)
        else:
            result = self._combined(op, value, self.load(running, None), dtype)
            self.store(running, result, None)
        result_dtype = statement.output.buffer.dtype
        self.store(statement.output, emit_cast(self.writer, result, dtype, result_dtype), active)
        self.uniform.discard(statement.output.buffer)

    def _scan_lanes(self, op: str, access: Access, value: Value, dtype: DataType) -> Value:
        w, alignment = self.writer, size_in_bytes(dtype)
        pointer = self.address(access, self._indexed(access)[0])
        running = load_convert(w, w.load(storage_type(dtype), pointer, alignment), dtype)

        def combine(a: Value, b: Value) -> Value:
            return self._combined(op, a, b, dtype)

        if REDUCTIONS[op].may_overflow and dtype in FLOATING:
            result, running = scan_in_order(w, value, running, combine)
        else:
            native = min(self.phase.vector_bytes // alignment, value.type.lanes)
            nothing = self._identity(op, dtype, 1)
            result, running = scan_lanes(w, value, running, combine, nothing, native)
        w.store(store_convert(w, running, dtype), pointer, alignment)
        return result

    # -- writes at computed positions

    def _scatter(self, statement: Scatter) -> None:
        """The value at its place, alone or combined with what is there; no lanes share a place."""
        place, given = statement.inputs
        assert isinstance(place, Gathered)
        active = self.active(statement.predicate)
        dtype = place.access.buffer.dtype
        value = self._converted(given, self.operand(given, dtype, active), dtype)
        shift, wrong = self.checked_shift(place, active)
        active = self.readable(place, active)
        right = self.writer.icmp("eq", wrong, self.writer.constant(0, wrong.type))
        if active is None:
            self.fetch_ahead(place)

        def write(active: Value | None) -> None:
            new = value
            if statement.op != "set":
                old = self.load_shifted(place.access, shift, active)
                new = self._combined(statement.op, old, value, dtype)
            self.store_shifted(place.access, new, shift, active)

        if self.lanes is not None and shift.type.lanes > 1:
            write(right if active is None else self.writer.and_(active, right))
        elif self.lanes is not None:
            self.phase.branch_on(right, lambda: write(active))
        else:
            condition = right if active is None else self.writer.and_(active, right)
            self.phase.branch_on(condition, lambda: write(None))

    def _reduce_welford(self, statement: Reduce, active: Value | None, across_lanes: bool) -> None:
        w = self.writer
        dtype = statement.outputs[0].buffer.dtype
        kinds = (dtype, dtype, DataType.Int)
        values = [
            self._converted(o, self.operand(o, k, active), k)
            for o, k in zip(statement.inputs, kinds, strict=False)
        ]
        lanes = self.lanes.count if self.lanes is not None else 1
        state = values if len(values) == 3 else welford_of_values(w, values[0], dtype)
        if active is not None:
            empty = initial_welford(w, dtype, lanes)
            state = [w.select(active, a, b) for a, b in zip(state, empty, strict=True)]
        if across_lanes:
            state = reduce_welford_lanes(w, state, dtype)
            saved, self.lanes = self.lanes, None
            self._where_any(
                active,
                next((o for o in statement.outputs if _is_global(o)), statement.outputs[0]),
                lambda: self._accumulate_welford(statement, state, dtype, None),
            )
            self.lanes = saved
            return
        self._accumulate_welford(statement, state, dtype, active)

    def _accumulate_welford(
        self, statement: Reduce, state: list[Value], dtype: DataType, active: Value | None
    ) -> None:
        old = [self._accumulated(access, active) for access in statement.outputs]
        new = combine_welford(self.writer, old, state, dtype)
        if active is not None:  # the count may be in memory, and isn't read then; the mean is kept
            new = [self.writer.select(active, a, b) for a, b in zip(new, old, strict=True)]
        for access, value in zip(statement.outputs, new, strict=True):
            self.store(access, value, active)


def _is_global(access: Access) -> bool:
    return access.buffer.memory is MemoryType.global_
