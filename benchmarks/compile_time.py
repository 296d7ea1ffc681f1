"""`python -m benchmarks.compile_time`: where each millisecond of a first call goes.

Each stage's own time, without that of the stages which it calls, is measured by wrapping the
function that runs it; the median of several processes, each of which has compiled another kernel
before, so that imports and first uses don't count.  No cache is used, and LLVM runs in the process.
The table goes into docs/performance.md with `--write`.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from pyfuser import compiler as compiler_module
from pyfuser import executor, parts
from pyfuser.devices.cpu import target
from pyfuser.schedule import registry

from . import child, report
from .cases import CASES, definition

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
CASES_SHOWN = ("bias + GELU (tanh)", "layer norm", "transposed add")
_ROWS, _COLUMNS = 256, 1024
_PROCESSES = 5
_LLVM = "LLVM: parse, optimise, emit, link"
_OTHER = "the rest of the call"

# Stage -> the functions that run it: where they are looked up, and their names.
_STAGES: dict[str, list[tuple[Any, str]]] = {
    "define": [(sys.modules[__name__], "definition")],
    "simplify (preseg)": [(executor, "prepare")],
    "specialise to layouts": [(compiler_module, "specialise")],
    "segment": [(compiler_module, "segmented_fusion")],
    "bound the work": [(parts.KernelPart, "work")],
    "decide": [(parts.KernelPart, "decide")],
    "schedule": [(registry.AutomaticScheduler, "schedule")],
    "lower": [(parts, "lowered")],
    "generate LLVM IR": [(target.CpuTarget, "generate")],
    _LLVM: [(parts, "build_kernel")],
    "plan the call": [(executor, "write_plan")],
}


def first_call(name: str) -> dict[str, float]:
    """In a process of its own: milliseconds by stage of a definition's first call."""
    torch.set_num_threads(1)
    case = next(each for each in CASES if each.name == name)
    warm = definition(next(each for each in CASES if each.name == "softmax"), [torch.ones(8, 64)])
    warm.execute([torch.ones(8, 64)])
    inputs = case.inputs(_ROWS, _COLUMNS, torch.randn)
    with _timed() as stages:
        start = time.perf_counter()
        definition(case, inputs).execute(inputs)
        total = time.perf_counter() - start
    found = {stage: seconds * 1e3 for stage, seconds in stages.items()}
    return found | {_OTHER: total * 1e3 - sum(found.values())}


@contextmanager
def _timed() -> Iterator[dict[str, float]]:
    """Each stage's own seconds while the block runs."""
    own: dict[str, float] = defaultdict(float)
    inside = [0.0]  # seconds of the stages called so far, by depth

    def wrapped(stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **keywords: Any) -> Any:
            inside.append(0.0)
            start = time.perf_counter()
            try:
                return function(*args, **keywords)
            finally:
                taken = time.perf_counter() - start
                own[stage] += taken - inside.pop()
                inside[-1] += taken

        return call

    originals = []
    for stage, places in _STAGES.items():
        for owner, name in places:
            original = getattr(owner, name)
            originals.append((owner, name, original))
            setattr(owner, name, wrapped(stage, original))
    try:
        yield own
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def table(measured: dict[str, dict[str, float]]) -> str:
    """Markdown: a line for each stage, a column for each case, then Python's and LLVM's sums."""
    stages = [s for s in (*_STAGES, _OTHER) if any(s in each for each in measured.values())]
    lines = [f"| ms | {' | '.join(measured)} |", f"|---|{'--:|' * len(measured)}"]
    for stage in stages:
        cells = (f"{each.get(stage, 0.0):.2f}" for each in measured.values())
        lines.append(f"| {stage} | {' | '.join(cells)} |")
    python = (f"{sum(each.values()) - each.get(_LLVM, 0.0):.1f}" for each in measured.values())
    lines.append(f"| **all but LLVM** | {' | '.join(python)} |")
    whole = (f"{sum(each.values()):.1f}" for each in measured.values())
    lines.append(f"| **the first call** | {' | '.join(whole)} |")
    return "\n".join(lines)


def main() -> int:
    """Measures the cases and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile_time", description=__doc__)
    parser.add_argument("--write", action="store_true", help="into docs/performance.md")
    parser.add_argument("--child", nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        module: ModuleType = sys.modules[__name__]
        return child.answer(module, given.child)
    measured = {}
    for name in CASES_SHOWN:
        runs = [
            child.run(
                "benchmarks.compile_time",
                "first_call",
                name,
                PYFUSER_COMPILER_PROCESS="0",
                PYFUSER_STRICT="",
                **child.NO_CACHES,
            )
            for _ in range(_PROCESSES)
        ]
        measured[name] = {
            stage: statistics.median(run.get(stage, 0.0) for run in runs) for stage in runs[0]
        }
    print(table(measured))
    if given.write:
        report.write_readme({"compile time": table(measured)}, DOCUMENT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
