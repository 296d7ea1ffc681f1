"""`python -m benchmarks.tuning`: how far the heuristics are from the best that tuning finds.

Tunes each row of cases.py on this machine's CPU, in one process with one number of threads, or on
its GPU, and prints a line as soon as it is known; at the end, the rows that are over 10 % away.
Results go to the tuning store like those of `pyfuser.autotune`; PYFUSER_CACHE_DIR names another.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import torch

import pyfuser
from pyfuser.tuning.report import Row, changes_between

from .cases import CASES, DEFAULT_DTYPES, DTYPES, Case, definition
from .kernels import inputs_of, selected

SIZES = ((256, 1024), (4096, 4096), (65536, 64))
_FAR = 1.1


def tuned(
    case: Case, height: int, width: int, dtype: str, device: str, seconds: float
) -> Iterator[tuple[str, Row]]:
    """The kernels of a row of the table, each with a title."""
    inputs = inputs_of(case, height, width, dtype, device)
    report = pyfuser.autotune(definition(case, inputs), inputs, seconds=seconds)
    for row in report.rows:
        yield f"{case.name} | {height} x {width} | {dtype} | {row.scheduler}", row


def line(title: str, row: Row) -> str:
    """The distance, and what differs in the best schedule."""
    if row.result is None:
        return f"| {title} | - | {row.note} | |"
    changes = ", ".join(changes_between(row.result.heuristic, row.result.best)) or "none"
    kept = "tuned" if row.result.is_chosen else "kept"
    dropped = f", {row.result.dropped} dropped" if row.result.dropped else ""
    return f"| {title} | {row.distance:.2f}x | {kept} | {changes}{dropped} |"


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuning", description=__doc__)
    parser.add_argument("--cases", nargs="*", default=[], help="parts of case names")
    parser.add_argument("--sizes", nargs="*", default=[], help="ROWSxCOLUMNS")
    parser.add_argument("--dtypes", nargs="*", default=DEFAULT_DTYPES, choices=tuple(DTYPES))
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=30.0, help="for each row")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    sizes = [(int(a), int(b)) for a, b in (each.split("x") for each in given.sizes)] or SIZES
    print(f"{given.threads} threads\n\n| case | size | dtype | scheduler | best | | changes |")
    print("|---|---|---|---|--:|---|---|")
    far: list[str] = []
    for case, (height, width), dtype in selected(given.cases, sizes, given.dtypes, CASES):
        for title, row in tuned(case, height, width, dtype, given.device, given.seconds):
            print(line(title, row), flush=True)
            far += [line(title, row)] if row.distance > _FAR else []
    print(f"\n{len(far)} over 10 % from the best found:\n", *far, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
