"""Puts barriers between threads that write shared or scratch memory and others that read it.

Stands after the nests are built and only for devices whose threads run at once.  Barriers never go
inside a thread loop, where not all threads may come by.

Before:  for threadIdx.x { T1[..] = ... }  for threadIdx.x { ... = T1[..] }
After:   for threadIdx.x { T1[..] = ... }  barrier  for threadIdx.x { ... = T1[..] }
"""

from __future__ import annotations

from collections.abc import Iterable

from ..ir.kernel import Access, Barrier, Buffer, Compute, For, Initialise, Reduce, Statement, accesses
from ..ir.kernel import walk
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
            case Compute():
                writes.append(touched[0])
                reads += touched[1:]
            case Reduce():
                writes += inner.outputs
                reads += touched[len(inner.outputs) :]
            case Initialise():
                writes += inner.outputs
    return _visible(reads, parameters), _visible(writes, parameters)


def insert_barriers(body: list[Statement], inputs: set[Buffer]) -> list[Statement]:
    """The body with the barriers it needs; `inputs` are parameters that nobody writes."""
    result: list[Statement] = []
    written: set[Buffer] = set()
    read: set[Buffer] = set()
    for statement in body:
        if isinstance(statement, For) and not statement.parallel_type.is_block:
            inner = insert_barriers(statement.body, inputs)
            repeats = not statement.parallel_type.is_grid
            if repeats and any(isinstance(s, Barrier) for s in inner):
                inner.append(Barrier())  # the next iteration writes what this one still reads
            statement.body = inner
        reads, writes = _reads_and_writes(statement, inputs)
        if reads & written or writes & read:
            result.append(Barrier())
            written, read = set(), set()
        written |= writes
        read |= reads
        result.append(statement)
    return result
