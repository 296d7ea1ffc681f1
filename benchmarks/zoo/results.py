"""Results of the zoo -> JSON and Markdown tables.

"Times eager" is eager's time over a contestant's: above 1 is faster.  An error is relative to
eager's error, both against float64.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.harness import geometric_mean
from benchmarks.report import ratio_text

# The bars: the greatest error, in multiples of eager's, and the least speed over eager's.
MOST_ERROR = 4.0
LEAST_SPEED = 0.9


@dataclass
class ZooRow:
    """One architecture's training step: times in seconds by backend."""

    name: str
    parameters: int = 0
    errors: dict[str, dict[str, float]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    first_step: float | None = None
    other_first_steps: dict[str, float] = field(default_factory=dict)
    graphs: int = 0
    graph_breaks: dict[str, int] = field(default_factory=dict)
    recompiles: int = 0
    kernels: int = 0
    fallbacks: list[str] = field(default_factory=list)
    failure: str = ""

    def speed(self, backend: str) -> float | None:
        """Eager's time over the backend's; None if one of them wasn't measured."""
        if "eager" not in self.seconds or backend not in self.seconds:
            return None
        return self.seconds["eager"] / self.seconds[backend]

    def error(self, backend: str) -> float | None:
        """The worst of gradients, loss and statistics, relative to eager's error."""
        found = [each[backend] for each in self.errors.values() if backend in each]
        return max(found, default=None)

    def problems(self) -> list[str]:
        """What falls short, in a few words each."""
        found = [self.failure] if self.failure else []
        error, speed = self.error("pyfuser"), self.speed("pyfuser")
        if error is not None and not error <= MOST_ERROR:
            found.append(f"{error:.1f}x of eager's error")
        if speed is not None and speed < LEAST_SPEED:
            found.append("slower than eager")
        return found + [f"fallback: {each}" for each in self.fallbacks]


@dataclass
class ZooResults:
    """All architectures and the machine."""

    machine: dict[str, Any]
    rows: list[ZooRow] = field(default_factory=list)

    def to_json(self) -> str:
        """The results as JSON text; `from_json` reads it back."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> ZooResults:
        """The results that `to_json` wrote."""
        data = json.loads(text)
        rows = [ZooRow(**row) for row in data.pop("rows")]
        return ZooResults(rows=rows, **data)

    def merged(self, earlier: ZooResults) -> ZooResults:
        """The earlier rows, replaced by these rows of the same names, and then the new ones."""
        rows = {row.name: row for row in (*earlier.rows, *self.rows)}
        return ZooResults(self.machine, list(rows.values()))

    def sections(self) -> dict[str, str]:
        """The section of the README -> Markdown."""
        return {"zoo": "\n\n".join([self._facts(), self.summary(), self.table()])}

    def _facts(self) -> str:
        facts = self.machine
        return (
            f"{facts['cpu']}, {facts['threads']} threads; torch {facts['torch']}, "
            f"transformers {facts['transformers']}, timm {facts['timm']}, "
            f"Python {facts['python']}."
        )

    def summary(self) -> str:
        """How many are correct and fast, and the worst of each."""
        speeds = [(s, row.name) for row in self.rows if (s := row.speed("pyfuser")) is not None]
        wrongs = [(e, row.name) for row in self.rows if (e := row.error("pyfuser")) is not None]
        slow = sum(speed < LEAST_SPEED for speed, _ in speeds)
        wrong = sum(not error <= MOST_ERROR for error, _ in wrongs)
        cells = [
            str(len(self.rows)),
            f"{geometric_mean([speed for speed, _ in speeds]):.2f}x" if speeds else "",
            "{:.2f}x ({})".format(*min(speeds)) if speeds else "",
            str(slow) if speeds else "",
            "{:.2f}x ({})".format(*max(wrongs)) if wrongs else "",
            str(wrong),
            str(sum(bool(row.fallbacks) for row in self.rows)),
            str(sum(bool(row.failure) for row in self.rows)),
        ]
        return "\n".join(
            [
                "| architectures | times eager, geometric mean | slowest "
                f"| under {LEAST_SPEED}x | greatest error | over {MOST_ERROR:.0f}x "
                "| with fallbacks | failed |",
                "|--:|--:|---|--:|---|--:|--:|--:|",
                f"| {' | '.join(cells)} |",
            ]
        )

    def table(self) -> str:
        """One line per architecture."""
        lines = [
            "| architecture | parameters | pyfuser | eager | Inductor | times eager | Inductor's "
            "| error | Inductor's | first step | graphs | breaks | late recompiles | kernels | |",
            f"|---|{'--:|' * 13}---|",
        ]
        return "\n".join(lines + [_line(row) for row in self.rows])


def _line(row: ZooRow) -> str:
    cells = [
        row.name,
        f"{row.parameters / 1e6:.1f}M",
        *(_milliseconds(row.seconds.get(name)) for name in ("pyfuser", "eager", "inductor")),
        *(ratio_text(row.speed(name)) for name in ("pyfuser", "inductor")),
        *(ratio_text(row.error(name)) for name in ("pyfuser", "inductor")),
        "" if row.first_step is None else f"{row.first_step:.1f} s",
        str(row.graphs),
        str(sum(row.graph_breaks.values())),
        str(row.recompiles),
        str(row.kernels),
        "; ".join(row.problems()).replace("|", "/"),
    ]
    return f"| {' | '.join(cells)} |"


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.1f} ms"
