"""Variations of a scheduler's parameters: the vocabulary in which targets offer candidates.

A target says which values each field may have; candidates are the parameters that differ from the
heuristics' choice in one field, then those that differ in a pair of fields that belong together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, TypeVar

# Candidates of one kernel: each takes some 50 ms to compile and measure.
MOST_CANDIDATES = 20

Parameters = TypeVar("Parameters")
Values = Mapping[str, Sequence[Any]]


def varied(
    chosen: Parameters,
    values: Values,
    pairs: Sequence[tuple[str, str]] = (),
    completed: Callable[[Parameters], Parameters] = lambda parameters: parameters,
    is_valid: Callable[[Parameters], bool] = lambda parameters: True,
) -> list[Parameters]:
    """Candidates around `chosen`, each once, without `chosen` itself and invalid ones.

    `completed` sets the fields that follow from the others.
    """
    found: dict[Parameters, None] = {}
    for changes in _changes(values, pairs):
        made = completed(replace(chosen, **changes))  # type: ignore[type-var]
        if made != chosen and is_valid(made):
            found[made] = None
    return list(found)[:MOST_CANDIDATES]


def _changes(values: Values, pairs: Iterable[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    for name, options in values.items():
        yield from ({name: value} for value in options)
    for first, second in pairs:
        both = product(values.get(first, ()), values.get(second, ()))
        yield from ({first: a, second: b} for a, b in both)


def around(value: int, least: int, most: int, steps: Sequence[int] = (1,)) -> list[int]:
    """The value halved and doubled, `steps` times each, within bounds."""
    near = [value >> step for step in steps] + [value << step for step in steps]
    return [each for each in dict.fromkeys(near) if least <= each <= most and each != value]
