"""The rows of `make bench` -> Markdown tables and JSON.

A ratio is always a contestant's time divided by pyfuser's: above 1, pyfuser is faster.  It is the
median over the rounds, in which all contestants take their turn; where 1 lies between its
quartiles, the row is a tie.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from .harness import geometric_mean
from .limits import Limits
from .report import OUT_OF_CACHE_BYTES, mean, ratio_text

Quartiles = tuple[float, float, float]
OURS = ("pyfuser", "definition")
_NEAR_FLOOR = 0.9
_LEAST_RATIO = 0.95
_TITLES = {
    "eager": "eager",
    "inductor": "Inductor",
    "max-autotune": "max-autotune",
    "torchscript": "original fuser",
    "jax": "JAX",
    "numexpr": "numexpr",
    "openvino": "OpenVINO",
}


@dataclass
class FunctionRow:
    """One function at one size: seconds and first-call seconds by contestant.

    `ratios` are quartiles of a contestant's time over pyfuser's; `failures` say what a contestant
    raised, or how wrong it was.
    """

    case: str
    training: bool
    rows: int
    columns: int
    dtype: str
    traffic_bytes: int = 0
    operations: int = 0
    floor_seconds: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    ratios: dict[str, Quartiles] = field(default_factory=dict)
    first_call_seconds: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Function, direction, size and dtype."""
        what = f"{self.case}, gradients" if self.training else self.case
        return f"{what} {self.rows}x{self.columns} {self.dtype}"

    def ratio(self, contestant: str) -> float | None:
        """The median of its time over pyfuser's; None if one of them wasn't measured."""
        return self.ratios[contestant][1] if contestant in self.ratios else None

    def best_peer(self) -> str | None:
        """The fastest of the others."""
        others = {name: each for name, each in self.seconds.items() if name not in OURS}
        return min(others, key=lambda name: others[name]) if others else None

    def ratio_to_best(self) -> float | None:
        """The best peer's time over pyfuser's."""
        best = self.best_peer()
        return None if best is None else self.ratio(best)

    def is_tie(self) -> bool:
        """True if the rounds don't say who is faster, pyfuser or its best peer."""
        best = self.best_peer()
        return best is not None and self.ratios[best][0] <= 1 <= self.ratios[best][2]

    def share_of_floor(self) -> float | None:
        """The floor over pyfuser's time; above 1 for what stays in a cache."""
        seconds = self.seconds.get("pyfuser")
        return self.floor_seconds / seconds if seconds else None

    def falls_short(self) -> bool:
        """Slower than the best peer beyond the noise, and not near the floor."""
        ratio, share = self.ratio_to_best(), self.share_of_floor()
        if "pyfuser" in self.failures:
            return True
        if ratio is None or share is None:
            return False
        return ratio < _LEAST_RATIO and share < _NEAR_FLOOR and not self.is_tie()


