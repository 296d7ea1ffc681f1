"""Results of tuning as text: a line for each kernel, the heuristics' worst choices first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from ..caches.tuning_store import Entry, Result

# A heuristic is worth a look if it is this much slower than the best that was found.
_FAR = 1.1


@dataclass(frozen=True, slots=True)
class Row:
    """A kernel: its scheduler, its operations, and what was found, or why nothing was (`note`)."""

    scheduler: str
    operations: str
    result: Result | None
    note: str = ""

    @property
    def distance(self) -> float:
        """The time of the heuristics' choice over that of the best one found."""
        return 1.0 if self.result is None else 1 / self.result.ratio

    def __str__(self) -> str:
        title = f"{self.scheduler} ({self.operations})"
        if self.result is None:
            return f"{title}: {self.note}"
        found = self.result
        sizes = ", ".join(f"{name} = {size}" for name, size in sorted(found.sizes.items()))
        kept = "tuned" if found.is_chosen else "as the heuristics chose"
        lines = [f"{title}{', ' if sizes else ''}{sizes}: {kept}"]
        if found.best != found.heuristic:
            changes = ", ".join(changes_between(found.heuristic, found.best))
            lines.append(f"  best {1 / found.ratio:.2f}x as fast: {changes}")
        lines.append(f"  {found.measured} candidates measured, {found.dropped} dropped")
        note = f"\n  {self.note}" if self.note else ""
        return "\n".join(lines) + note


@dataclass(frozen=True, slots=True)
class Report:
    """The kernels of a session."""

    rows: tuple[Row, ...]

    @property
    def far(self) -> list[Row]:
        """The kernels whose heuristics are more than 10 % from the best found."""
        return [row for row in ranked(self.rows) if row.distance > _FAR]

    def __str__(self) -> str:
        if not self.rows:
            return "no kernels to tune"
        tuned = sum(row.result is not None and row.result.is_chosen for row in self.rows)
        total = f"{len(self.rows)} kernels, {tuned} tuned; the heuristics are over 10 %"
        lines = [*map(str, ranked(self.rows)), f"{total} from the best found in {len(self.far)}"]
        return "\n".join(lines)


def ranked(rows: Iterable[Row]) -> list[Row]:
    """The worst choices of the heuristics first."""
    return sorted(rows, key=lambda row: -row.distance)


def changes_between(old: Any, new: Any) -> list[str]:
    """The fields that differ: `unroll 2 -> 4`."""
    if type(old) is not type(new):
        return [f"{old} -> {new}"]
    found: list[str] = []
    for each in fields(old):
        a, b = getattr(old, each.name), getattr(new, each.name)
        if type(a).__name__.endswith("Parameters") and type(a) is type(b):
            found += changes_between(a, b)
        elif a != b:
            found.append(f"{each.name} {a} -> {b}")
    return found


def rows_of(entry: Entry) -> list[Row]:
    """The stored results of a kernel."""
    return [Row(entry.scheduler, entry.operations, each) for each in entry.results.values()]
