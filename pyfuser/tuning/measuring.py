"""Which contestant is faster, and whether by more than the noise.

The first contestant is the heuristics' kernel.  All are measured in interleaved rounds, in rotating
order; what counts is the ratio of two costs of the same round, which a slow moment of the machine
leaves alone.  The best few are measured again, because the best of many noisy numbers is lower than
its true value.  A contestant wins if, in the second rounds, the median of its ratios is below
_WINS, and their upper quartile below 1.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_ROUNDS = 5
_MORE_ROUNDS = 15
_FINALISTS = 3
# Measured: two copies of one kernel differ by up to 2 % in the median of 15 ratios.
_WINS = 0.97
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
    first = _ratios(heuristic, others, cost, calls, 1 if is_exact else _ROUNDS, has_time)
    if first is None:
        return None
    ratios, medians = first, {each: statistics.median(found) for each, found in first.items()}
    ranked = sorted(others, key=medians.__getitem__)[:_FINALISTS]
    if not is_exact:
        again = _ratios(heuristic, ranked, cost, calls, _MORE_ROUNDS, has_time)
        if again is None:
            return None
        ratios = again
    median = {each: statistics.median(ratios[each]) for each in ranked}
    winners = [each for each in ranked if _is_better(ratios[each])]
    best = min(winners or ranked, key=median.__getitem__)
    if median[best] >= 1:
        return Verdict(heuristic, 1.0, False)
    return Verdict(best, median[best], bool(winners))


def _is_better(ratios: Sequence[float]) -> bool:
    """The rule of the module's docstring."""
    ordered = sorted(ratios)
    upper = ordered[math.ceil(0.75 * len(ordered)) - 1]
    return statistics.median(ordered) < _WINS and upper < 1


def _ratios(
    heuristic: Contestant,
    others: Sequence[Contestant],
    cost: Cost,
    calls: int,
    rounds: int,
    has_time: Callable[[], bool],
) -> dict[Contestant, list[float]] | None:
    """The cost of each over the heuristics' in the same round; None if time runs out."""
    found: dict[Contestant, list[float]] = {each: [] for each in others}
    order = [heuristic, *others]
    for _ in range(rounds):
        if not has_time():
            return None
        costs = {each: cost(each, calls) for each in order}
        order.append(order.pop(0))
        for each in others:
            found[each].append(costs[each] / max(costs[heuristic], 1e-12))
    return found


def _calls_a_sample(contestant: Contestant, cost: Cost) -> int:
    """The number of calls that fill a sample."""
    once = min(cost(contestant, 1) for _ in range(3))
    return min(max(math.ceil(_SAMPLE_SECONDS / max(once, 1e-7)), 1), _MOST_CALLS)
