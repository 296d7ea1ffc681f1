"""A tuning session: how long it may measure, how it measures, and what it has found.

`during` makes a session the one that compilations with the option `autotune` report to; without
one, each graph has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic

from ..devices.runtime import Runtime
from .measuring import Cost
from .report import Report, Row

SECONDS = 60.0


@dataclass(slots=True)
class Session:
    """One call of `autotune`, or one graph of torch.compile.

    seconds  how long it may measure, from its beginning on
    cost     what a call of a kernel costs; None for what the runtime measures
    clock    seconds
    """

    seconds: float = SECONDS
    cost: Cost | None = None
    clock: Callable[[], float] = monotonic
    rows: list[Row] = field(default_factory=list)
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.clock()

    def left(self) -> float:
        """Seconds of the budget that are left."""
        return self.seconds - (self.clock() - self.started)

    def has_time(self) -> bool:
        """False once the budget is used up."""
        return self.left() > 0

    def cost_on(self, runtime: Runtime) -> Cost:
        """What a call costs on a device."""
        return self.cost or runtime.cost

    def report(self) -> Report:
        """What has been found so far."""
        return Report(tuple(self.rows))


_sessions: list[Session] = []


def current() -> Session:
    """The session to report to."""
    return _sessions[-1] if _sessions else Session()


@contextmanager
def during(session: Session) -> Iterator[Session]:
    """While it lasts, compilations with `autotune` belong to this session."""
    _sessions.append(session)
    try:
        yield session
    finally:
        _sessions.remove(session)
