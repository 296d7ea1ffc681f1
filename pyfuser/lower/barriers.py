"""Inserts barriers between threads that write shared or scratch memory and others that read it.

Runs after the nests are built, only for devices whose threads run concurrently.  Inside the loops
over all threads of a block, a barrier is needed only for what some of the threads write; the device
must ensure that all threads reach it.

Before:  for threadIdx.x { T1[..] = ... }  for threadIdx.x { ... = T1[..] }
After:   for threadIdx.x { T1[..] = ... }  barrier  for threadIdx.x { ... = T1[..] }
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ..ir.domains import ParallelType
from ..ir.kernel import (
    Access,
    Barrier,
    Buffer,
    Compute,
    For,
    Initialise,
    Reduce,
    Scan,
    Scatter,
    Statement,
)
from ..ir.kernel_queries import accesses, walk
from ..ir.scalars import ONE
from ..ir.schedule import MemoryType


def _visible(found: Iterable[Access], parameters: set[Buffer]) -> set[Buffer]:
    return {
        a.buffer
        for a in found
        if a.buffer.memory is not MemoryType.local and a.buffer not in parameters
    }


def _reads_and_writes(
    statement: Statement, parameters: set[Buffer]
) -> tuple[set[Buffer], set[Buffer]]:
    reads: list[Access] = []
    writes: list[Access] = []
    for inner in walk([statement]):
        touched = list(accesses(inner))
        match inner:
            case Compute() | Scatter():
                writes.append(touched[0])
                reads += touched[1:]
            case Reduce():
                writes += inner.outputs
                reads += touched[len(inner.outputs) :]
            case Initialise():
                writes += inner.outputs
            case Scan():
                writes += touched[:2]
                reads += touched[1:]
    return _visible(reads, parameters), _visible(writes, parameters)


def written_by_some(body: list[Statement], block: Collection[ParallelType]) -> set[Buffer]:
    """The buffers that only some threads write: some block axis has no loop around the write."""
    found: set[Buffer] = set()
    for statement in body:
        if isinstance(statement, For):
            kind = statement.parallel_type
            found |= written_by_some(statement.body, [k for k in block if k is not kind])
        elif block:
            found |= _reads_and_writes(statement, set())[1]
    return found


def insert_barriers(
    body: list[Statement],
    inputs: set[Buffer],
    partial: set[Buffer],
    block: Collection[ParallelType],
) -> list[Statement]:
    """The body with the barriers it needs.

    `inputs` are parameters that are never written, `block` the axes of the block that have no loop
    around the body. `partial` is the result of `written_by_some`: inside the loops over all axes,
    where a thread reads what it wrote itself, only these buffers need barriers.
    """
    result: list[Statement] = []
    written: set[Buffer] = set()
    read: set[Buffer] = set()
    for statement in body:
        if isinstance(statement, For):
            kind = statement.parallel_type
            left = [axis for axis in block if axis is not kind]
            inner = insert_barriers(statement.body, inputs, partial, left)
            repeats = not kind.is_thread and statement.stop is not ONE
            if repeats and any(isinstance(s, Barrier) for s in walk(inner)):
                inner.append(Barrier())  # the next iteration writes what this one still reads
            statement.body = inner
        reads, writes = _reads_and_writes(statement, inputs)
        if not block:
            reads, writes = reads & partial, writes & partial
        if reads & written or writes & read:
            result.append(Barrier())
            written, read = set(), set()
        written |= writes
        read |= reads
        result.append(statement)
    return result
