"""`make bench-models`: whole models, eager, torch.compile and pyfuser side by side.

Every measurement runs in its own process, so no earlier compilation or cache helps it, and a model
that fails affects only its own row.  A whole run writes results/models.json and the tables of
benchmarks/README.md; a partial run prints them and writes nothing unless `--write` is given.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from itertools import product
from typing import Any

import transformers
from rich.console import Console

from benchmarks import child, report
from benchmarks.harness import machine_facts
from benchmarks.kernels import inductor_works

from . import decoding, measure, zoo
from .results import TRACING, ModelResults, ModelRow
from .work import PRECISIONS

_PACKAGE = "benchmarks.models"
_FIRST_STEPS = 2  # new processes, the fastest of which counts


def main() -> int:
    """Runs what the command line asks for; returns 1 if something failed."""
    arguments = _arguments()
    if arguments.child:
        return child.answer(measure, arguments.child)
    names = zoo.selected([each for each in arguments.models.split(",") if each], zoo.MODELS)
    wanted = arguments.backends.split(",")
    backends = [each for each in wanted if each != "inductor" or inductor_works("cpu")]
    results = ModelResults({**machine_facts(), "transformers": transformers.__version__})
    console, failures = Console(stderr=True), []
    with console.status("starting") as status:
        for precision in arguments.precisions.split(","):
            for name in names:
                status.update(f"{name}, {precision}")
                row = _row(name, precision, backends, arguments)
                results.rows.append(row)
                console.print(f"{name}, {precision}: {row.failures or 'done'}", highlight=False)
        if not arguments.quick and "pyfuser" in backends:
            status.update("tokens and calls")
            failures = _measure_decoding(results, names, backends)
            failures += _measure_calls(results, backends)
            console.print(f"tokens and calls: {failures or 'done'}", highlight=False)
    path = report.FOLDER / "results" / "models.json"
    if arguments.merge and path.exists():
        results = results.merged(ModelResults.from_json(path.read_text(encoding="utf-8")))
    sections = results.sections()
    print("\n".join(sections.values()))
    whole = len(names) == len(zoo.MODELS) and not arguments.quick and not arguments.no_cold
    if arguments.write or arguments.merge or (whole and wanted == ["inductor", "pyfuser"]):
        path.write_text(results.to_json(), encoding="utf-8")
        report.write_readme(sections)
    return 1 if failures or any(row.failures for row in results.rows) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models", description=__doc__)
    parser.add_argument("--models", default="", help="names with commas between: gpt2,vit")
    parser.add_argument("--backends", default="inductor,pyfuser", help="beside eager")
    parser.add_argument("--precisions", default=",".join(PRECISIONS), help="as with --models")
    parser.add_argument("--quick", action="store_true", help="speed and errors only, few rounds")
    parser.add_argument("--no-cold", action="store_true", help="leave first steps out")
    parser.add_argument("--write", action="store_true", help="write files even for a part")
    parser.add_argument(
        "--merge", action="store_true", help="measure these models again, keep the others' results"
    )
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    return parser.parse_args()


def _row(name: str, precision: str, backends: list[str], arguments: argparse.Namespace) -> ModelRow:
    """All measurements of one model; each failure is a line in `failures`.

    First steps and memory are measured in float32.
    """
    row = ModelRow(name, precision)

    def attempt(what: str, *given: Any, **environment: str) -> Any:
        try:
            return child.run(_PACKAGE, what, *given, **environment)
        except child.FAILURES as problem:
            row.failures.append(f"{what}: {problem}")
            return None

    seconds = 0.2 if arguments.quick else 2.0 if precision == "float32" else 0.5
    if found := attempt("steady", name, backends, seconds, precision):
        row = ModelRow(name, precision, failures=row.failures, **found)
    if arguments.quick:
        return row
    if "pyfuser" in backends:
        row.breakdown = attempt("breakdown", name, precision) or {}
    if precision != "float32":
        return row
    for backend in [each for each in ("eager", "pyfuser") if each in ("eager", *backends)]:
        size = attempt("peak", name, backend)
        if size is not None:
            row.peak_bytes[backend] = size

    def first_step(label: str, backend: str, **environment: str) -> None:
        environment |= {"PYFUSER_STRICT": ""}  # users don't verify every pass
        seconds = [attempt("first_step", name, backend, **environment) for _ in range(_FIRST_STEPS)]
        if all(seconds):
            row.first_step[label] = min(seconds)

    for backend in [] if arguments.no_cold else [*backends, TRACING]:
        first_step(backend, backend, **child.NO_CACHES)
    if "pyfuser" in row.first_step:
        with tempfile.TemporaryDirectory(prefix="pyfuser-bench-") as cache:
            attempt("first_step", name, "pyfuser", PYFUSER_CACHE_DIR=cache)  # fills it
            first_step("pyfuser, disk", "pyfuser", PYFUSER_CACHE_DIR=cache)
    return row


def _measure_decoding(results: ModelResults, names: list[str], backends: list[str]) -> list[str]:
    """Measures writing token by token; returns failures."""
    failures = []
    chosen = [each for each in decoding.MODELS if each in names]
    for name, precision, kind in product(chosen, decoding.PRECISIONS, decoding.CACHES):
        title = f"{name}, {precision}, {kind} cache"
        try:
            found = child.run(_PACKAGE, "decoding", name, backends, kind, precision)
            results.decoding[title] = found
        except child.FAILURES as problem:
            failures.append(f"{title}: {problem}")
    return failures


def _measure_calls(results: ModelResults, backends: list[str]) -> list[str]:
    """Measures the cost of calls and the compilations for changing shapes; returns failures."""
    failures = []
    try:
        results.call = child.run(_PACKAGE, "one_element_call", backends)
        results.changing = child.run(_PACKAGE, "changing_shapes", "pyfuser")
    except child.FAILURES as problem:
        failures.append(str(problem))
    return failures


if __name__ == "__main__":
    sys.exit(main())
