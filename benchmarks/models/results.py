"""Results of whole models -> JSON and Markdown tables.

A ratio of times is always a contestant's time over pyfuser's, or, where it says "times eager",
eager's time over a contestant's: above 1 is faster.  An error is relative to eager's error, both
against float64.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.report import mean, ratio_text

PHASES = ("forward", "training")
# A backend that compiles nothing: this leaves torch's tracing, which all backends wait for.
TRACING = "aot_eager"
_FIRST_STEP_COLUMNS = ("pyfuser", "pyfuser, disk", "inductor", TRACING)


@dataclass
class ModelRow:
    """One model: times in seconds and memory in bytes, by backend."""

    name: str
    parameters: int = 0
    seconds: dict[str, dict[str, float]] = field(default_factory=dict)
    errors: dict[str, dict[str, float]] = field(default_factory=dict)
    first_step: dict[str, float] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    kernels: int = 0
    recompiles: int = 0
    failures: list[str] = field(default_factory=list)

    def speed(self, phase: str, backend: str) -> float | None:
        """Eager's time over the backend's; None if one of them wasn't measured."""
        times = self.seconds.get(phase, {})
        if "eager" not in times or backend not in times:
            return None
        return times["eager"] / times[backend]

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

    def to_json(self) -> str:
        """The results as JSON text; `from_json` reads it back."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> ModelResults:
        """The results that `to_json` wrote."""
        data = json.loads(text)
        rows = [ModelRow(**row) for row in data.pop("rows")]
        return ModelResults(rows=rows, **data)

    def sections(self) -> dict[str, str]:
        """The section of the README -> Markdown."""
        parts = [self._facts(), self.summary(), self.speed_table(), self.other_table()]
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
        """Geometric means over the models, forward and training."""
        lines = [
            "| geometric mean | models | pyfuser, times eager | Inductor, times eager "
            "| slowest of pyfuser |",
            "|---|--:|--:|--:|---|",
        ]
        for phase in PHASES:
            speeds = {
                backend: [row.speed(phase, backend) for row in self.rows]
                for backend in ("pyfuser", "inductor")
            }
            ours = [
                (speed, row.name)
                for speed, row in zip(speeds["pyfuser"], self.rows, strict=True)
                if speed is not None
            ]
            worst = f"{min(ours)[0]:.2f}x ({min(ours)[1]})" if ours else ""
            means = [ratio_text(mean(speeds[backend])) for backend in ("pyfuser", "inductor")]
            lines.append(f"| {phase} | {len(ours)} | {' | '.join(means)} | {worst} |")
        return "\n".join(lines)

    def speed_table(self) -> str:
        """One line per model: both passes."""
        heading = " | ".join(
            f"{phase}: pyfuser | eager | Inductor | times eager | Inductor's" for phase in PHASES
        )
        lines = [f"| model | parameters | {heading} |", f"|---|--:|{'--:|' * 10}"]
        for row in self.rows:
            cells = [row.name, f"{row.parameters / 1e6:.1f}M"]
            for phase in PHASES:
                times = row.seconds.get(phase, {})
                cells += [_milliseconds(times.get(n)) for n in ("pyfuser", "eager", "inductor")]
                cells += [ratio_text(row.speed(phase, n)) for n in ("pyfuser", "inductor")]
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
            first = row.first_step
            ratio = None
            if "pyfuser" in first and "inductor" in first:
                ratio = first["inductor"] / first["pyfuser"]
            cells = [
                row.name,
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


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.1f} ms"


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.2f} s"


def _megabytes(size: int | None) -> str:
    return "" if size is None else f"{size / 2**20:.1f} MiB"
