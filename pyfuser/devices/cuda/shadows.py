"""Registers that stand in for results in memory, if one reduction has results in both.

A welford may have its mean in memory (an output of the fusion) and its other results in registers.
Every thread has its own registers, while memory is written by one thread. Such a statement
therefore works only on registers, on a shadow of each result that is in memory, and then stores the
shadows.
"""

from __future__ import annotations

from dataclasses import replace

from ...ir.kernel import Access, Buffer, Initialise, Phase, Reduce
from ...ir.kernel_queries import walk
from ...ir.schedule import MemoryType
from .expressions import access_text


def _local(statement: Initialise | Reduce) -> Access | None:
    """A result in registers, of a statement that has other results in memory."""
    local = [o for o in statement.outputs if o.buffer.memory is MemoryType.local]
    return local[0] if 0 < len(local) < len(statement.outputs) else None


def shadows_of(phase: Phase) -> dict[Buffer, Buffer]:
    """Buffer in memory -> its shadow, which has the size of a result in registers.

    A shadow's `tensor` is that of this result: the two are declared together.
    """
    shadows: dict[Buffer, Buffer] = {}
    for statement in walk(phase.body):
        if isinstance(statement, Initialise | Reduce) and (beside := _local(statement)):
            for output in statement.outputs:
                buffer = output.buffer
                if buffer.memory is not MemoryType.local:
                    shadows[buffer] = Buffer(
                        f"{buffer.name}_shadow",
                        buffer.dtype,
                        MemoryType.local,
                        beside.buffer.size,
                        beside.buffer.tensor,
                    )
    return shadows


def with_shadows(
    statement: Initialise | Reduce, shadows: dict[Buffer, Buffer]
) -> tuple[Initialise | Reduce, list[str]]:
    """The statement on registers only, and the stores that update memory."""
    beside = _local(statement)
    if beside is None:
        return statement, []
    outputs = tuple(
        Access(shadows[o.buffer], beside.index) if o.buffer in shadows else o
        for o in statement.outputs
    )
    stores = [
        f"{access_text(memory)} = {access_text(shadow)};"
        for memory, shadow in zip(statement.outputs, outputs, strict=True)
        if memory is not shadow
    ]
    return replace(statement, outputs=outputs), stores
