"""Makes a failing schedule by hand small: fewer lines, operands for results, smaller numbers.

Greedy, like the shrinking of programs: a change stays if the case still fails in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from pyfuser import FusionDefinition
from pyfuser.dtypes import from_torch
from pyfuser.errors import PyfuserError
from pyfuser.ops.evaluator import evaluate
from tests.programs.outcome import Outcome
from tests.programs.scheduled_case import ScheduledCase, names_of
from tests.programs.shrink import smallest

_NAME = re.compile(r"\b(?:tv|made|c)\d+(?:_\d+)?\b")
_INPUT = re.compile(r"= fd\.define_tensor\(|= fd\.define_scalar\(None")


def smaller_case(
    case: ScheduledCase,
    outcome: Outcome,
    judge: Callable[[ScheduledCase], Outcome],
    seconds: float,
) -> ScheduledCase:
    """The smallest case found within a time that fails as `outcome` says."""

    def smaller(case: ScheduledCase) -> Iterator[ScheduledCase]:
        return map(_without_unread_inputs, _candidates(case))

    return smallest(case, smaller, _size, judge, outcome, seconds, key=lambda case: case.lines)


def _size(case: ScheduledCase) -> tuple[int, ...]:
    """The measures that shrinking reduces, the most important first."""
    inputs = [bool(_INPUT.search(line)) for line in case.lines]
    numbers = sum(int(n) for line in case.lines for n in re.findall(r"\b\d+\b", line))
    text = sum(len(line) for line, is_input in zip(case.lines, inputs, strict=True) if not is_input)
    return inputs.count(False), inputs.count(True), text, numbers


def _candidates(case: ScheduledCase) -> Iterator[ScheduledCase]:
    """Cases that are a little smaller."""
    count = len(case.lines)
    for chunk in dict.fromkeys((count // 2, count // 4, 1)):
        for start in range(0, count, chunk) if chunk else ():
            yield _without(case, range(start, min(start + chunk, count)))
    yield from _operands(case)
    yield from _results_as_inputs(case)
    yield from _smaller_numbers(case)


def _targets(line: str) -> list[str]:
    """The names that a line defines."""
    before, found, _ = line.partition(" = ")
    return _NAME.findall(before) if found and "(" not in before else []


def _reads(line: str) -> set[str]:
    return set(_NAME.findall(line)) - set(_targets(line))


def _without(case: ScheduledCase, places: range) -> ScheduledCase:
    """The case without some lines, except for inputs, and the readers of their results."""
    gone: set[str] = set()
    kept: list[str] = []
    for place, line in enumerate(case.lines):
        if (place in places and not _INPUT.search(line)) or _reads(line) & gone:
            gone |= set(_targets(line))
        else:
            kept.append(line)
    return replace(case, lines=tuple(kept))


def _without_unread_inputs(case: ScheduledCase) -> ScheduledCase:
    read = {name for line in case.lines for name in _reads(line)}
    places = [place for place, line in enumerate(case.lines) if _INPUT.search(line)]
    unread = [not read & set(_targets(case.lines[place])) for place in places]
    gone = {place for place, is_unread in zip(places, unread, strict=True) if is_unread}
    kept = tuple(x for x, is_unread in zip(case.inputs, unread, strict=True) if not is_unread)
    lines = tuple(line for place, line in enumerate(case.lines) if place not in gone)
    return ScheduledCase(lines, kept)


def _operands(case: ScheduledCase) -> Iterator[ScheduledCase]:
    """Replaces a result by one of its operands."""
    for place, line in enumerate(case.lines):
        targets = _targets(line)
        if len(targets) == 1 and not _INPUT.search(line):
            for name in sorted(_reads(line)):
                old = re.compile(rf"\b{targets[0]}\b")
                later = [old.sub(name, other) for other in case.lines[place + 1 :]]
                yield replace(case, lines=(*case.lines[:place], *later))


def _results_as_inputs(case: ScheduledCase) -> Iterator[ScheduledCase]:
    """A result is given instead of computed."""
    for place, line in reversed(list(enumerate(case.lines))):
        targets = _targets(line)
        if len(targets) != 1 or not targets[0].startswith("tv") or _INPUT.search(line):
            continue
        value = _value(case, place)
        if value is None:
            continue
        before = sum(bool(_INPUT.search(each)) for each in case.lines[:place])
        shape = [1 if size == 1 else -1 for size in value.shape]
        made = f"{targets[0]} = fd.define_tensor({shape}, contiguity=True, "
        made += f"dtype={from_torch(value.dtype)})"
        lines = (*case.lines[:place], made, *case.lines[place + 1 :])
        yield ScheduledCase(lines, (*case.inputs[:before], value, *case.inputs[before:]))


def _value(case: ScheduledCase, place: int) -> Any:
    """The tensor that a line of the definition computes; None if it can't be said."""
    lines = [line for line in case.lines[:place] if not line.startswith("fd.add_output")]
    lines += [case.lines[place], f"fd.add_output({_targets(case.lines[place])[0]})"]
    count = sum(bool(_INPUT.search(line)) for line in lines)
    try:
        with FusionDefinition() as fd:
            names = names_of(fd)
            for line in lines:
                exec(line, names)
        given = [x.clone() if isinstance(x, torch.Tensor) else x for x in case.inputs[:count]]
        return evaluate(fd.fusion.definition, given, updates=False)[0]
    except (PyfuserError, RuntimeError, NameError, NotImplementedError):
        return None  # a line of the schedule, or not a definition any longer


def _smaller_numbers(case: ScheduledCase) -> Iterator[ScheduledCase]:
    """Smaller numbers, and no arguments after the first, in lines of the schedule."""
    for place, line in enumerate(case.lines):
        if _INPUT.search(line):
            continue
        shorter = [re.sub(r", [^,]*\)$", ")", line)]
        for found in re.finditer(r"(?<![\w.])[1-9]\d*\b", line):
            number = int(found[0])
            for less in dict.fromkeys((0, 1, 2, number - 1)):
                if less < number:
                    shorter.append(f"{line[: found.start()]}{less}{line[found.end() :]}")
        for each in shorter:
            if each != line:
                yield replace(case, lines=(*case.lines[:place], each, *case.lines[place + 1 :]))
