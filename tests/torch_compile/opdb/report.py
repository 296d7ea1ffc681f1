"""A pytest plugin for the runs over torch's operator database: time limits, a summary, resuming.

These tests record `opdb` = [samples, graphs, regions, samples left out] among their properties; the
end of a run adds them up.  `--opdb-record=FILE` records passed cases and skips them in the next
run, until a run ends without failures; `--opdb-summary=FILE` is the file for the counts.  A run
with a summary fails if too many cases are skipped, or too few have a fused region.
"""

from __future__ import annotations

import faulthandler
import json
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

PROPERTY = "opdb"
_TITLE = "torch's operator database through pyfuser"
_SEEN = "passed in an earlier run"
# Of all cases of a whole run.
MOST_SKIPPED = 0.05
FEWEST_FUSED = 0.3


def pytest_addoption(parser: pytest.Parser) -> None:
    """The files for the record and the summary of a long run."""
    parser.addoption("--opdb-record", help="file that keeps what passed, to go on from there")
    parser.addoption("--opdb-summary", help="file for the summary of a run over torch's operators")


def pytest_configure(config: pytest.Config) -> None:
    """One plugin a run; it keeps the counts."""
    record, summary = (config.getoption(f"--opdb-{name}") for name in ("record", "summary"))
    is_worker = hasattr(config, "workerinput")
    config.pluginmanager.register(_Report(_path(record), _path(summary), is_worker))


def _path(option: str | None) -> Path | None:
    return Path(option) if option else None


@pytest.fixture
def time_limit() -> Iterator[Callable[[float], None]]:
    """A function that sets the seconds a test may take from now on, its native code included."""

    def expired(*_: object) -> None:
        raise TimeoutError("it took too long")

    def limit(seconds: float) -> None:
        signal.signal(signal.SIGALRM, expired)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        faulthandler.dump_traceback_later(2 * seconds, exit=True)  # stuck outside Python

    before = signal.getsignal(signal.SIGALRM)
    yield limit
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    faulthandler.cancel_dump_traceback_later()


class _Report:
    """The results of the cases so far: `finished` maps a test to its counts, None if skipped."""

    def __init__(self, record: Path | None, summary: Path | None, is_worker: bool) -> None:
        self.record, self.summary, self.is_worker = record, summary, is_worker
        self.finished: dict[str, list[int] | None] = {}
        self.failed: list[str] = []
        if record is not None and record.exists():
            for line in record.read_text(encoding="utf-8").splitlines():
                self.finished.update(json.loads(line))
        self.earlier = frozenset(self.finished)

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skips cases that passed before; not deselected: all workers must collect the same."""
        if item.nodeid in self.earlier:
            pytest.skip(_SEEN)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Takes note of a case that has ended."""
        is_case = PROPERTY in report.nodeid and report.nodeid.endswith("]")
        if self.is_worker or not is_case or report.nodeid in self.earlier:
            return
        if report.failed:
            self.failed.append(report.nodeid)
        elif report.when == "call":
            counts = dict(report.user_properties).get(PROPERTY)
            self.finished[report.nodeid] = counts
            if self.record is not None:
                self.record.parent.mkdir(parents=True, exist_ok=True)
                with self.record.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({report.nodeid: counts}) + "\n")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A whole run fails if too many of its cases say nothing about kernels."""
        if self.summary is None or self.is_worker or session.config.option.keyword:
            return
        cases = len(self.finished)
        row = self._rows().get("all", Counter())
        if row["skipped"] > MOST_SKIPPED * cases or row["fused"] < FEWEST_FUSED * cases:
            self.failed.append("the numbers of cases skipped and fused")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any, exitstatus: int) -> None:
        """Prints and writes the counts; after a run without failures, the next one starts over."""
        if not self.finished and not self.failed:
            return
        terminalreporter.section(_TITLE)
        lines = self._lines()
        for line in lines:
            terminalreporter.write_line(line)
        if self.summary is not None:
            heading = f"{_TITLE}, torch {torch.__version__}"
            self.summary.write_text("\n".join([heading, *lines]) + "\n", encoding="utf-8")
        if self.record is not None and exitstatus == 0 and not self.failed:
            self.record.unlink(missing_ok=True)

    def _rows(self) -> dict[str, Counter[str]]:
        """The counts of every dtype, and of all."""
        rows: dict[str, Counter[str]] = {}
        for test, counts in self.finished.items():
            dtype = test.rstrip("]").rsplit("-", 1)[-1]
            for name in (dtype, "all"):
                _count(rows.setdefault(name, Counter()), counts)
        if rows:
            rows["all"] = rows.pop("all")
        return rows

    def _lines(self) -> list[str]:
        """One line for every dtype, one for all, and one for the failures."""
        lines = [_line(name, row) for name, row in self._rows().items()]
        return [*lines, f"failures: {len(self.failed)}", *self.failed]


def _count(row: Counter[str], counts: list[int] | None) -> None:
    if counts is None:
        row["skipped"] += 1
        return
    samples, graphs, regions, left_out = counts
    row["equal"] += 1
    row["samples"] += samples
    row["fused"] += regions > 0
    row["regions"] += regions
    row["uncompiled"] += graphs == 0
    row["left_out"] += left_out


def _line(name: str, row: Counter[str]) -> str:
    return (
        f"{name}: {row['equal']} cases equal to eager ({row['samples']} samples), "
        f"{row['fused']} of them with a fused region ({row['regions']} regions), "
        f"{row['uncompiled']} without a graph; torch itself doesn't run or trace "
        f"{row['skipped']} cases and {row['left_out']} samples of others"
    )
