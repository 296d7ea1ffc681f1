"""Results of whole models -> JSON and Markdown tables.

A ratio of times is always a contestant's time over pyfuser's, or, where it says "times eager",
eager's time over a contestant's: above 1 is faster.  An error is relative to eager's error, both
against float64.  The share that a backend removes is of the removable time: of eager's time without
its library calls (library.py).
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.report import mean, ratio_text

PHASES = ("forward", "training")
# A backend that compiles nothing: this leaves torch's tracing, which all backends wait for.
TRACING = "aot_eager"
_FIRST_STEP_COLUMNS = ("pyfuser", "pyfuser, disk", "inductor", TRACING)


@dataclass
class ModelRow:
    """One model in one precision: times in seconds and memory in bytes, by backend."""

    name: str
    precision: str = "float32"
    parameters: int = 0
    seconds: dict[str, dict[str, float]] = field(default_factory=dict)
    errors: dict[str, dict[str, float]] = field(default_factory=dict)
    first_step: dict[str, float] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    breakdown: dict[str, dict[str, float]] = field(default_factory=dict)
    kernels: int = 0
    recompiles: int = 0
    failures: list[str] = field(default_factory=list)

    def speed(self, phase: str, backend: str) -> float | None:
        """Eager's time over the backend's; None if one of them wasn't measured."""
        times = self.seconds.get(phase, {})
        if "eager" not in times or backend not in times:
            return None
        return times["eager"] / times[backend]

    def removed(self, phase: str, backend: str) -> float | None:
        """The share of the removable time that a backend removes; None if it wasn't measured."""
        times = self.seconds.get(phase, {})
        if not {"eager", "library", backend} <= times.keys() or times["library"] >= times["eager"]:
            return None
        return (times["eager"] - times[backend]) / (times["eager"] - times["library"])

    def error(self, backend: str) -> float | None:
        """The worse of output and gradients, relative to eager's error."""
        found = [each[backend] for each in self.errors.values() if backend in each]
        return max(found, default=None)


