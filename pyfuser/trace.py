"""Trace: an observer of the stages and passes of a compilation as they happen.

Every function that compiles takes a trace and passes it what it makes, so the observed stages are
exactly what runs.  `DUMP` prints the stages named by PYFUSER_DUMP to standard error; `Texts` keeps
them as text, for `show` and the interface.  A graph is compiled when torch asks for it, so a
compilation has to be observed through `watching_graphs`, set beforehand.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from . import options


class Trace(Protocol):
    """Observes a compilation."""

    def stage(self, name: str, value: object) -> None:
        """Called when a stage is done, with the resulting noun or a text."""

    def after(self, name: str, value: object) -> None:
        """Called when a pass is done, with the resulting noun."""

    def wants(self, *names: str) -> bool:
        """True if one of these stages is observed: some are made only for that."""


class _Dump:
    """See the module's docstring."""

    def stage(self, name: str, value: object) -> None:
        if self.wants(name):
            print(f"---- {name} ----\n{value}", file=sys.stderr)

    def after(self, name: str, value: object) -> None:
        """Passes aren't printed: `show --after` does."""

    def wants(self, *names: str) -> bool:
        return not options.dump_stages().isdisjoint(names)


DUMP: Trace = _Dump()


class Texts:
    """Stages as texts by name, those of several kernels concatenated; passes likewise."""

    def __init__(self) -> None:
        self.stages: dict[str, str] = {}
        self.passes: dict[str, str] = {}

    def stage(self, name: str, value: object) -> None:
        """Keeps the text."""
        self.stages[name] = self.stages.get(name, "") + str(value)

    def after(self, name: str, value: object) -> None:
        """Keeps the text."""
        self.passes[name] = self.passes.get(name, "") + str(value)

    def wants(self, *names: str) -> bool:
        """All of them."""
        return True


_watchers: list[Callable[[], Trace]] = []


def is_watched() -> bool:
    """True if some stage of a compilation is observed, so that it has to happen."""
    return bool(_watchers or options.dump_stages())


def graph_trace() -> Trace:
    """The observer of the next graph's compilation."""
    return _watchers[-1]() if _watchers else DUMP


@contextmanager
def watching_graphs(trace: Callable[[], Trace]) -> Iterator[None]:
    """Within this context, each graph compiled by torch is observed by a new result of `trace`."""
    _watchers.append(trace)
    try:
        yield
    finally:
        _watchers.remove(trace)
