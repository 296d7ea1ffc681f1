"""Switches: loops of at most one iteration, in which whole blocks are told apart from the others.

The schedulers make them, peeling cuts them in two (`lower/peeling.py`), and a body tests once which
part a block runs.
"""

from __future__ import annotations

from typing import TypeGuard

from ...ir.domains import ParallelType
from ...ir.kernel import For, Statement
from ...ir.scalars import ONE, ZERO, Integer, IntExpr, Max, Min, Symbol
from .spelling import index_text


def is_switch(statement: Statement) -> TypeGuard[For]:
    """True for a loop of at most one iteration, or for a part of one that peeling has cut."""
    match statement:
        case For(parallel_type=ParallelType.unswitch, index=Symbol(upper=upper)):
            return upper is ONE
        case _:
            return False


def is_rest_of(statement: Statement, switch: For) -> TypeGuard[For]:
    """True for the second part of a switch that peeling has cut."""
    return is_switch(statement) and statement.start is switch.stop


def positive_texts(expr: IntExpr) -> list[str]:
    """The conditions under which a number that isn't negative is more than 0."""
    match expr:
        case Integer(value=value) if value > 0:
            return []
        case Min():
            return list(dict.fromkeys([*positive_texts(expr.a), *positive_texts(expr.b)]))
        case Max() if expr.b is ZERO:
            return positive_texts(expr.a)
        case _:
            return [f"0 < {index_text(expr)}"]
