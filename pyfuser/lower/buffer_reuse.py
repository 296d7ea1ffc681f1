"""Lets a buffer reuse the memory of another that is no longer read.

Runs after the nests are built, because their order decides how long a buffer lives, and before
barriers are inserted, which then see that the memory is rewritten after it was read.  Only buffers
of the same body, memory kind, dtype and size are joined; registers of one element are left to the
code generators.

Before:  allocate T1[n]  T1 = ...  ... = T1  allocate T2[n]  T2 = ...  ... = T2
After:   allocate T1[n]  T1 = ...  ... = T1  T1 = ...  ... = T1
"""

from __future__ import annotations

from ..ir.kernel import (
    Allocate,
    Buffer,
    For,
    Statement,
)
from ..ir.kernel_queries import accesses, walk
from ..ir.scalars import ONE


def reuse_buffers(body: list[Statement]) -> list[Statement]:
    """The body with fewer allocations; accesses are changed in place."""
    for statement in body:
        if isinstance(statement, For):
            statement.body = reuse_buffers(statement.body)
    own = {s.buffer for s in body if isinstance(s, Allocate) and s.buffer.size is not ONE}
    if len(own) < 2:
        return body
    last_use = _last_uses(body, own)
    ending: dict[int, list[Buffer]] = {}
    for buffer, last in last_use.items():
        ending.setdefault(last, []).append(buffer)
    free: list[Buffer] = []
    kept: list[Statement] = []
    for position, statement in enumerate(body):
        if isinstance(statement, Allocate) and statement.buffer in own:
            old = next((b for b in free if _fits(b, statement.buffer)), None)
            if old is not None:
                free.remove(old)
                _redirect(body, statement.buffer, old)
                last = last_use.pop(statement.buffer, position)
                if statement.buffer in ending.get(last, ()):
                    ending[last].remove(statement.buffer)
                ending.setdefault(last, []).append(old)
                continue
        kept.append(statement)
        free += ending.get(position, ())
    return kept


def _last_uses(body: list[Statement], own: set[Buffer]) -> dict[Buffer, int]:
    """The position of the last statement that touches each of a body's own buffers."""
    return {
        access.buffer: position
        for position, statement in enumerate(body)
        for inner in walk([statement])
        for access in accesses(inner)
        if access.buffer in own
    }


def _fits(old: Buffer, new: Buffer) -> bool:
    return (old.memory, old.dtype, old.size) == (new.memory, new.dtype, new.size)


def _redirect(body: list[Statement], new: Buffer, old: Buffer) -> None:
    for statement in walk(body):
        for access in accesses(statement):
            if access.buffer is new:
                access.buffer = old
