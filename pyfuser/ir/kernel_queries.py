"""Questions about the statements of a kernel: which there are, what they read, write and need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from .kernel import (
    Access,
    Compute,
    For,
    Gathered,
    Guarded,
    If,
    IndexValue,
    Initialise,
    Operand,
    Reduce,
    Scan,
    Scatter,
    Statement,
)
from .scalars import IntExpr


def walk(statements: list[Statement]) -> Iterator[Statement]:
    """Every statement, loops and branches before their bodies."""
    for statement in statements:
        yield statement
        if isinstance(statement, For | If):
            yield from walk(statement.body)
        if isinstance(statement, If):
            yield from walk(statement.otherwise)


def may_refuse(statement: Statement) -> bool:
    """True if a call may be refused because of the values that a statement reads."""
    match statement:
        case Compute(inputs=inputs, is_checked=is_checked):
            return is_checked or any(isinstance(o, Gathered) for o in operands(inputs))
        case Reduce(inputs=inputs) | Scan(inputs=inputs) | Scatter(inputs=inputs):
            return any(isinstance(o, Gathered) for o in operands(inputs))
        case _:
            return False


def operands(inputs: Iterable[Operand]) -> Iterator[Operand]:
    """The operands and their sub-operands."""
    for operand in inputs:
        yield operand
        match operand:
            case Gathered(access=access, position=position):
                yield from operands((access, position))
            case Guarded(value=value, otherwise=otherwise):
                yield from operands((value, otherwise))


def operand_sizes(inputs: Iterable[Operand]) -> Iterator[IntExpr]:
    """The symbolic integers of operands other than the indices of their accesses."""
    for operand in operands(inputs):
        match operand:
            case IndexValue(expr=expr):
                yield expr
            case Gathered(stride=stride, extent=extent, inside=inside):
                yield from (stride, extent)
                yield from (side for less in inside for side in (less.a, less.b))
            case Guarded(inside=inside):
                yield from (side for less in inside for side in (less.a, less.b))


def written(statement: Compute | Initialise | Reduce | Scan | Scatter) -> Sequence[Access]:
    """What a statement writes; the running result of a scan isn't among it."""
    if isinstance(statement, Initialise | Reduce):
        return statement.outputs
    return (statement.output,)


def accesses(statement: Statement) -> Iterator[Access]:
    """The memory a statement touches, outputs first."""
    match statement:
        case Compute(output=output, inputs=inputs):
            yield output
            yield from (i for i in operands(inputs) if isinstance(i, Access))
        case Initialise(outputs=outputs):
            yield from outputs
        case Reduce(outputs=outputs, inputs=inputs):
            yield from outputs
            yield from (i for i in operands(inputs) if isinstance(i, Access))
        case Scan(output=output, running=running, inputs=inputs):
            yield from (output, running)
            yield from (i for i in operands(inputs) if isinstance(i, Access))
        case Scatter(output=output, inputs=inputs):
            yield output
            yield from (i for i in operands(inputs) if isinstance(i, Access))
