"""Assigns memory to every tensor of a kernel, and an access to every read and write.

Inputs and outputs are parameters, addressed by strides; other global tensors are scratch. The rest
are buffers with an element for each iteration of their loops right of the compute position.
"""

from __future__ import annotations

from ..dtypes import compute_dtype, size_in_bytes
from ..ir.domains import IterDomain
from ..ir.exprs import Expr, GatherOp, RandomOp, ReadOp, ScanOp, WindowOp, WriteOp, is_seed
from ..ir.kernel import (
    Access,
    Buffer,
    Gathered,
    Guarded,
    Literal,
    Operand,
    ScalarParameter,
    TensorParameter,
)
from ..ir.scalars import ONE, ZERO, IntExpr, Symbol, as_expr, product
from ..ir.schedule import MemoryType
from ..ir.vals import Scalar, TensorView, Val
from ..ops.table import SCANS
from .indexing import Indexer, linear
from .reads import (
    check_source,
    gather_axes,
    gather_inside,
    inside,
    read_indices,
    window_axes,
    write_predicate,
    written_axes,
)
from .scans import running_positions


class KernelMemory:
    """Buffers and parameters of one kernel."""

    def __init__(self, indexer: Indexer) -> None:
        self.indexer = indexer
        self.fusion = indexer.scheduled.fusion
        self.scratch: list[Buffer] = []
        self.scalars: dict[Scalar, ScalarParameter] = {}
        self.parameters: dict[TensorView, TensorParameter] = {}
        self._buffers: dict[TensorView, Buffer] = {}
        self._running: dict[TensorView, Access] = {}
        self._strides: dict[TensorView, dict[IterDomain, IntExpr]] = {}
        outputs = (v for v in self.fusion.outputs if isinstance(v, TensorView))
        written = dict.fromkeys(map(written_tensor, outputs))
        for tensor in self.fusion.input_tensors:
            if tensor not in written or tensor in self.fusion.outputs:
                self._parameter(tensor, is_output=False)
        for tensor in written:
            if tensor not in self.parameters:
                self._parameter(tensor, is_output=True)

    def _parameter(self, tensor: TensorView, is_output: bool) -> None:
        schedule, strides = self.indexer.scheduled[tensor], self._tensor_strides(tensor, is_output)
        prefetch = as_expr(schedule.prefetch)
        if schedule.along is not None:
            prefetch = prefetch * strides[schedule.along] * size_in_bytes(tensor.dtype)
        buffer = Buffer(f"T{tensor.name}", tensor.dtype, MemoryType.global_, ZERO, tensor, prefetch)
        self._buffers[tensor], self._strides[tensor] = buffer, strides
        sizes = tuple(a.size if is_output else a.extent for a in tensor.axes)
        self.parameters[tensor] = TensorParameter(
            buffer,
            sizes,
            tuple(strides[a] for a in tensor.axes),
            is_output,
            may_alias=tensor in self.fusion.overwritten,
        )

    def _tensor_strides(self, tensor: TensorView, is_output: bool) -> dict[IterDomain, IntExpr]:
        """Stride in elements of each logical axis: symbols only if it isn't contiguous."""
        strides: dict[IterDomain, IntExpr] = {}
        running: IntExpr = ONE
        allocated = tensor.domain.allocated
        order = {axis: i for i, axis in enumerate(tensor.axes)}
        name = self.fusion.repeats.get(tensor, tensor).name
        for axis, contiguous in zip(
            reversed(allocated), reversed(tensor.domain.contiguity), strict=True
        ):
            if contiguous is None and not (is_output and axis.size is not ONE):
                strides[axis] = ZERO
                continue
            if contiguous is False and not is_output:
                running = Symbol.of(f"T{name}_stride_{order[axis]}")
            strides[axis] = running
            running = running * (axis.size if is_output else axis.extent)
        return strides

    def buffer(self, tensor: TensorView) -> Buffer:
        """The buffer of a tensor that isn't a parameter."""
        found = self._buffers.get(tensor)
        if found is None:
            memory = self.indexer.scheduled[tensor].memory_type
            size = product(self.indexer.buffer_extents(tensor))
            # an accumulator keeps the precision of the computation
            accumulates = tensor.expr is not None and tensor.expr.accumulates
            dtype = compute_dtype(tensor.dtype) if accumulates else tensor.dtype
            found = Buffer(f"T{tensor.name}", dtype, memory, size, tensor)
            self._buffers[tensor] = found
            if memory is MemoryType.global_:
                self.scratch.append(found)
        return found

    def running(self, tensor: TensorView) -> Access:
        """Where a scan keeps its running result: in registers, one for each row."""
        found = self._running.get(tensor)
        if found is None:
            indexer, expr = self.indexer, tensor.expr
            assert isinstance(expr, ScanOp)
            loops = [
                indexer.structure.loop(tensor, position)
                for position in running_positions(
                    indexer.structure, tensor, indexer.threads_are_hardware
                )
            ]
            extents = [loop.extent for loop in loops]
            dtype = SCANS[expr.op].running_dtype(tensor.dtype)
            name, local = f"T{tensor.name}_running", MemoryType.local
            buffer = Buffer(name, dtype, local, product(extents))
            offset = linear([loop.index for loop in loops], extents)
            found = self._running[tensor] = Access(buffer, offset)
        return found

    def own_access(self, tensor: TensorView) -> Access:
        """Where the tensor's own statement writes."""
        if tensor in self.parameters:
            expr = tensor.expr
            assert expr is not None
            leader = expr.tensor_outputs[0]
            indices, _ = self.indexer.indices(leader)
            pairs = dict(zip(tensor.axes, leader.axes, strict=True))
            offset = self._strided(tensor, {a: indices[b] for a, b in pairs.items()})
            return Access(self._buffers[tensor], offset)
        return Access(self.buffer(tensor), self.indexer.own_offset(tensor))

    def _strided(
        self, tensor: TensorView, indices: dict[IterDomain, IntExpr], is_output: bool = False
    ) -> IntExpr:
        offset: IntExpr = ZERO
        is_output |= tensor.expr is not None
        for axis, stride in self._strides[tensor].items():
            one_element = axis.extent is ONE and not (is_output and axis.size is not ONE)
            if not one_element:
                offset = offset + indices[axis] * stride
        return offset

    def read(self, expr: ReadOp, consumer: TensorView) -> Operand:
        """The operand through which a read's statement gets its value."""
        check_source(expr, self.fusion.inputs)
        indices = read_indices(self.indexer, consumer)
        source, *rest = expr.inputs
        others = [self.operand(expr, value, consumer) for value in rest]
        if isinstance(expr, GatherOp):
            assert isinstance(source, TensorView)
            axis = source.axes[expr.dim]
            offset = self._strided(source, gather_axes(expr, source, indices))
            stride = ZERO if axis.extent is ONE else self._strides[source][axis]
            access = Access(self._buffers[source], offset)
            known = gather_inside(expr, self.indexer.scheduled.is_by_hand)
            return Gathered(access, others[0], stride, axis.size, expr.wraps, known)
        assert isinstance(expr, WindowOp)
        value = self.operand(expr, source, consumer)
        if isinstance(source, TensorView):
            offset = self._strided(source, window_axes(expr, source, indices))
            value = Access(self._buffers[source], offset)
        conditions = inside(expr, consumer, indices)
        if not conditions:
            return value
        assert isinstance(value, Access | Literal | ScalarParameter)
        return Guarded(value, conditions, others[0])

    def place(self, expr: WriteOp, consumer: TensorView) -> Gathered:
        """The element that a write's statement sets."""
        target, indices = expr.target, read_indices(self.indexer, consumer)
        axis = target.axes[expr.dim]
        offset = self._strided(target, written_axes(expr, indices), is_output=True)
        stride = ZERO if axis.size is ONE else self._strides[target][axis]
        position = self.operand(expr, expr.index, consumer)
        access, fits = Access(self._buffers[target], offset), write_predicate(expr, consumer)
        return Gathered(access, position, stride, axis.size, expr.wraps, fits)

    def operand(self, expr: Expr, value: Val, consumer: TensorView) -> Operand:
        """The operand through which the statement of `consumer` reads one of its inputs.

        A seed is never part of a kernel: even a constant one is a parameter.
        """
        if isinstance(value, Scalar):
            if value.constant is not None and not isinstance(expr, RandomOp):
                return Literal(value.constant, value.dtype)
            parameter = self.scalars.get(value)
            if parameter is None:
                parameter = ScalarParameter(f"s{value.name}", value.dtype, value, is_seed(value))
                self.scalars[value] = parameter
            return parameter
        assert isinstance(value, TensorView)
        if value in self.parameters:
            axes = self.indexer.producer_axes(expr, value, consumer)
            return Access(
                self._buffers[value],
                self._strided(value, {a: axes.get(a, ZERO) for a in value.axes}),
            )
        return Access(self.buffer(value), self.indexer.producer_offset(expr, value, consumer))


def written_tensor(output: TensorView) -> TensorView:
    """The tensor whose memory an output's statement writes: itself, or the target of a write."""
    return output.expr.target if isinstance(output.expr, WriteOp) else output
