"""`make bench`: measures functions (fresh and warm memory) and overheads, and writes the tables.

Each part runs in its own process: `fresh` with the memory allocator as the system configures it,
`warm` with glibc configured to keep freed blocks, so that no contestant pays for page faults.  A
whole run writes results/*.json, the tables of README.md and the plots; `--full` (`make bench-full`)
measures every function at every size and dtype.  A partial run (`--cases softmax --sizes 4096x4096
--dtypes float32 --peers inductor --mode warm`) prints its table and writes nothing, unless
`--write` is given.  `--device cuda` (`make bench-gpu`) has one part instead, measured as
gpu_kernels.py says, a file with the GPU's name, and tables of its own in README.md; with `--merge`,
the file keeps the rows that aren't measured again.
`--dry-run` does the same at tiny sizes with the CPU as the GPU, to see that all of it runs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console

from . import functions, gpu, gpu_kernels, kernels, overhead, peers, plots, predictions, report
from .cases import DEFAULT_DTYPES, DTYPES
from .function_report import OURS, FunctionResults

MODES = ("fresh", "warm")
PARTS = (*MODES, "overhead")
ON_GPU = "gpu"
# Blocks of any size stay with the allocator: neither mapped one by one nor returned.
_KEEP_FREED_BLOCKS = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 40),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(1 << 28),
}


def main() -> int:
    """Runs the parts that the command line asks for; returns 1 if a case failed or was wrong."""
    arguments = _arguments()
    if arguments.child:
        return _child(arguments)
    if complaint := _complaint(arguments):
        print(complaint, file=sys.stderr)
        return 2
    on_cpu = arguments.device == "cpu" and not arguments.dry_run
    subset = arguments.cases, arguments.sizes, arguments.dtypes, arguments.peers, arguments.mode
    whole = not any(subset)
    write = (whole or arguments.write or arguments.merge) and not arguments.dry_run
    parts = [arguments.mode] if arguments.mode else list(PARTS if on_cpu else [ON_GPU])
    results = Path(arguments.results) if arguments.results else report.FOLDER / "results"
    with tempfile.TemporaryDirectory(prefix="pyfuser-bench-") as scratch:
        target = results if write and on_cpu else Path(scratch)
        target.mkdir(parents=True, exist_ok=True)
        codes = [_run_part(part, target, scratch) for part in parts]
        _show(parts, target)
        if write and on_cpu:
            _write_readme(results)
        elif write:
            _keep(Path(scratch) / f"{ON_GPU}.json", results, arguments.merge)
    return max(codes)


def _keep(measured: Path, results: Path, merge: bool) -> None:
    """Keeps the results of a GPU under its name, and writes the tables of README.md."""
    if measured.exists():
        found = report.Results.from_json(measured.read_text(encoding="utf-8"))
        path = results / gpu.file_name(str(found.machine["gpu"]))
        if merge and path.exists():
            found = found.merged(report.Results.from_json(path.read_text(encoding="utf-8")))
        results.mkdir(parents=True, exist_ok=True)
        for each in (measured, path):
            each.write_text(found.to_json(), encoding="utf-8")
        if results == report.FOLDER / "results":
            report.write_readme(_sections(ON_GPU, measured.parent))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--cases", nargs="*", default=[], help="parts of case names")
    parser.add_argument("--sizes", nargs="*", default=[], help="ROWSxCOLUMNS")
    parser.add_argument("--dtypes", nargs="*", default=[], choices=tuple(DTYPES))
    parser.add_argument("--peers", nargs="*", default=[], help="contestants besides pyfuser")
    parser.add_argument("--full", action="store_true", help="all functions, sizes and dtypes")
    parser.add_argument("--mode", choices=PARTS, help="one part only")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--seconds", type=float, help="per contestant and row")
    parser.add_argument("--dry-run", action="store_true", help="bench-gpu without a GPU")
    minutes = "of a run on a GPU; the rows that there is no time for are left out"
    parser.add_argument("--minutes", type=float, default=gpu_kernels.MINUTES, help=minutes)
    parser.add_argument("--no-inductor", action="store_true", help="leave torch.compile out")
    parser.add_argument("--write", action="store_true", help="write files even for a part")
    parser.add_argument("--merge", action="store_true", help="keep a GPU's other rows")
    parser.add_argument("--results", help="folder of the JSON files")
    parser.add_argument("--child", choices=(*PARTS, ON_GPU), help=argparse.SUPPRESS)
    return parser.parse_args()


def _complaint(arguments: argparse.Namespace) -> str | None:
    """What is wrong with the device, in one line; None if nothing is."""
    device = arguments.device
    if device == "cpu" or arguments.dry_run:
        return None
    try:
        kind = torch.device(device).type
    except RuntimeError:
        kind = ""
    if kind != "cuda":
        return f"benchmarks: expected the device cpu or cuda, got {device}"
    if not torch.cuda.is_available():
        return f"benchmarks: expected a device that torch sees, got {device}; there is no GPU here"
    if arguments.mode:
        return f"benchmarks: expected no --mode on {device}, got {arguments.mode}"
    return None


def _run_part(part: str, target: Path, scratch: str) -> int:
    """Runs a part in its own process; both modes share Inductor's cache, which starts empty."""
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(Path(scratch) / "inductor"),
        "PYFUSER_CACHE_DIR": str(Path(scratch) / "pyfuser"),
        # A kernel that fails to compile must not be measured as torch.  PYFUSER_STRICT would verify
        # every pass of each first call, and use nothing of what an earlier process has compiled.
        "PYFUSER_STRICT": "",
        "PYTHONWARNINGS": "error:pyfuser",
        **(_KEEP_FREED_BLOCKS if part == "warm" else {}),
    }
    command = [sys.executable, "-m", "benchmarks", *sys.argv[1:]]
    command += ["--child", part, "--results", str(target)]
    return subprocess.run(command, env=environment, check=False).returncode


