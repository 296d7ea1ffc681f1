"""Facts about a kernel's statements that decide how the code generator writes them.

Kernel, statements -> the width of lanes, the buffers that are registers, the NaNs that may occur.
"""

from __future__ import annotations

from ...dtypes import FLOAT8, DataType, compute_dtype, is_floating, size_in_bytes
from ...ir.domains import GRID
from ...ir.kernel import (
    Allocate,
    Buffer,
    Compute,
    For,
    Initialise,
    Kernel,
    Phase,
    Reduce,
    Scan,
    Scatter,
    Statement,
)
from ...ir.kernel_queries import accesses, walk
from ...ir.scalars import ONE
from ...ir.schedule import MemoryType
from ...ops.random_numbers import DISTRIBUTIONS


def has_short_nans(kernel: Kernel) -> bool:
    """True if all floating numbers from outside are of dtypes with no more bits than bfloat16.

    An operation on NaN gives one of its operands or the default NaN, whose low bits aren't set.
    """
    if any(isinstance(s, Scatter) for phase in kernel.phases for s in walk(phase.body)):
        return False  # reads what is in an output
    tensors = (tensor.buffer.dtype for tensor in kernel.tensors if not tensor.is_output)
    dtypes = {*tensors, *(scalar.dtype for scalar in kernel.scalars)}
    return {dtype for dtype in dtypes if is_floating(dtype)} <= {DataType.BFloat16, *FLOAT8}


def widest(statement: Statement) -> int:
    """The bytes of the widest element that a statement computes with."""
    match statement:
        case Compute(op=op, result=result) if op in DISTRIBUTIONS:
            return size_in_bytes(compute_dtype(result))  # lanes share the wider words
        case Compute():
            types = (*statement.compute, statement.result)
            return max(size_in_bytes(compute_dtype(d)) for d in types if d is not DataType.Null)
        case Scatter(output=output):
            return size_in_bytes(compute_dtype(output.buffer.dtype))
        case Scan(running=running):
            return size_in_bytes(running.buffer.dtype)
        case Reduce() | Initialise():
            return max(size_in_bytes(o.buffer.dtype) for o in statement.outputs)
        case _:
            return 1


def register_buffers(phase: Phase) -> set[Buffer]:
    """Local buffers of one element that one kind of statement writes, without accumulation.

    A register is known only where it was computed, so these are in the loops that read them.
    """
    found: set[Buffer] = set()
    excluded: set[Buffer] = set()
    for statement in walk(phase.body):
        match statement:
            case Allocate(buffer=buffer):
                if buffer.memory is MemoryType.local and buffer.size is ONE:
                    found.add(buffer)
            case Initialise() | Reduce():
                excluded.update(o.buffer for o in statement.outputs)
            case For(parallel_type=kind) if kind in GRID and statement.stop is not phase.grid[kind]:
                excluded |= _buffers_from_outside(statement)  # some tasks have no such loop
    return found - excluded


def _buffers_from_outside(loop: For) -> set[Buffer]:
    """The buffers that the body of a loop accesses and doesn't allocate."""
    inside = list(walk(loop.body))
    used = {access.buffer for statement in inside for access in accesses(statement)}
    return used - {each.buffer for each in inside if isinstance(each, Allocate)}
