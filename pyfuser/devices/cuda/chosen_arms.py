"""An expensive value that a `where` chooses inside or outside of a window is only computed there.

    T3 = exp(T2)                           T3 = exp(T2) if i < k
    T4 = true if i < k else false    ->    T4 = true if i < k else false
    T6 = where(T4, T3, T5)                 T6 = where(T4, T3, T5)

The parts of a cat are such values.  Neighbouring threads are nearly always in the same part, and a
branch that no thread of a warp takes costs next to nothing.  What else nothing but T6 needs has the
condition too; cheap values alone aren't worth a branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...ir.kernel import (
    Access,
    Allocate,
    Buffer,
    Compute,
    For,
    Guarded,
    Less,
    Literal,
    Operand,
    Predicate,
)
from ...ir.kernel_queries import may_refuse, operands
from ...ops.random_numbers import DISTRIBUTIONS
from ...ops.table import OPS

_Readers = dict[Buffer, list[tuple[Compute, Operand]]]


def with_chosen_arms(loop: For) -> For:
    """A loop over elements with these conditions; itself if there is nothing to choose."""
    computed = [each for each in loop.body if isinstance(each, Compute)]
    own = {each.buffer for each in loop.body if isinstance(each, Allocate)}
    windows = {each.output.buffer: inside for each in computed if (inside := _window(each))}
    if not windows or len(computed) + len(own) < len(loop.body):
        return loop
    readers = _readers(computed)
    added: dict[Compute, list[Less]] = {each: [] for each in computed}
    for choice in reversed([each for each in computed if each.op == "where"]):
        mask, *arms = choice.inputs
        inside = windows.get(mask.buffer, ()) if isinstance(mask, Access) else ()
        for arm, predicate in zip(arms, (inside, _outside(inside)), strict=True):
            needed = _only_for(choice, arm, computed, readers, own) if predicate else ()
            if any(OPS[each.op].is_expensive for each in needed):
                for each in needed:
                    added[each] += predicate
    body = [
        replace(each, predicate=(*each.predicate, *added[each]))
        if isinstance(each, Compute) and added[each]
        else each
        for each in loop.body
    ]
    return replace(loop, body=body)


def _window(statement: Compute) -> Predicate:
    """The conditions that a register is the truth of; none if it is something else."""
    match statement:
        case Compute(
            op="set",
            inputs=(Guarded(value=Literal(True), inside=inside, otherwise=Literal(False)),),
            predicate=(),
        ):
            return inside
        case _:
            return ()


def _outside(inside: Predicate) -> Predicate:
    """The condition that a single one isn't met; none if there are several."""
    return tuple(Less(each.b - 1, each.a) for each in inside) if len(inside) == 1 else ()


def _readers(computed: Sequence[Compute]) -> _Readers:
    """The statements that read a buffer, each with the operand that does."""
    found: _Readers = {}
    for statement in computed:
        for operand in statement.inputs:
            for part in operands((operand,)):
                if isinstance(part, Access):
                    found.setdefault(part.buffer, []).append((statement, operand))
    return found


def _only_for(
    choice: Compute,
    arm: Operand,
    computed: Sequence[Compute],
    readers: _Readers,
    own: set[Buffer],
) -> list[Compute]:
    """The statements whose results nothing but this operand of the `where` needs.

    Random numbers come several at a time, for several elements; what may refuse a value does so on
    all devices alike.
    """
    found: set[Compute] = set()
    for statement in reversed(computed):
        buffer = statement.output.buffer
        if buffer not in own or statement.op in DISTRIBUTIONS or may_refuse(statement):
            continue
        reading = readers.get(buffer, [])
        if reading and all(
            reader in found or (reader is choice and operand is arm) for reader, operand in reading
        ):
            found.add(statement)
    return [each for each in computed if each in found]