def _child(arguments: argparse.Namespace) -> int:
    path = Path(arguments.results) / f"{arguments.child}.json"
    console = Console(stderr=True)
    if arguments.child == "overhead":
        found = overhead.measure(inductor=kernels.inductor_works("cpu"))
        path.write_text(found.to_json(), encoding="utf-8")
        return 0
    measured = _on_gpu if arguments.child == ON_GPU else _on_cpu
    with console.status("starting") as status:
        text, failed = measured(arguments, lambda t: status.update(f"{arguments.child}: {t}"))
    path.write_text(text, encoding="utf-8")
    return int(failed)


def _on_cpu(arguments: argparse.Namespace, progress: Callable[[str], None]) -> tuple[str, bool]:
    """The results as JSON, and whether pyfuser failed in a row."""
    wanted = arguments.peers and {*OURS, *arguments.peers}
    # Peers with memory of their own don't depend on glibc's settings.
    of_torch = arguments.child == "fresh"
    contestants = [
        peer
        for peer in peers.available(arguments.full)
        if (not of_torch or peer.is_torch)
        and (not wanted or peer.name in wanted)
        and not (arguments.no_inductor and peer.name in ("inductor", "max-autotune"))
    ]
    sizes = [_size(text) for text in arguments.sizes]
    rows = functions.selected(arguments.cases, sizes, arguments.dtypes, arguments.full)
    found = functions.measure(
        arguments.child, rows, contestants, arguments.seconds or functions.SECONDS, progress
    )
    return found.to_json(), any("pyfuser" in row.failures for row in found.rows)


def _on_gpu(arguments: argparse.Namespace, progress: Callable[[str], None]) -> tuple[str, bool]:
    """As `_on_cpu`."""
    dtypes = arguments.dtypes or DEFAULT_DTYPES
    if arguments.dry_run:
        found = gpu_kernels.dry_run(arguments.cases, dtypes, not arguments.no_inductor, progress)
    else:
        found = gpu_kernels.measure(
            arguments.cases,
            [_size(text) for text in arguments.sizes] or gpu_kernels.SIZES,
            dtypes,
            arguments.device,
            arguments.seconds or gpu.SECONDS,
            not arguments.no_inductor,
            arguments.minutes,
            {key: each.share for key, each in predictions.load().items()},
            progress,
        )
    return found.to_json(), any(row.failure for row in found.rows)


def _size(text: str) -> tuple[int, int]:
    rows, _, columns = text.partition("x")
    return int(rows), int(columns)


def _sections(part: str, folder: Path) -> dict[str, str]:
    """Section name -> Markdown, from one part's JSON file."""
    text = (folder / f"{part}.json").read_text(encoding="utf-8")
    if part == "overhead":
        return {"overhead": overhead.Overheads.from_json(text).table()}
    if part in MODES:
        found = FunctionResults.from_json(text)
        return {
            f"{part} summary": f"{found.facts()}\n\n{found.summary()}",
            f"{part} rows": found.table(),
        }
    results = report.Results.from_json(text)
    facts = report.facts_line(results.machine, results.copy_bytes_per_second)
    left_out = results.machine.get(report.LEFT_OUT, [])
    facts += f" {gpu_kernels.comparison(results.rows, results.copy_bytes_per_second)}"
    facts += f" Left out: {len(left_out)} rows." if left_out else ""  # type: ignore[arg-type]
    return {
        f"{part} summary": f"{facts}\n\n{results.summary()}",
        f"{part} rows": results.table(),
    }


def _show(parts: list[str], folder: Path) -> None:
    for part in parts:
        if (folder / f"{part}.json").exists():
            for name, body in _sections(part, folder).items():
                print(f"\n{name}\n\n{body}")


def _write_readme(results: Path) -> None:
    sections: dict[str, str] = {}
    for part in PARTS:
        if (results / f"{part}.json").exists():
            sections |= _sections(part, results)
    report.write_readme(sections)
    both = [results / f"{mode}.json" for mode in MODES]
    if all(path.exists() for path in both):
        texts = (path.read_text(encoding="utf-8") for path in both)
        fresh, warm = map(FunctionResults.from_json, texts)
        plots.write(warm, results)
        opening = f"{warm.short_summary(fresh)}\n\n{warm.facts()}"
        report.write_readme({"speed": opening}, report.FOLDER.parent / "README.md")


if __name__ == "__main__":
    sys.exit(main())
