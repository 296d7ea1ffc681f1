"""Benchmark rows -> a Markdown table, a summary and JSON.

The files in results/ hold the rows as measured; README.md shows the tables between its markers.  A
ratio is always a contestant's time divided by pyfuser's: above 1, pyfuser is faster.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import cast

from .harness import geometric_mean

LEFT_OUT = "left out"  # of the facts of a machine: the rows that weren't measured, and why
FOLDER = Path(__file__).resolve().parent
Key = tuple[str, int, int, str]  # case, rows, columns, dtype
# Rows whose inputs and outputs are well beyond the caches of today's CPUs.
OUT_OF_CACHE_BYTES = 64 << 20


@dataclass
class Row:
    """One case at one size: seconds per call by contestant, first-call seconds, bytes moved.

    On a GPU, `seconds` are the GPU's, `host_seconds` pass until a call returns, and `predicted` is
    the share of the bandwidth by the emulator's count of sectors, if there is one.
    """

    case: str
    rows: int
    columns: int
    dtype: str
    traffic_bytes: int
    seconds: dict[str, float] = field(default_factory=dict)
    first_call_seconds: dict[str, float] = field(default_factory=dict)
    error: float = 0.0
    failure: str = ""
    host_seconds: dict[str, float] = field(default_factory=dict)
    predicted: float | None = None

    @property
    def title(self) -> str:
        """What identifies the row, as text."""
        return f"{self.case} {self.rows}x{self.columns} {self.dtype}"

    @property
    def key(self) -> Key:
        """What identifies the row in both memory modes."""
        return self.case, self.rows, self.columns, self.dtype

    def ratio(self, contestant: str) -> float | None:
        """Time of `contestant` over pyfuser's; None if one of them wasn't measured."""
        if contestant not in self.seconds or "pyfuser" not in self.seconds:
            return None
        return self.seconds[contestant] / self.seconds["pyfuser"]

    def ratio_to_best(self) -> float | None:
        """The better of eager and Inductor over pyfuser's time."""
        ratios = [self.ratio(name) for name in ("eager", "inductor")]
        return min((each for each in ratios if each is not None), default=None)

    def bandwidth(self) -> float | None:
        """Bytes per second that pyfuser's kernel moved."""
        seconds = self.seconds.get("pyfuser")
        return self.traffic_bytes / seconds if seconds else None


