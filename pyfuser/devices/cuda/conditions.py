"""Statements under conditions, and their translation to nested `if`s.

A body is a list of Items: lines of C++ with the conditions under which they run.  `assemble` puts
neighbours with a common condition under one `if`, and `hoisted` finds the conditions that can be
moved out of a whole loop.  Because conditions stay apart from text until the end, a loop over
threads can disappear and a collective operation can stay outside all conditions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from ...ir.domains import ParallelType
from ...ir.kernel import Less
from ...ir.scalars import ONE, Symbol
from .spelling import Assignment, Declaration, condition_text

Conditions = tuple[Less, ...]

INDENT = "  "


@dataclass(frozen=True, slots=True)
class Item:
    """Lines that run if all conditions hold.

    `declares` is a variable instead, declared at the beginning of its body.
    """

    lines: list[str]
    conditions: Conditions = ()
    declares: Declaration | None = None


def is_first(axis: ParallelType) -> Less:
    """The condition of being at index 0 of a grid or block axis: `index < 1`."""
    return Less(Symbol.of(axis.value), ONE)


def without_repeats(conditions: Sequence[Less]) -> Conditions:
    """The conditions in order, each once."""
    return tuple(dict.fromkeys(conditions))


def indented(lines: Sequence[str]) -> list[str]:
    """The lines one level deeper; preprocessor directives too."""
    return [INDENT + line for line in lines]


def hoisted(items: Sequence[Item], index: Symbol) -> tuple[list[Item], Conditions]:
    """(the items without the conditions that all share and that `index` doesn't change, these)."""
    statements = [item for item in items if item.declares is None]
    if not statements:
        return list(items), ()
    shared = tuple(
        c
        for c in statements[0].conditions
        if index not in c.a.symbols | c.b.symbols and all(c in s.conditions for s in statements)
    )
    rest = [
        Item(i.lines, tuple(c for c in i.conditions if c not in shared), i.declares) for i in items
    ]
    return rest, shared


def assemble(items: Sequence[Item]) -> list[str]:
    """The lines of a body: declarations, then statements under few `if`s, in order."""
    declarations = [item.declares for item in items if item.declares is not None]
    statements = [item for item in items if item.declares is None]
    return _joined(declarations, statements) + _nested(statements)


def _joined(declarations: list[Declaration], statements: list[Item]) -> list[str]:
    """The declarations, initialised by the first statements, which are removed from the list."""
    left = {each.name: each for each in declarations}
    joined: list[str] = []
    while statements and not statements[0].conditions and len(statements[0].lines) == 1:
        (line,) = statements[0].lines
        if not isinstance(line, Assignment) or line.target not in left:
            break
        joined.append(Assignment.of(line.target, line.value, left.pop(line.target).kind))
        statements.pop(0)
    return [*left.values(), *joined]


def _nested(items: list[Item]) -> list[str]:
    lines: list[str] = []
    for condition, group in groupby(items, lambda i: i.conditions[0] if i.conditions else None):
        members = list(group)
        if condition is None:
            lines += [line for item in members for line in item.lines]
            continue
        texts = [condition_text(condition)]
        rest = [_dropped(item) for item in members]
        while (following := _common_first(rest)) is not None:
            texts.append(condition_text(following))
            rest = [_dropped(item) for item in rest]
        lines += [f"if ({' && '.join(texts)}) {{", *indented(_nested(rest)), "}"]
    return lines


def _dropped(item: Item) -> Item:
    return Item(item.lines, item.conditions[1:])


def _common_first(items: list[Item]) -> Less | None:
    firsts = {item.conditions[0] if item.conditions else None for item in items}
    return firsts.pop() if len(firsts) == 1 else None
