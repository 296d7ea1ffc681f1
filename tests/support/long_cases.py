"""Parameters of which a short run has only the first ones: the rest are marked `long`.

Of the combinations of several parameters, it has enough for each pair of values to be in one.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

_MOST_SHORT = 12


def long(*values: Any) -> Any:
    """One case, left out without --long."""
    return pytest.param(*values, marks=pytest.mark.long)


def first(count: int, cases: Sequence[Any]) -> list[Any]:
    """The cases, a tuple for each if there are several parameters; so many of them are short."""
    rest = [case if isinstance(case, tuple) else (case,) for case in cases[count:]]
    return [*cases[:count], *(long(*case) for case in rest)]


def pairwise(*lists: Iterable[Any], strength: int = 2, count: int | None = None) -> list[Any]:
    """All combinations of a value from each list, short if they are needed for the pairs.

    Each pair of values from two lists is in a short case; with `strength` 1 each value, with 3
    each three values of as many lists. `count` is the most short cases there may be, by default a
    dozen or as many as the longest list has values: they have each value, and as many pairs as they
    can. Values that come first in their lists are preferred, the choice is the same in every run,
    and the order is that of `itertools.product`.

    A value may be a `pytest.param`, with its own id, with several values, or a `long` one, which
    is in no short case.
    """
    params = [[_param(value) for value in values] for values in lists]
    candidates = [
        [place for place, param in enumerate(each) if not _is_long(param)] for each in params
    ]
    most = max(_MOST_SHORT, *map(len, candidates)) if count is None else count
    short = _covering(candidates, strength, most)
    cases = []
    for places in itertools.product(*(range(len(each)) for each in params)):
        chosen = [each[place] for each, place in zip(params, places, strict=True)]
        marks = [mark for param in chosen for mark in param.marks if mark.name != "long"]
        if places not in short:
            marks.append(pytest.mark.long)
        values = [value for param in chosen for value in param.values]
        name = "-".join(param.id for param in chosen if param.id)
        cases.append(pytest.param(*values, marks=marks, id=name))
    return cases


def _is_long(param: Any) -> bool:
    return any(mark.name == "long" for mark in param.marks)


def _param(value: Any) -> Any:
    """The value as a `pytest.param` that has an id."""
    param = value if isinstance(value, type(pytest.param())) else pytest.param(value)
    if param.id is not None:
        return param
    names = (getattr(each, "__name__", str(each)) for each in param.values)
    name = "-".join(each.removeprefix("torch.") for each in names)
    return pytest.param(*param.values, marks=param.marks, id=name)


def _covering(lists: Sequence[Sequence[int]], strength: int, count: int) -> set[tuple[int, ...]]:
    """Combinations that have all that was asked for: each is the one with the most that's new."""
    uses: dict[tuple[tuple[int, int], ...], int] = {}  # by value, pair, ...: of (list, place)

    def rank(case: tuple[int, ...]) -> tuple[int, ...]:
        """Least for the most new values, then the most new pairs, then values that are rare."""
        sizes = range(1, min(strength, len(case)) + 1)
        new = (
            -sum(part not in uses for part in itertools.combinations(enumerate(case), size))
            for size in sizes
        )
        return (*new, sum(uses.get((each,), 0) for each in enumerate(case)))

    # No rank gets better by the choice of another case, so the first whose rank stayed is the best.
    waiting = [(rank(case), number, case) for number, case in enumerate(itertools.product(*lists))]
    heapq.heapify(waiting)
    found: set[tuple[int, ...]] = set()
    while waiting and len(found) != count:
        _, number, case = heapq.heappop(waiting)
        ranked = (rank(case), number, case)
        if waiting and ranked > waiting[0]:
            heapq.heappush(waiting, ranked)
        elif any(ranked[0][:-1]):
            found.add(case)
            for size in range(1, min(strength, len(case)) + 1):
                for part in itertools.combinations(enumerate(case), size):
                    uses[part] = uses.get(part, 0) + 1
        else:
            break
    covered = all(((place, each),) in uses for place, of in enumerate(lists) for each in of)
    assert covered, f"{count} cases are too few for all values"
    return found
