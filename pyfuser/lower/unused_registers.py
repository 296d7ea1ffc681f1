"""Removes what a body computes only for registers that nothing reads.

Before:  a = sin(x); b = cos(x); out = b      (a and b are registers)
After:   b = cos(x); out = b
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from ..ir.kernel import Allocate, Buffer, Compute, For, Statement
from ..ir.kernel_queries import accesses, walk


def drop_unused_registers(body: list[Statement]) -> None:
    """Removes what only writes registers of this body that nothing reads, and these."""
    own = {s.buffer for s in walk(body) if isinstance(s, Allocate)}
    reads = Counter(buffer for s in walk(body) for buffer in _read(s))
    writers: dict[Buffer, list[Compute]] = {}
    for statement in walk(body):
        if isinstance(statement, Compute) and not statement.is_checked:  # that may refuse a value
            writers.setdefault(statement.output.buffer, []).append(statement)
    unread = [buffer for buffer in own if not reads[buffer]]
    dropped: set[int] = set()
    while unread:
        for statement in writers.pop(unread.pop(), ()):
            dropped.add(id(statement))
            for buffer in _read(statement):
                reads[buffer] -= 1
                if not reads[buffer] and buffer in own:
                    unread.append(buffer)
    _drop(body, lambda statement: id(statement) in dropped)
    used = {access.buffer for statement in walk(body) for access in accesses(statement)}
    _drop(body, lambda s: isinstance(s, Allocate) and s.buffer not in used)


def _read(statement: Statement) -> Iterator[Buffer]:
    """What a statement reads, or writes in another way than by storing a value."""
    for access in accesses(statement):
        if not (isinstance(statement, Compute) and access is statement.output):
            yield access.buffer


def _drop(body: list[Statement], is_dropped: Callable[[Statement], bool]) -> None:
    body[:] = [statement for statement in body if not is_dropped(statement)]
    for statement in body:
        if isinstance(statement, For):
            _drop(statement.body, is_dropped)
