"""The outcome of a program, as a worker reports it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Outcome:
    """How a program fared.  `kind`: ok, wrong, raised, invalid, torch, refused, crash, hang.

    `refusals` are the messages of the calls of a schedule by hand that were refused.
    """

    kind: str
    message: str = ""
    detail: str = ""
    fallbacks: list[str] = field(default_factory=list)
    seconds: float = 0.0
    count: int = 1
    schedulers: dict[str, int] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """True for an outcome that must not happen."""
        return self.kind in ("wrong", "raised", "crash", "hang")

    @property
    def passed(self) -> bool:
        """True if eager and pyfuser agree, or if torch itself causes the difference."""
        return self.kind in ("ok", "torch")

    @property
    def signature(self) -> str:
        """The key that two outcomes with the same cause share."""
        return f"{self.kind}: {self.message}"
