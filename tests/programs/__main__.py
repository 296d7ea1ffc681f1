"""Thousands of random programs: python -m tests.programs --seconds 600 --seeds 0:10000.

Prints failures, grouped by cause and shrunk to scripts, and the share of programs that partly fell
back to torch, with the reasons.  The exit status says whether anything failed.
"""

from __future__ import annotations

import argparse
import collections
import re
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.programs.draw_schedules import drawn
from tests.programs.generate import generate
from tests.programs.outcome import Outcome
from tests.programs.program import Program
from tests.programs.scheduled_case import ScheduledCase
from tests.programs.shrink import pattern, shrunk
from tests.programs.shrink_schedules import smaller_case
from tests.programs.workers import FusionSeed, ProgramSeed, ScheduleSeed, Worker


@dataclass
class Failure:
    """A failing program, shrunk."""

    seed: int
    outcome: Outcome
    program: Program | ScheduledCase | None


@dataclass
class Results:
    """The results of a run so far."""

    kinds: collections.Counter[str] = field(default_factory=collections.Counter)
    fallbacks: dict[str, list[int]] = field(default_factory=dict)
    excused: dict[str, list[int]] = field(default_factory=dict)
    refused: dict[str, list[int]] = field(default_factory=dict)
    schedulers: collections.Counter[str] = field(default_factory=collections.Counter)
    count: int = 0
    fell_back: int = 0
    failures: list[Failure] = field(default_factory=list)
    seconds: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)


def main() -> int:
    """Runs the command; returns 1 if something failed."""
    options = arguments()
    results, begin = Results(), time.monotonic()
    seeds = iter(options.seeds)
    with ThreadPoolExecutor(options.workers) as pool:
        started = [
            pool.submit(work, options, seeds, begin, results) for _ in range(options.workers)
        ]
    for each in started:
        each.result()
    report(results, time.monotonic() - begin)
    return 1 if results.failures else 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="time limit (600)")
    parser.add_argument("--seeds", type=seed_list, default=range(10000), help="17,40:50 (0:10000)")
    parser.add_argument("--workers", type=int, default=1, help="processes (1)")
    parser.add_argument("--strict", action="store_true", help="a fallback is a failure")
    parser.add_argument("--fusions", action="store_true", help="FusionDefinitions, not programs")
    parser.add_argument("--schedules", action="store_true", help="schedules by hand, not programs")
    parser.add_argument("--shrink", type=float, default=60, help="seconds for each failure (60)")
    parser.add_argument("--report", type=Path, help="append each failure to this file when found")
    parser.add_argument("--most", type=int, default=25, help="statements of a program (25)")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for a program (120)")
    return parser.parse_args()


def seed_list(text: str) -> list[int]:
    """17,40:50 as numbers."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition(":")
        found += range(int(first), int(last)) if last else [int(first)]
    return found


def work(options: argparse.Namespace, seeds: Iterator[int], begin: float, results: Results) -> None:
    """One worker's share of the seeds."""
    worker = Worker(options.strict, options.timeout)
    while time.monotonic() - begin < options.seconds:
        with results.lock:
            seed = next(seeds, None)
        if seed is None:
            break
        program, outcome = worker.judge(wanted(options, seed))
        with results.lock:
            note(results, seed, outcome)
        if not outcome.failed:
            continue
        failure = Failure(seed, outcome, None)
        if not options.fusions:
            program = program or again(options, seed)
            failure = shrink(worker, seed, program, outcome, options.shrink)
        with results.lock:
            results.failures.append(failure)
            publish(describe(failure), options.report)
    worker.stop()


def wanted(options: argparse.Namespace, seed: int) -> FusionSeed | ScheduleSeed | ProgramSeed:
    """What a worker is to make of a seed."""
    if options.fusions:
        return FusionSeed(seed)
    return ScheduleSeed(seed) if options.schedules else ProgramSeed(seed, options.most)


