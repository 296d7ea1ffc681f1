"""Who wins a measurement: the rule, without a clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

import pytest

from pyfuser.tuning.measuring import Contestant, Verdict, judge


def contestants(names: Sequence[str]) -> list[Contestant]:
    return [Contestant(name, lambda: None) for name in names]


def judged(
    cost: Callable[[str], float], names: Sequence[str] = ("heuristic", "a", "b", "c", "d", "e")
) -> Verdict:
    verdict = judge(
        contestants(names), lambda each, calls: cost(each.parameters), False, lambda: True
    )
    assert verdict is not None
    return verdict


def test_the_fastest_wins() -> None:
    verdict = judged(lambda name: {"b": 0.5, "d": 0.6}.get(name, 1.0))
    assert (verdict.best.parameters, verdict.ratio, verdict.wins) == ("b", 0.5, True)


@pytest.mark.parametrize(("ratio", "wins"), [(0.96, True), (0.98, False), (1.0, False)])
def test_a_winner_is_better_by_more_than_three_per_cent(ratio: float, wins: bool) -> None:
    verdict = judged(lambda name: ratio if name == "a" else 1.0)
    assert verdict.wins is wins
    assert verdict.ratio == ratio
    assert verdict.best.parameters == ("heuristic" if ratio == 1 else "a")


def test_a_winner_is_better_in_most_rounds() -> None:
    numbers = count()
    noisy = (0.5, 0.5, 1.5)  # the median is low, the upper quartile isn't
    verdict = judged(lambda name: noisy[next(numbers) % 3] if name == "a" else 1.0, ("h", "a"))
    assert (verdict.ratio, verdict.wins) == (0.5, False)


def test_a_slow_moment_of_the_machine_changes_nothing() -> None:
    """All costs of a round are ten times as high in every fifth round."""
    calls = count(-3)  # so many before the first round

    def cost(name: str) -> float:
        slow = 10 if next(calls) // 2 % 5 == 0 else 1
        return slow * (0.9 if name == "a" else 1.0)

    verdict = judged(cost, ("h", "a"))
    assert verdict.wins
    assert verdict.ratio < 1


def test_nobody_wins_on_a_busy_machine() -> None:
    """The costs of all differ tenfold from round to round."""
    calls = count(-3)

    def cost(name: str) -> float:
        return 10.0 ** (next(calls) // 2 % 2) * (0.5 if name == "a" else 1.0)

    assert not judged(cost, ("h", "a")).wins


def test_what_was_lucky_at_first_is_measured_again() -> None:
    calls: dict[str, int] = {}

    def cost(name: str) -> float:
        calls[name] = calls.get(name, 0) + 1
        return 0.5 if name == "a" and calls[name] <= 5 else 1.0

    assert not judged(cost).wins


def test_there_is_no_verdict_when_the_time_is_up() -> None:
    assert judge(contestants("ha"), lambda *_: 1.0, False, lambda: False) is None


def test_predicted_costs_are_asked_for_once() -> None:
    asked: list[str] = []

    def cost(each: Contestant, calls: int) -> float:
        asked.append(each.parameters)
        return 0.5 if each.parameters == "b" else 1.0

    verdict = judge(contestants("hab"), cost, True, lambda: True)
    assert verdict is not None
    assert verdict.best.parameters == "b"
    assert verdict.wins
    assert sorted(asked) == ["a", "b", "h"]


def test_without_candidates_the_heuristics_choice_stays() -> None:
    verdict = judged(lambda name: 1.0, ("heuristic",))
    assert (verdict.best.parameters, verdict.ratio, verdict.wins) == ("heuristic", 1.0, False)
