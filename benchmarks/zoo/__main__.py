"""`make zoo`: training steps of many architectures, correct and no slower than eager.

Every architecture has its own process, so a failure affects only its own row.  A whole run writes
results/zoo.json and the tables of benchmarks/README.md; a partial run prints them and writes
nothing unless `--merge` is given.
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version

from rich.console import Console

from benchmarks import child, report
from benchmarks.harness import machine_facts
from benchmarks.kernels import inductor_works
from benchmarks.models.zoo import selected

from . import measure
from .architectures import ARCHITECTURES
from .results import ZooResults, ZooRow

_PACKAGE = "benchmarks.zoo"
_SECONDS = 2.0  # of timing, for each contestant


def main() -> int:
    """Runs what the command line asks for; returns 1 if something falls short."""
    arguments = _arguments()
    if arguments.child:
        return child.answer(measure, arguments.child)
    names = selected([each for each in arguments.names.split(",") if each], ARCHITECTURES)
    backends = ["pyfuser"]
    if arguments.inductor and inductor_works("cpu"):
        backends.append("inductor")
    versions = {name: version(name) for name in ("transformers", "timm")}
    results = ZooResults({**machine_facts(), **versions})
    console = Console(stderr=True)
    with console.status("starting") as status:
        for number, name in enumerate(names, 1):
            status.update(f"{name} ({number} of {len(names)})")
            row = _row(name, backends, 0.0 if arguments.check else _SECONDS)
            results.rows.append(row)
            console.print(f"{name}: {_said(row)}", highlight=False, markup=False)
    print(results.summary() + "\n\n" + results.table())
    whole = len(names) == len(ARCHITECTURES) and not arguments.check
    if whole or arguments.merge:
        path = report.FOLDER / "results" / "zoo.json"
        if arguments.merge and path.exists():
            results = results.merged(ZooResults.from_json(path.read_text(encoding="utf-8")))
        path.write_text(results.to_json(), encoding="utf-8")
        report.write_readme(results.sections())
    return 1 if any(row.problems() for row in results.rows) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description=__doc__)
    parser.add_argument("--names", default="", help="names with commas between: swin,mamba2")
    parser.add_argument("--check", action="store_true", help="no timing, only correctness")
    parser.add_argument("--inductor", action="store_true", help="measure Inductor as well")
    parser.add_argument(
        "--merge", action="store_true", help="put these results among those of the last whole run"
    )
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    return parser.parse_args()


def _row(name: str, backends: list[str], seconds: float) -> ZooRow:
    """The measurements of one architecture, or its failure."""
    # Not strict: a fallback is a result here, and users don't verify every pass.
    environment = {**child.NO_CACHES, "PYFUSER_STRICT": ""}
    try:
        found = child.run(_PACKAGE, "architecture", name, backends, seconds, **environment)
    except child.FAILURES as problem:
        return ZooRow(name, failure=str(problem))
    return ZooRow(name, **found)


def _said(row: ZooRow) -> str:
    parts = [f"error {error:.2f}x"] if (error := row.error("pyfuser")) is not None else []
    if (speed := row.speed("pyfuser")) is not None:
        parts.append(f"{speed:.2f}x")
    return "; ".join([*parts, *row.problems()])


if __name__ == "__main__":
    sys.exit(main())