@dataclass
class Results:
    """All rows of one memory mode, the machine they were measured on and its copy bandwidth."""

    mode: str
    machine: Mapping[str, object]
    copy_bytes_per_second: float
    rows: list[Row]

    def to_json(self) -> str:
        """The results as JSON text; `from_json` reads it back."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> Results:
        """The results that `to_json` wrote."""
        data = json.loads(text)
        rows = [Row(**row) for row in data.pop("rows")]
        return Results(rows=rows, **data)

    def merged(self, earlier: Results) -> Results:
        """These measurements, and the earlier rows that weren't measured again, in their order."""
        rows = {row.key: row for row in earlier.rows} | {row.key: row for row in self.rows}
        measured = {row.title for row in rows.values()}
        left_out = {
            each: None
            for results in (earlier, self)
            for each in cast("list[str]", results.machine.get(LEFT_OUT, []))
            if each.rpartition(":")[0] not in measured
        }
        machine = {**self.machine, LEFT_OUT: list(left_out)}
        return replace(self, machine=machine, rows=list(rows.values()))

    def table(self) -> str:
        """One Markdown line per row."""
        of_gpu = any(row.host_seconds for row in self.rows)
        more = " predicted | host | first call | Inductor's |" if of_gpu else ""
        lines = [
            "| case | size | dtype | pyfuser | eager | Inductor "
            f"| vs eager | vs Inductor | of copy |{more}",
            f"|---|---|---|--:|--:|--:|--:|--:|--:|{'--:|' * more.count(' |')}",
        ]
        lines += [self._line(row, of_gpu) for row in self.rows]
        return "\n".join(lines)

    def _line(self, row: Row, of_gpu: bool) -> str:
        bandwidth = row.bandwidth()
        share = "" if bandwidth is None else f"{bandwidth / self.copy_bytes_per_second:.0%}"
        cells = [
            row.case,
            f"{row.rows}x{row.columns}",
            row.dtype,
            row.failure or _milliseconds(row.seconds.get("pyfuser")),
            _milliseconds(row.seconds.get("eager")),
            _milliseconds(row.seconds.get("inductor")),
            ratio_text(row.ratio("eager")),
            ratio_text(row.ratio("inductor")),
            share,
        ]
        if of_gpu:
            host = row.host_seconds.get("pyfuser")
            cells += [
                "" if row.predicted is None else f"{row.predicted:.0%}",
                "" if host is None else f"{host * 1e6:.1f} us",
                _milliseconds(row.first_call_seconds.get("pyfuser")),
                _milliseconds(row.first_call_seconds.get("inductor")),
            ]
        return f"| {' | '.join(cells)} |"

    def summary(self) -> str:
        """Geometric means, the worst row, the share of copy bandwidth out of cache."""
        lines = [
            "| dtype | rows | vs eager | vs Inductor | vs the better | worst row vs the better "
            "| copy bandwidth out of cache: mean, worst |",
            "|---|--:|--:|--:|--:|---|---|",
        ]
        dtypes = dict.fromkeys(row.dtype for row in self.rows)
        groups = [(name, [row for row in self.rows if row.dtype == name]) for name in dtypes]
        groups.append(("all", self.rows))
        lines += [self._summary_line(name, rows) for name, rows in groups]
        return "\n".join(lines)

    def _summary_line(self, name: str, rows: Sequence[Row]) -> str:
        means = [
            ratio_text(mean([row.ratio("eager") for row in rows])),
            ratio_text(mean([row.ratio("inductor") for row in rows])),
            ratio_text(mean([row.ratio_to_best() for row in rows])),
        ]
        ratios = [(ratio, row) for row in rows if (ratio := row.ratio_to_best()) is not None]
        worst = ""
        if ratios:
            ratio, row = min(ratios, key=lambda pair: pair[0])
            worst = f"{ratio:.2f}x ({row.case}, {row.rows}x{row.columns}, {row.dtype})"
        shares = [
            bandwidth / self.copy_bytes_per_second
            for row in rows
            if row.traffic_bytes >= OUT_OF_CACHE_BYTES and (bandwidth := row.bandwidth())
        ]
        share = f"{geometric_mean(shares):.0%}, {min(shares):.0%}" if shares else ""
        return f"| {name} | {len(rows)} | {' | '.join(means)} | {worst} | {share} |"


def write_readme(sections: Mapping[str, str], path: Path = FOLDER / "README.md") -> None:
    """Writes each section between its markers `<!-- name -->` and `<!-- /name -->` in `path`."""
    text = path.read_text(encoding="utf-8")
    for name, body in sections.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        text, count = pattern.subn(lambda match, body=body: f"{match[1]}{body}\n{match[2]}", text)
        if count != 1:
            raise ValueError(f"{path.name}: expected one section {name!r}, got {count}")
    path.write_text(text, encoding="utf-8")


def facts_line(facts: Mapping[str, object], copy_bytes_per_second: float) -> str:
    """The machine in one sentence."""
    where = facts.get("gpu") or f"{facts['cpu']}, {facts['threads']} threads"
    return (
        f"{where}; torch {facts['torch']}, Python {facts['python']}; "
        f"copy bandwidth {copy_bytes_per_second / 1e9:.1f} GB/s."
    )


def mean(values: Iterable[float | None]) -> float | None:
    """The geometric mean of those that there are; None for none."""
    present = [value for value in values if value is not None]
    return geometric_mean(present) if present else None


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.3g} ms"


def ratio_text(ratio: float | None) -> str:
    """A ratio in a table: `1.50x`."""
    return "" if ratio is None else f"{ratio:.2f}x"
