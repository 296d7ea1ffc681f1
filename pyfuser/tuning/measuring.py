"""Which contestant is faster, and whether by more than the noise.

The first contestant is the heuristics' kernel.  All are measured in interleaved rounds, in rotating
order; what counts is the ratio of two costs of the same round, which a slow moment of the machine
leaves alone.  The best few are measured again, because the best of many noisy numbers is lower than
its true value.  A contestant wins if, in the second rounds, the median of its ratios is below
_WINS, and their upper quartile below 1; unless the machine is so busy that the heuristics' own
costs differ by _BUSY between their quartiles.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_ROUNDS = 5
_MORE_ROUNDS = 31
_FINALISTS = 3
# Measured, on two cores that six processes shared: of 360 pairs of equal kernels, 2 had a winner in
# 31 rounds (and 10 in 15 rounds).
_WINS = 0.97
_BUSY = 2.0
# A shorter sample would mostly measure the clock.
_SAMPLE_SECONDS = 0.4e-3
_MOST_CALLS = 200


@dataclass(eq=False, slots=True)
class Contestant:
    """A kernel with its inputs: a call runs it."""

    parameters: Any
    run: Callable[[], object]

    def __call__(self) -> None:
        """Runs it; the outputs are freed."""
        self.run()


Cost = Callable[[Contestant, int], float]  # of a call, the mean over so many


@dataclass(frozen=True, slots=True)
class Verdict:
    """The best contestant, its cost over that of the first, and whether it is better than noise."""

    best: Contestant
    ratio: float
    wins: bool


def judge(
    contestants: Sequence[Contestant], cost: Cost, is_exact: bool, has_time: Callable[[], bool]
) -> Verdict | None:
    """The verdict; None if time runs out before there is one.  `is_exact`: costs have no noise."""
    heuristic, others = contestants[0], contestants[1:]
    if not others:
        return Verdict(heuristic, 1.0, False)
    calls = 1 if is_exact else _calls_a_sample(heuristic, cost)
    first = _rounds(contestants, cost, calls, 1 if is_exact else _ROUNDS, has_time)
    if first is None:
        return None
    found = first
    ranked = sorted(others, key=lambda each: _median_ratio(first, each, heuristic))[:_FINALISTS]
    if not is_exact:
        again = _rounds([heuristic, *ranked], cost, calls, _MORE_ROUNDS, has_time)
        if again is None:
            return None
        found = again
    median = {each: _median_ratio(found, each, heuristic) for each in ranked}
    is_steady = _quartile(found[heuristic], 3) <= _BUSY * _quartile(found[heuristic], 1)
    winners = [each for each in ranked if is_steady and _is_better(found[each], found[heuristic])]
    best = min(winners or ranked, key=median.__getitem__)
    if median[best] >= 1:
        return Verdict(heuristic, 1.0, False)
    return Verdict(best, median[best], bool(winners))


def _is_better(costs: Sequence[float], others: Sequence[float]) -> bool:
    """The rule of the module's docstring."""
    ratios = _ratios(costs, others)
    return statistics.median(ratios) < _WINS and _quartile(ratios, 3) < 1


def _median_ratio(
    costs: Mapping[Contestant, Sequence[float]], each: Contestant, other: Contestant
) -> float:
    return statistics.median(_ratios(costs[each], costs[other]))


def _ratios(costs: Sequence[float], others: Sequence[float]) -> list[float]:
    """The ratios of two costs of the same round."""
    return [a / max(b, 1e-12) for a, b in zip(costs, others, strict=True)]


def _quartile(numbers: Sequence[float], which: int) -> float:
    """The first or the third quartile."""
    return sorted(numbers)[math.ceil(which / 4 * len(numbers)) - 1]


def _rounds(
    contestants: Sequence[Contestant],
    cost: Cost,
    calls: int,
    rounds: int,
    has_time: Callable[[], bool],
) -> dict[Contestant, list[float]] | None:
    """The costs of each, round by round; None if time runs out."""
    found: dict[Contestant, list[float]] = {each: [] for each in contestants}
    order = list(contestants)
    for _ in range(rounds):
        if not has_time():
            return None
        for each in order:
            found[each].append(cost(each, calls))
        order.append(order.pop(0))
    return found


def _calls_a_sample(contestant: Contestant, cost: Cost) -> int:
    """The number of calls that fill a sample."""
    once = min(cost(contestant, 1) for _ in range(3))
    return min(max(math.ceil(_SAMPLE_SECONDS / max(once, 1e-7)), 1), _MOST_CALLS)