@dataclass
class FunctionResults:
    """All rows of one memory mode, the machine and its limits."""

    mode: str
    machine: Mapping[str, object]
    limits: Limits
    rows: list[FunctionRow]

    def to_json(self) -> str:
        """The results as JSON text; `from_json` reads it back."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> FunctionResults:
        """The results that `to_json` wrote."""
        data = json.loads(text)
        rows = [FunctionRow(**row) for row in data.pop("rows")]
        for row in rows:
            row.ratios = {name: (a, b, c) for name, (a, b, c) in row.ratios.items()}
        return FunctionResults(rows=rows, limits=Limits(**data.pop("limits")), **data)

    def facts(self) -> str:
        """The machine and its limits in one sentence."""
        limits, machine = self.limits, self.machine
        return (
            f"{machine['cpu']}, {machine['threads']} threads; torch {machine['torch']}, Python "
            f"{machine['python']}; copy {limits.copy / 1e9:.1f} GB/s, triad "
            f"{limits.triad / 1e9:.1f} GB/s, {limits.multiply_adds / 1e9:.0f} billion float32 "
            "multiply-adds a second."
        )

    def summary(self) -> str:
        """Geometric means by direction and dtype, and how many rows fall short."""
        peers = self._peers()
        head = " | ".join(f"vs {_TITLES.get(name, name)}" for name in peers)
        lines = [
            f"| rows | number | {head} | vs the best peer | first or tied | fall short | worst "
            "| of the floor, out of cache | first call, vs Inductor |",
            f"|---|--:|{'--:|' * len(peers)}--:|--:|--:|---|--:|--:|",
        ]
        for name, rows in self._groups():
            lines.append(_summary_line(name, rows, peers))
        return "\n".join(lines)

    def short_summary(self, cold: FunctionResults) -> str:
        """The table that README.md opens with: geometric means, forward and with gradients.

        First calls are those of `cold`, the process whose caches were empty.
        """
        peers = self._peers()
        head = " | ".join(_TITLES.get(name, name) for name in peers)
        lines = [
            f"| times as fast as | rows | {head} | first call, no caches: Inductor |",
            f"|---|--:|{'--:|' * len(peers)}--:|",
        ]
        for training, what in ((False, "forward"), (True, "forward and gradients")):
            rows = [row for row in self.rows if row.training == training]
            cells = [what, str(len(rows))]
            cells += [ratio_text(mean(row.ratio(peer) for row in rows)) for peer in peers]
            first = (row for row in cold.rows if row.training == training)
            cells.append(ratio_text(mean(map(_compiled_faster, first))))
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines)

    def _groups(self) -> Iterable[tuple[str, list[FunctionRow]]]:
        for training, what in ((False, "forward"), (True, "forward and gradients")):
            for dtype in dict.fromkeys(row.dtype for row in self.rows):
                rows = [r for r in self.rows if r.training == training and r.dtype == dtype]
                if rows:
                    yield f"{what}, {dtype}", rows
        yield "**all**", self.rows

    def _peers(self) -> list[str]:
        found = {name for row in self.rows for name in row.seconds}
        return [name for name in _TITLES if name in found]

    def table(self) -> str:
        """One Markdown line per row."""
        peers = self._peers()
        head = " | ".join(_TITLES.get(name, name) for name in peers)
        lines = [
            f"| function | size | dtype | pyfuser | definition | {head} | vs Inductor "
            "| vs the best | of the floor | |",
            f"|---|---|---|--:|--:|{'--:|' * len(peers)}--:|--:|--:|---|",
        ]
        lines += [_line(row, peers) for row in self.rows]
        return "\n".join(lines)


def _summary_line(name: str, rows: Sequence[FunctionRow], peers: Sequence[str]) -> str:
    cells = [name, str(len(rows))]
    cells += [ratio_text(mean(row.ratio(peer) for row in rows)) for peer in peers]
    cells.append(ratio_text(mean(row.ratio_to_best() for row in rows)))
    ratios = [(ratio, row) for row in rows if (ratio := row.ratio_to_best()) is not None]
    first = [row for ratio, row in ratios if ratio >= 1 or row.is_tie()]
    cells += [str(len(first)), str(sum(row.falls_short() for row in rows))]
    worst = min(ratios, key=lambda pair: pair[0], default=None)
    cells.append(f"{worst[0]:.2f}x ({worst[1].title}, {worst[1].best_peer()})" if worst else "")
    shares = [
        share
        for row in rows
        if row.traffic_bytes >= OUT_OF_CACHE_BYTES and (share := row.share_of_floor())
    ]
    cells.append(f"{geometric_mean(shares):.0%}" if shares else "")
    cells.append(ratio_text(mean(_compiled_faster(row) for row in rows)))
    return f"| {' | '.join(cells)} |"


def _compiled_faster(row: FunctionRow) -> float | None:
    calls = row.first_call_seconds
    if "inductor" not in calls or "pyfuser" not in calls:
        return None
    return calls["inductor"] / calls["pyfuser"]


def _line(row: FunctionRow, peers: Sequence[str]) -> str:
    share = row.share_of_floor()
    ratio, best = row.ratio_to_best(), row.best_peer()
    notes = [f"{name}: {text}" for name, text in row.failures.items()]
    notes += ["tie"] if row.is_tie() else []
    notes += ["falls short"] if row.falls_short() else []
    cells = [
        f"{row.case}, gradients" if row.training else row.case,
        f"{row.rows}x{row.columns}",
        row.dtype,
        *(_microseconds(row.seconds.get(name)) for name in (*OURS, *peers)),
        ratio_text(row.ratio("inductor")),
        f"{ratio_text(ratio)} ({_TITLES.get(best, best)})" if best else "",
        "" if share is None else f"{share:.0%}",
        "; ".join(notes),
    ]
    return f"| {' | '.join(cells)} |"


def _microseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e6:,.4g} us"
