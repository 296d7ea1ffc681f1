"""Builds the loop nests of each phase.

At every depth the tensors form units: those whose statement is at this depth, and clusters that
share the loop at this depth.  Units are ordered with producers before consumers; then each cluster
becomes a loop whose body is built in the same way, one level deeper.  A buffer is allocated in the
body in which its tensor is inlined.  An accumulator is set to its identity right before its
outermost reduction loop, and the running result of a scan before the outermost scanned loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.costs import is_copy
from ..analysis.mapping import producer_to_consumer, producers
from ..analysis.matching import axes_match
from ..analysis.precision import ALL_BITS, needed_bits, own_bits
from ..dtypes import DataType, compute_dtype
from ..errors import ScheduleError, expected
from ..ir.domains import ParallelType
from ..ir.exprs import (
    Expr,
    FullOp,
    GatherOp,
    IotaOp,
    PointwiseOp,
    RandomOp,
    ReadOp,
    ReductionOp,
    ScanOp,
    WelfordOp,
    WriteOp,
)
from ..ir.kernel import (
    Allocate,
    Compute,
    For,
    IndexValue,
    Initialise,
    Operand,
    Predicate,
    Reduce,
    Scan,
    Scatter,
    Statement,
)
from ..ir.ordering import topological_order
from ..ir.scalars import ONE, ZERO, IntExpr, Symbol
from ..ir.schedule import MemoryType
from ..ir.vals import TensorView
from ..ops.checking import may_refuse
from ..ops.pointwise import resolve_expr
from ..ops.table import SCANS
from .indexing import Indexer
from .loops import Loop
from .memory import KernelMemory
from .reads import gather_predicate
from .scans import scanned_positions
from .scatters import is_concurrent

Unit = tuple[TensorView, ...]


class NestBuilder:
    """Statements and loops over the tensors of one kernel."""

    def __init__(self, indexer: Indexer, memory: KernelMemory) -> None:
        self.indexer = indexer
        self.structure = indexer.structure
        self.scheduled = indexer.scheduled
        self.memory = memory
        self.needed_bits = needed_bits(self.scheduled.fusion)

    def build(self, tensors: Sequence[TensorView], depth: int = 0) -> list[Statement]:
        """The body for `tensors`, all of which are inside the same `depth` loops."""
        body: list[Statement] = []
        for unit in self._ordered_units(tensors, depth):
            for tensor in unit:
                self._allocate(tensor, depth, body)
            for tensor in unit:
                self._initialise(tensor, depth, body)
            first = unit[0]
            if len(self.scheduled[first].loop) == depth:
                body.append(self._statement(first))
                continue
            loop = self.structure.loop(first, depth)
            inner = self.build(unit, depth + 1)
            if self.indexer.threads_are_hardware and is_switch(loop):
                body.append(For(Symbol.of(f"switch{depth}", ONE), ONE, loop.parallel_type, inner))
            else:
                body += wrap(inner, loop.index, loop.extent, loop.parallel_type)
        return body

    def _ordered_units(self, tensors: Sequence[TensorView], depth: int) -> list[Unit]:
        members: dict[object, list[TensorView]] = {}
        for tensor in tensors:
            if len(self.scheduled[tensor].loop) > depth:
                key: object = self.structure.place(tensor, depth)
            else:
                key = id(tensor.expr)
            members.setdefault(key, []).append(tensor)
        units = [tuple(unit) for unit in members.values()]
        number = {tensor: i for i, unit in enumerate(units) for tensor in unit}
        before: list[set[int]] = [set() for _ in units]
        for tensor in tensors:
            for _, producer in producers(tensor):
                i, j = number.get(producer), number[tensor]
                if i is not None and i != j:
                    before[j].add(i)
        order = topological_order(before)
        if len(order) != len(units):
            stuck = units[min(set(range(len(units))) - set(order))][0]
            what = f"T{stuck.name} to be computable"
            raise ScheduleError(
                expected("schedule", what, "shared loops that wait for each other in a circle")
            )
        return [units[i] for i in order]

    def _allocate(self, tensor: TensorView, depth: int, body: list[Statement]) -> None:
        schedule = self.scheduled[tensor]
        if schedule.memory_type is MemoryType.global_ or schedule.compute_at != depth:
            return
        body.append(Allocate(self.memory.buffer(tensor)))

    def _initialise(self, tensor: TensorView, depth: int, body: list[Statement]) -> None:
        expr = tensor.expr
        if isinstance(expr, ScanOp):
            self._start_scan(expr, tensor, depth, body)
            return
        if not isinstance(expr, ReductionOp | WelfordOp) or tensor is not expr.outputs[0]:
            return
        loop = self.scheduled[tensor].loop
        reductions = [i for i, axis in enumerate(loop) if axis.is_reduction]
        outermost = reductions[0] if reductions else len(loop)
        if outermost != depth:
            return
        outputs = tuple(self.memory.own_access(t) for t in expr.tensor_outputs)
        is_parameter = any(t in self.memory.parameters for t in expr.tensor_outputs)
        predicate = self.indexer.element_predicate(tensor)
        if not is_parameter:
            predicate = self._around(expr, predicate, tensor, depth)
        kept = [p for p in range(depth, len(loop)) if not loop[p].is_reduction]
        body += self._wrapped(Initialise(expr.name, outputs, predicate), tensor, kept)

    def _around(
        self, expr: ReductionOp | WelfordOp, predicate: Predicate, tensor: TensorView, depth: int
    ) -> Predicate:
        """The conditions of a reduction's results on nothing but the serial loops around them.

        Beyond the edge nothing needs the identity, unless these are partial results.
        """
        for reader in (reader for each in expr.tensor_outputs for reader in each.uses_list):
            if self._adds_partials(reader, reader.tensor_outputs[0]):
                return ()
        loops = (self.structure.loop(tensor, position) for position in range(depth))
        serial = {each.index for each in loops if each.parallel_type is ParallelType.serial}
        return tuple(p for p in predicate if p.a.symbols and p.a.symbols <= serial)

    def _start_scan(
        self, expr: ScanOp, tensor: TensorView, depth: int, body: list[Statement]
    ) -> None:
        """Sets the running result to the identity before the outermost loop of a scan."""
        scanned = scanned_positions(self.structure, tensor)
        if scanned[0] != depth:
            return
        running = self.memory.running(tensor)
        body.append(Allocate(running.buffer))
        rows = [p for p in range(depth, len(self.scheduled[tensor].loop)) if p not in scanned]
        body += self._wrapped(Initialise(SCANS[expr.op].reduction, (running,)), tensor, rows)

    def _wrapped(
        self, statement: Statement, tensor: TensorView, positions: Sequence[int]
    ) -> list[Statement]:
        """The statement in the loops at some positions of a tensor, outermost first."""
        inner = [statement]
        for position in reversed(positions):
            shared = self.structure.loop(tensor, position)
            inner = wrap(inner, shared.index, shared.extent, shared.parallel_type)
        return inner

    def _statement(self, tensor: TensorView) -> Statement:
        expr = tensor.expr
        assert expr is not None
        indices, predicate = self.indexer.indices(tensor)
        inputs: list[Operand]
        if isinstance(expr, WriteOp):
            return self._write(expr, tensor, predicate)
        if isinstance(expr, ReadOp):
            inputs = [self.memory.read(expr, tensor)]
        else:
            inputs = [self.memory.operand(expr, v, tensor) for v in expr.inputs]
        if isinstance(expr, GatherOp):
            predicate += gather_predicate(expr, tensor)
        outputs = tuple(self.memory.own_access(t) for t in expr.tensor_outputs)
        dtypes: tuple[DataType, ...]
        match expr:
            case ReductionOp() | WelfordOp():
                loop = self.scheduled[tensor].loop
                reduced = [p for p in range(len(loop)) if loop[p].is_reduction]
                block = self._block(tensor, reduced)
                if not block and self._adds_partials(expr, tensor):
                    predicate = ()
                return Reduce(expr.name, outputs, tuple(inputs), predicate, block)
            case ScanOp(op=scan):
                block = self._block(tensor, scanned_positions(self.structure, tensor))
                running = self.memory.running(tensor)
                op = SCANS[scan].reduction
                return Scan(op, outputs[0], running, tuple(inputs), predicate, block)
            case IotaOp():
                # A range of one element has index 0 even where it shares a longer loop.
                (axis,) = tensor.domain.logical
                inputs.append(IndexValue(ZERO if axis.is_broadcast else indices[axis]))
                dtypes = (tensor.dtype, tensor.dtype, tensor.dtype)
                op = "iota"
            case RandomOp(distribution=op):
                inputs.append(IndexValue(self.indexer.place(tensor)))
                dtypes = (DataType.Int, DataType.Int, DataType.Int)
            case PointwiseOp() if not is_copy(expr):
                resolution = resolve_expr(expr)
                op, dtypes = expr.op, resolution.compute
            case FullOp() if tensor.dtype is not compute_dtype(tensor.dtype):
                op, dtypes = "cast", (tensor.dtype,)  # the number is rounded
            case _:  # set, broadcast, reshape, full, slice, gather, ...: only indices differ
                op, dtypes = "set", (tensor.dtype,)
        compute = tuple(compute_dtype(d) for d in dtypes)
        result = tensor.dtype
        is_checked = op != "set" and may_refuse(expr)
        cached = self.scheduled[tensor].cache_op if op == "set" else ""
        bits = own_bits(expr, self.needed_bits.get(tensor, ALL_BITS))
        return Compute(
            op, outputs[0], tuple(inputs), predicate, compute, result, is_checked, cached, bits
        )

    def _write(self, expr: WriteOp, tensor: TensorView, predicate: Predicate) -> Scatter:
        place = self.memory.place(expr, tensor)
        inputs = (place, self.memory.operand(expr, expr.value, tensor))
        several = is_concurrent(self.structure, tensor)
        return Scatter(expr.how, inputs, predicate, several)

    def _block(self, tensor: TensorView, positions: Sequence[int]) -> tuple[ParallelType, ...]:
        """The thread axes among the loops at some positions of a tensor."""
        loops = [self.structure.loop(tensor, position) for position in positions]
        return tuple(
            loop.parallel_type
            for loop in loops
            if loop.extent is not ONE and loop.parallel_type.is_block
        )

    def _adds_partials(self, expr: Expr, tensor: TensorView) -> bool:
        """True for a reduction of another's results in the same loops, both in registers.

        These hold the identity where nothing was reduced, also beyond the edge of the tensor, so no
        predicate is needed to exclude them.
        """
        partials = (t.expr for t in expr.tensor_inputs)
        return (
            isinstance(expr, ReductionOp | WelfordOp)
            and all(isinstance(p, ReductionOp) and p.op == expr.name for p in partials)
            and all(
                self.scheduled[t].memory_type is MemoryType.local
                for t in (*expr.tensor_inputs, *expr.tensor_outputs)
            )
            and all(self._has_loops_of(expr, t, tensor) for t in expr.tensor_inputs)
        )

    def _has_loops_of(self, expr: Expr, producer: TensorView, tensor: TensorView) -> bool:
        """True if each loop of a tensor is one over which the producer has elements."""
        mapping = producer_to_consumer(expr, producer, tensor)
        own = [axis for axis in self.scheduled[producer].loop if not axis.is_reduction]
        return all(
            any(axes_match(axis, each, mapping, {}) for axis in own)
            for each in self.scheduled[tensor].loop
        )


def is_switch(loop: Loop) -> bool:
    """True for an unswitch loop of one iteration: it is kept on hardware threads, because peeling
    it separates the blocks that need no predicates from those that do.
    """
    return loop.parallel_type is ParallelType.unswitch and loop.extent is ONE


def wrap(
    body: list[Statement], index: IntExpr, extent: IntExpr, parallel_type: ParallelType
) -> list[Statement]:
    """The body in a loop; a loop of one iteration is left out."""
    if extent is ONE or not isinstance(index, Symbol):
        return body
    return [For(index, extent, parallel_type, body)]
