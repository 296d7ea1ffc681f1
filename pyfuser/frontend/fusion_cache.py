"""LRUCache and LruFusionCache: equal definitions share an executor, the oldest is dropped.

A definition is compiled only once, however often it is written: the key is the definition itself
(`pyfuser.ir.keys.definition_key`).  Thread-safe.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from ..errors import DefinitionError, expected
from ..locks import ForkSafeLock
from .definition import FusionDefinition
from .executors import FusionExecutorCache
from .fusion import Fusion


class _Entry:
    __slots__ = ("cache", "hits")

    def __init__(self, cache: FusionExecutorCache) -> None:
        self.cache, self.hits = cache, 0


class LRUCache:
    """At most `max_fusions` executors, the least recently used dropped first."""

    def __init__(self, max_fusions: int) -> None:
        if max_fusions < 1:
            raise DefinitionError(expected("LRUCache", "room for at least 1 fusion", max_fusions))
        self.max_fusions = max_fusions
        self._entries: OrderedDict[Fusion, _Entry] = OrderedDict()
        self._compiled = self._lookups = self._hits = 0
        self._lock = ForkSafeLock()

    def cache_compile(self, fusion: Fusion) -> FusionExecutorCache:
        """The executor of an equal fusion, or a new one."""
        with self._lock:
            self._lookups += 1
            entry = self._entries.get(fusion)
            if entry is not None:
                self._hits += 1
                entry.hits += 1
                self._entries.move_to_end(fusion)
                return entry.cache
            self._compiled += 1
            entry = self._entries[fusion] = _Entry(FusionExecutorCache(fusion))
            if len(self._entries) > self.max_fusions:
                self._entries.popitem(last=False)
            return entry.cache

    def num_fusions(self) -> int:
        """How many executors are kept."""
        return len(self._entries)

    def stats(self) -> str:
        """Sizes and hits as text, the most recently used first."""
        lines = [f"Max Fusions Allowed: {self.max_fusions}"]
        if not self._entries:
            return "\n".join([*lines, "The fusion cache is empty.", ""])
        lines += [
            f"Total Fusions in Cache: {len(self._entries)}",
            f"Total Unique Fusions Compiled: {self._compiled}",
            "Cache Hits by LRU ordering:",
        ]
        recent_first = reversed(self._entries.values())
        lines += [f"\t{i} -> {entry.hits} hits" for i, entry in enumerate(recent_first)]
        rate = 100 * self._hits / self._lookups
        lines += [f"Cache Lookups: {self._lookups}", f"Cache Hits: {self._hits}"]
        return "\n".join([*lines, f"Hit Rate: {rate:g}%", ""])


class LruFusionCache:
    """Decorates a function that returns a FusionDefinition: equal ones share an executor."""

    def __init__(self, max_fusions: int = 16384) -> None:
        if callable(max_fusions):
            what, hint = "a number of fusions", "decorate with @LruFusionCache()"
            raise DefinitionError(expected("LruFusionCache", what, max_fusions, hint))
        self.cache = LRUCache(max_fusions)

    def __call__(
        self, function: Callable[..., FusionDefinition]
    ) -> Callable[..., FusionDefinition]:
        """The function, whose definitions get the shared executor of their fusion."""

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> FusionDefinition:
            definition = function(*args, **kwargs)
            if not isinstance(definition, FusionDefinition):
                what = f"a FusionDefinition from {function.__name__}"
                raise DefinitionError(expected("LruFusionCache", what, repr(definition)))
            definition.fec = self.cache.cache_compile(definition.fusion)
            del definition._fusion
            return definition

        wrapper.stats = self.cache.stats  # type: ignore[attr-defined]
        wrapper.num_fusions = self.cache.num_fusions  # type: ignore[attr-defined]
        return wrapper
