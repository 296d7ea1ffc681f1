"""pyfuser.memory: what the devices' memory pools hold, and how to release it.

A device that has its own pool registers it here, so the user finds all pools in one place and this
module knows none of them: the same two functions serve every device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """One pool, or the sum over several; sizes in bytes, without blocks too small for the pool.

    `peak` is the most that was in use at one time; `hits` counts allocations that found a free
    block, `misses` those that needed a new one; `limit` is the maximum of `cached`, the free memory
    kept.
    """

    in_use: int = 0
    cached: int = 0
    peak: int = 0
    hits: int = 0
    misses: int = 0
    limit: int = 0

    def __add__(self, other: MemoryStats) -> MemoryStats:
        return MemoryStats(
            in_use=self.in_use + other.in_use,
            cached=self.cached + other.cached,
            peak=self.peak + other.peak,
            hits=self.hits + other.hits,
            misses=self.misses + other.misses,
            limit=self.limit + other.limit,
        )


_pools: dict[str, tuple[Callable[[], None], Callable[[], MemoryStats]]] = {}


def register_pool(
    device: str, empty_cache: Callable[[], None], stats: Callable[[], MemoryStats]
) -> None:
    """Called by a device when its pool is created."""
    _pools[device] = (empty_cache, stats)


def empty_cache() -> None:
    """Return the pools' free memory to the system; tensors in use are unaffected."""
    for empty, _ in list(_pools.values()):
        empty()


def stats(device: str | None = None) -> MemoryStats:
    """What the pool of `device` holds; without a name, the sum over all devices.

    Zeros for a device that hasn't allocated anything yet.
    """
    if device is None:
        return sum((read() for _, read in list(_pools.values())), MemoryStats())
    return _pools[device][1]() if device in _pools else MemoryStats()
