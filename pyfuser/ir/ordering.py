"""Topological order: every item after those it waits for, otherwise in the given order."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence


def topological_order(
    waits_for: Sequence[Collection[int]], places: Sequence[int] | None = None
) -> list[int]:
    """The numbers of `waits_for`, each after those that it waits for.

    Among the candidates for the next position, the one with the least place is taken (by default,
    its number). Items in a cycle, or after one, are left out.
    """
    rank = range(len(waits_for)) if places is None else places
    waiting = [len(set(each)) for each in waits_for]
    readers: list[list[int]] = [[] for _ in waits_for]
    for number, others in enumerate(waits_for):
        for other in set(others):
            readers[other].append(number)
    ready = [(rank[number], number) for number, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, number = heapq.heappop(ready)
        order.append(number)
        for reader in readers[number]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, (rank[reader], reader))
    return order
