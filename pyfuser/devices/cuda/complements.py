"""1 + tanh(x) and 1 + erf(x) as functions of x, where few bits of them are needed.

    T4 = tanh(T3)
    T5 = add(T4, 1.0) to 12 bits    ->    T5 = one_plus_tanh(T3) to 12 bits

A tanh that nothing else reads is gone.  The two statements are in one body, so that T3 is still in
a register.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeGuard

from ...ir.kernel import Access, Allocate, Buffer, Compute, For, Literal, Statement
from ...ir.kernel_queries import accesses, walk
from ...ir.scalars import IntExpr
from .expressions import HALF_BITS, in_registers

COMPLEMENTS = {"tanh": "one_plus_tanh", "erf": "one_plus_erf"}

Functions = dict[tuple[Buffer, IntExpr], Compute]


def with_complements(body: Sequence[Statement]) -> list[Statement]:
    """The statements of a phase, with the complements that they compute."""
    made = _merged(body)
    read = {access.buffer for each in walk(made) for access in _read(each)}
    return _without(made, {s.output.buffer for s in walk(made) if _is_function(s)} - read)


def _merged(body: Iterable[Statement]) -> list[Statement]:
    functions: Functions = {}
    made: list[Statement] = []
    for statement in body:
        match statement:
            case For():
                made.append(replace(statement, body=_merged(statement.body)))
            case Compute(op="add", bits=bits) if 0 < bits <= HALF_BITS:
                made.append(_complement(statement, functions))
            case _:
                made.append(statement)
        if _is_function(statement):
            functions[statement.output.buffer, statement.output.index] = statement
    return made


def _is_function(statement: Statement) -> TypeGuard[Compute]:
    """True for a tanh or an erf of a register in a register."""
    if not isinstance(statement, Compute) or statement.op not in COMPLEMENTS:
        return False
    operand = statement.inputs[0]
    is_of_register = isinstance(operand, Access) and in_registers(operand.buffer)
    return is_of_register and in_registers(statement.output.buffer)


def _complement(add: Compute, functions: Functions) -> Compute:
    """The addition as a function, if it is one."""
    for one, other in (add.inputs, add.inputs[::-1]):
        if isinstance(one, Literal) and one.value == 1 and isinstance(other, Access):
            found = functions.get((other.buffer, other.index))
            if found is not None:
                op, compute = COMPLEMENTS[found.op], found.compute
                return replace(add, op=op, inputs=found.inputs, compute=compute)
    return add


def _read(statement: Statement) -> list[Access]:
    """What a statement reads; for all but a function, what it writes counts too."""
    found = list(accesses(statement))
    return found[1:] if _is_function(statement) else found


def _without(body: Iterable[Statement], gone: set[Buffer]) -> list[Statement]:
    """The body without the functions in these buffers."""
    made: list[Statement] = []
    for statement in body:
        match statement:
            case For():
                made.append(replace(statement, body=_without(statement.body, gone)))
            case Allocate(buffer=buffer) | Compute(output=Access(buffer=buffer)) if buffer in gone:
                pass
            case _:
                made.append(statement)
    return made