def again(options: argparse.Namespace, seed: int) -> Program | ScheduledCase:
    """What the worker made of a seed, if it couldn't say because it ended."""
    return drawn((), seed).case if options.schedules else generate(seed, options.most)


def publish(text: str, report: Path | None) -> None:
    """Prints a failure, and appends it to a file if there is one."""
    print(text, flush=True)
    if report is not None:
        with report.open("a", encoding="utf-8") as file:
            file.write(text + "\n")


def note(results: Results, seed: int, outcome: Outcome) -> None:
    """Counts one program."""
    results.kinds[outcome.kind] += 1
    results.seconds += outcome.seconds
    results.fell_back += bool(outcome.fallbacks)
    for reason in outcome.fallbacks:
        results.fallbacks.setdefault(pattern(reason), []).append(seed)
    refusals = (
        [outcome.message, *outcome.refusals] if outcome.kind == "refused" else outcome.refusals
    )
    for message in refusals:
        results.refused.setdefault(refusal(message), []).append(seed)
    if outcome.kind in ("torch", "invalid"):
        results.excused.setdefault(pattern(outcome.signature), []).append(seed)
    results.schedulers.update(outcome.schedulers)
    results.count += outcome.count
    total = sum(results.kinds.values())
    if total % 100 == 0:
        print(f"{total} programs: {dict(results.kinds)}", file=sys.stderr, flush=True)


def refusal(message: str) -> str:
    """What refusals have in common: the call, and what it expected."""
    return pattern(re.sub(r"(?<![A-Za-z])[ibr][A-Za-z]*[.\w]*\{.*?\}", "AXIS", message))


def shrink(
    worker: Worker, seed: int, program: Program | ScheduledCase, outcome: Outcome, seconds: float
) -> Failure:
    """The failure with the smallest program found."""
    small = program
    if isinstance(program, ScheduledCase):
        small = smaller_case(program, outcome, lambda case: worker.judge(case)[1], seconds)
    elif seconds:
        small = shrunk(program, outcome, lambda p: worker.judge(p)[1], seconds)
    if small is not program:
        outcome = worker.judge(small)[1]
    return Failure(seed, outcome, small)


def describe(failure: Failure) -> str:
    """The printed form of a failure."""
    outcome = failure.outcome
    if failure.program is None:
        return f"## seed {failure.seed}: {outcome.signature}\n{outcome.detail[-6000:]}\n"
    detail = outcome.detail.strip().splitlines()[-1:] if outcome.kind == "wrong" else []
    head = f"## seed {failure.seed}: {outcome.signature}"
    return "\n".join([head, *detail, "```python", failure.program.script(), "```", ""])


def report(results: Results, seconds: float) -> None:
    """All results of a run."""
    total = sum(results.kinds.values())
    print(f"{total} programs in {seconds:.0f} s, {results.seconds / max(total, 1):.2f} s each")
    print("  " + ", ".join(f"{kind} {count}" for kind, count in results.kinds.most_common()))
    if results.schedulers:
        print(f"{results.count} fusions, kernels by scheduler: {dict(results.schedulers)}")
    share = 100 * results.fell_back / max(total, 1)
    print(f"{results.fell_back} programs ({share:.2f} %) of which a part fell back to torch")
    reasons = (
        ("fell back", results.fallbacks),
        ("torch's own", results.excused),
        ("refused", results.refused),
    )
    for kind, found in reasons:
        for reason, seeds in sorted(found.items(), key=lambda item: -len(item[1])):
            print(f"  {kind} {len(seeds)} times, e.g. seeds {seeds[:5]}: {reason}")
    groups = collections.defaultdict(list)
    for failure in results.failures:
        groups[pattern(failure.outcome.signature)].append(failure.seed)
    for signature, seeds in sorted(groups.items(), key=lambda item: -len(item[1])):
        print(f"  failed {len(seeds)} times: {signature}: seeds {seeds}")


if __name__ == "__main__":
    sys.exit(main())