@dataclass
class ModelResults:
    """All models, the machine, and the cost of calls."""

    machine: dict[str, Any]
    rows: list[ModelRow] = field(default_factory=list)
    call: dict[str, float] = field(default_factory=dict)
    changing: dict[str, Any] = field(default_factory=dict)
    decoding: dict[str, dict[str, Any]] = field(default_factory=dict)

    def to_json(self) -> str:
        """The results as JSON text; `from_json` reads it back."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> ModelResults:
        """The results that `to_json` wrote."""
        data = json.loads(text)
        rows = [ModelRow(**row) for row in data.pop("rows")]
        return ModelResults(rows=rows, **data)

    def merged(self, earlier: ModelResults) -> ModelResults:
        """These measurements, and the earlier ones of everything that wasn't measured again."""
        rows = {(row.name, row.precision): row for row in earlier.rows}
        for row in self.rows:
            before = rows.get((row.name, row.precision))
            if before is not None:
                row.first_step = row.first_step or before.first_step
            rows[row.name, row.precision] = row
        return ModelResults(
            self.machine,
            list(rows.values()),
            self.call or earlier.call,
            self.changing or earlier.changing,
            earlier.decoding | self.decoding,
        )

    def sections(self) -> dict[str, str]:
        """The section of the README -> Markdown."""
        parts = [self._facts(), self.summary(), self.speed_table()]
        if any(row.breakdown for row in self.rows):
            parts.append(self._breakdown_table())
        if self.decoding:
            parts.append(self._decoding_table())
        parts.append(self.other_table())
        if self.call:
            parts.append(self._call_table())
        if self.changing:
            parts.append(self._changing_table())
        return {"models": "\n\n".join(parts)}

    def _facts(self) -> str:
        facts = self.machine
        return f"{facts['cpu']}, {facts['threads']} threads; torch {facts['torch']}, " + (
            f"transformers {facts['transformers']}, Python {facts['python']}."
        )

    def summary(self) -> str:
        """Geometric means over the models, by pass and precision."""
        lines = [
            "| geometric mean | models | pyfuser, times eager | Inductor, times eager "
            "| Inductor / pyfuser | slowest of pyfuser | removed: pyfuser | Inductor |",
            "|---|--:|--:|--:|--:|---|--:|--:|",
        ]
        for phase in PHASES:
            for precision in dict.fromkeys(row.precision for row in self.rows):
                rows = [row for row in self.rows if row.precision == precision]
                lines.append(self._summary_line(f"{phase}, {precision}", rows, phase))
        return "\n".join(lines)

    @staticmethod
    def _summary_line(title: str, rows: Sequence[ModelRow], phase: str) -> str:
        ours, theirs = (
            [row.speed(phase, backend) for row in rows] for backend in ("pyfuser", "inductor")
        )
        both = [a / b for a, b in zip(ours, theirs, strict=True) if a is not None and b is not None]
        worst = min(((a, row.name) for a, row in zip(ours, rows, strict=True) if a), default=None)
        shares = [
            [share for row in rows if (share := row.removed(phase, backend)) is not None]
            for backend in ("pyfuser", "inductor")
        ]
        cells = [
            title,
            str(sum(speed is not None for speed in ours)),
            *(ratio_text(mean(speeds)) for speeds in (ours, theirs, both)),
            "" if worst is None else f"{worst[0]:.2f}x ({worst[1]})",
            *(f"{statistics.fmean(each):.0%}" if each else "" for each in shares),
        ]
        return f"| {' | '.join(cells)} |"

    def speed_table(self) -> str:
        """One line per model and precision: both passes."""
        heading = " | ".join(
            f"{phase}: pyfuser | eager | Inductor | library | times eager | Inductor's | removed"
            for phase in PHASES
        )
        lines = [f"| model | parameters | {heading} |", f"|---|--:|{'--:|' * 14}"]
        for row in self.rows:
            cells = [_title(row), f"{row.parameters / 1e6:.1f}M"]
            for phase in PHASES:
                times = row.seconds.get(phase, {})
                names = ("pyfuser", "eager", "inductor", "library")
                cells += [_milliseconds(times.get(name)) for name in names]
                cells += [ratio_text(row.speed(phase, n)) for n in ("pyfuser", "inductor")]
                share = row.removed(phase, "pyfuser")
                cells.append("" if share is None else f"{share:.0%}")
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines)

    def _breakdown_table(self) -> str:
        kinds = ("library", "kernels", "dispatch", "outside")
        heading = " | ".join(f"{phase}: {' | '.join(kinds)} | launches" for phase in PHASES)
        lines = [f"| a call of pyfuser's | {heading} |", f"|---|{'--:|' * 10}"]
        for row in self.rows:
            if row.breakdown:
                cells = [_title(row)]
                for phase in PHASES:
                    times = row.breakdown.get(phase, {})
                    cells += [_milliseconds(times.get(kind)) for kind in kinds]
                    cells.append(f"{times['launches']:.0f}" if "launches" in times else "")
                lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines)

    def _decoding_table(self) -> str:
        lines = [
            "| a token | pyfuser | eager | Inductor | times eager | Inductor / pyfuser "
            "| same tokens |",
            "|---|--:|--:|--:|--:|--:|---|",
        ]
        for title, found in self.decoding.items():
            for lengths in ("new lengths", "seen lengths"):
                times = found[lengths]
                ours, eager, theirs = (times.get(name) for name in ("pyfuser", "eager", "inductor"))
                cells = [
                    f"{title}, {lengths}",
                    *(_milliseconds(each) for each in (ours, eager, theirs)),
                    *(ratio_text(each and ours and each / ours) for each in (eager, theirs)),
                    "yes" if found["same tokens"] else "no",
                ]
                lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines)

    def other_table(self) -> str:
        """One line per model: first steps, errors, memory, kernels, recompiles."""
        lines = [
            "| model | first step: pyfuser | disk cache | Inductor | tracing | Inductor / pyfuser "
            "| error: pyfuser | Inductor | peak memory: pyfuser | eager "
            "| kernels | late recompiles | |",
            f"|---|{'--:|' * 11}---|",
        ]
        for row in self.rows:
            if row.precision != "float32" and not row.failures:
                continue  # only their speed is measured
            first = row.first_step
            ratio = None
            if "pyfuser" in first and "inductor" in first:
                ratio = first["inductor"] / first["pyfuser"]
            cells = [
                _title(row),
                *(_seconds(first.get(name)) for name in _FIRST_STEP_COLUMNS),
                ratio_text(ratio),
                *(ratio_text(row.error(name)) for name in ("pyfuser", "inductor")),
                *(_megabytes(row.peak_bytes.get(name)) for name in ("pyfuser", "eager")),
                str(row.kernels),
                str(row.recompiles),
                "; ".join(row.failures),
            ]
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines)

    def _call_table(self) -> str:
        lines = ["| one call of a compiled function of one element | time |", "|---|--:|"]
        lines += [f"| {name} | {seconds * 1e6:.2f} µs |" for name, seconds in self.call.items()]
        return "\n".join(lines)

    def _changing_table(self) -> str:
        found = self.changing
        return "\n".join(
            [
                f"| {found['calls']} calls of GPT-2, batch and length changing | |",
                "|---|--:|",
                f"| recompiles after the second call | {found['recompiles']} |",
                f"| kernels compiled after the second call | {found['new kernels']} |",
                f"| greatest difference from eager | {found['difference from eager']:.1e} |",
            ]
        )


def _title(row: ModelRow) -> str:
    return row.name if row.precision == "float32" else f"{row.name}, {row.precision}"


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.{1 if seconds >= 0.01 else 2}f} ms"


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.2f} s"


def _megabytes(size: int | None) -> str:
    return "" if size is None else f"{size / 2**20:.1f} MiB"
