"""Copies from memory into a thread's own part of shared memory that don't wait for their values.

Statements -> whether they are such copies.  A thread begins all copies of its row (`begin_copy`,
memory.cuh) and waits once, before the first other statement: the whole row is under way, in no
register.  Elements have at least four bytes, which is the least that the hardware copies this way.
"""

from __future__ import annotations

from ...dtypes import size_in_bytes
from ...ir.kernel import Access, Allocate, Compute, For, Statement
from ...ir.kernel_queries import walk
from ...ir.schedule import MemoryType
from .expressions import access_text, is_private_array

WAIT = "wait_for_copies();"
_SIZES = (4, 8, 16)


def is_async_copy(statement: Statement) -> bool:
    """True for a plain copy of an element in global memory that the hardware can do by itself."""
    match statement:
        case Compute(op="set", output=output, inputs=(Access(buffer=source),), cache_op=""):
            return (
                is_private_array(output.buffer)
                and source.memory is MemoryType.global_
                and source.dtype is output.buffer.dtype
                and size_in_bytes(source.dtype) in _SIZES
            )
        case _:
            return False


def begins_copies(statement: Statement) -> bool:
    """True for a copy, and for loops that do nothing else."""
    if not isinstance(statement, For):
        return is_async_copy(statement)
    inner = [each for each in walk(statement.body) if not isinstance(each, For | Allocate)]
    return bool(inner) and all(map(is_async_copy, inner))


def copy_lines(statement: Compute) -> list[str]:
    """The call that begins a copy."""
    (source,) = statement.inputs
    assert isinstance(source, Access)
    return [f"begin_copy(&{access_text(statement.output)}, &{access_text(source)});"]
