"""`make demo`: the parts of a small transformer on the project's own documents, fused and timed.

For every part: define the fusion, call it (that compiles it), compare with torch in float64, then
time it beside eager torch and, where there is a C++ compiler, torch.compile.  Exits with 1 if a
result was wrong.  Caches are empty at the start, so that first calls are first calls.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Before torch is imported: caches that start empty, in a folder that goes away with the process.
_CACHES = tempfile.TemporaryDirectory(prefix="pyfuser-demo-")
os.environ["PYFUSER_CACHE_DIR"] = str(Path(_CACHES.name) / "pyfuser")
os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(_CACHES.name) / "inductor")

import torch  # noqa: E402
from rich import box  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn  # noqa: E402
from rich.table import Table  # noqa: E402

from benchmarks.harness import (  # noqa: E402
    copy_bandwidth,
    error_of,
    geometric_mean,
    interleaved,
    traffic_bytes,
)
from benchmarks.kernels import inductor_works  # noqa: E402
from pyfuser import FusionDefinition, compiler  # noqa: E402
from pyfuser.analysis.layouts import layout_of  # noqa: E402
from pyfuser.ops.binding import bind  # noqa: E402
from pyfuser.schedule.acceptance import SizeInfo  # noqa: E402

from . import model  # noqa: E402
from .parts import Part  # noqa: E402

# A result passes when it is within this many roundings of float64, or as good as eager's.
_ROUNDINGS = 32
_EPSILON = torch.finfo(torch.float32).eps


@dataclass
class Outcome:
    """What was found out about one part; times in seconds."""

    part: Part
    kernels: int
    error: float
    eager_error: float
    traffic: int
    first_call: float
    compiled_first_call: float | None
    seconds: dict[str, float]

    @property
    def is_right(self) -> bool:
        """True when the result is as close to float64 as it should be."""
        return self.error <= max(_ROUNDINGS * _EPSILON, 2 * self.eager_error)


def main() -> int:
    """Runs everything; 1 if a result was wrong."""
    console = Console()
    root = Path(__file__).resolve().parent.parent
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("reading the documents, running the model in torch", total=None)
        cases = model.cases(model.text(root))
        bandwidth = copy_bandwidth()
        progress.update(task, description="starting the compilers")
        warm_up()
        progress.update(task, total=len(cases))
        outcomes = []
        for part, inputs in cases:
            progress.update(task, description=part.name)
            outcomes.append(measure(part, inputs))
            progress.advance(task)
    console.print(
        f"{model.BATCH} texts of {model.TOKENS} bytes, float32, {torch.get_num_threads()} threads, "
        f"copy bandwidth {bandwidth / 1e9:.1f} GB/s\n"
    )
    console.print(speed_table(outcomes, bandwidth))
    console.print(first_call_table(outcomes))
    console.print(closing_words(outcomes))
    return 0 if all(outcome.is_right for outcome in outcomes) else 1


def warm_up() -> None:
    """Compiles one unrelated kernel, so that no part pays for imports and start-up."""
    x = torch.randn(64, 64)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.mul(fd.from_pytorch(x), 2.0))
    fd.execute([x])
    if inductor_works("cpu"):
        torch.compile(lambda tensor: tensor * 2.0)(x)


def measure(part: Part, inputs: list[torch.Tensor]) -> Outcome:
    """Compiles, checks and times one part."""
    eager = _outputs(part.reference(*inputs))
    doubles = [each.double() if each.is_floating_point() else each for each in inputs]
    references = _outputs(part.reference(*doubles))
    fd, outputs, first_call = _first_fused_call(part, inputs)
    contestants: dict[str, Callable[[], Any]] = {
        "pyfuser": lambda: fd.execute(inputs),
        "eager": lambda: part.reference(*inputs),
    }
    compiled_first_call = None
    if inductor_works("cpu"):
        compiled = torch.compile(part.reference, dynamic=False)
        start = time.perf_counter()
        compiled(*inputs)
        compiled_first_call = time.perf_counter() - start
        contestants["torch.compile"] = lambda: compiled(*inputs)
    return Outcome(
        part,
        kernel_count(fd, inputs),
        error_of(outputs, references),
        error_of(eager, references),
        traffic_bytes([*inputs, *eager]),
        first_call,
        compiled_first_call,
        interleaved(contestants, seconds=0.4, fewest_rounds=5),
    )


def kernel_count(fd: FusionDefinition, inputs: list[torch.Tensor]) -> int:
    """Kernels that one call launches: the segments that don't run through torch."""
    fusion = fd.fusion.definition
    sizes = bind(fusion, inputs).sizes
    layouts = [layout_of(each.shape, each.stride()) for each in inputs]
    program = compiler.compile_program(
        compiler.prepare(fusion), layouts, SizeInfo.of(sizes), inputs[0].device.type
    )
    return sum(part.build(sizes, program.device) is not None for part in program.parts)


def _first_fused_call(
    part: Part, inputs: list[torch.Tensor]
) -> tuple[FusionDefinition, list[torch.Tensor], float]:
    """The definition, its outputs, and the seconds from nothing to these outputs."""
    start = time.perf_counter()
    fd = part.fused(inputs)
    outputs = fd.execute(inputs)
    return fd, outputs, time.perf_counter() - start


def speed_table(outcomes: list[Outcome], bandwidth: float) -> Table:
    """Steady calls: milliseconds, and how many times as fast pyfuser is."""
    made = _table("calls (ms)", "kernels", "pyfuser", "eager", "torch.compile", "GB/s, copy")
    for each in outcomes:
        ours = each.seconds["pyfuser"]
        moved = each.traffic / ours
        made.add_row(
            each.part.name,
            str(each.kernels),
            f"{ours * 1e3:.2f}",
            _beside(each.seconds["eager"], ours),
            _beside(each.seconds.get("torch.compile"), ours),
            f"{moved / 1e9:.1f} {moved / bandwidth:4.0%}",
        )
    return made


def first_call_table(outcomes: list[Outcome]) -> Table:
    """First calls, compilation included, and how close the results are to float64."""
    made = _table("first calls (ms)", "pyfuser", "torch.compile", "error", "eager's error")
    for each in outcomes:
        mark = "[green]" if each.is_right else "[bold red]wrong: "
        made.add_row(
            each.part.name,
            f"{each.first_call * 1e3:.0f}",
            _beside(each.compiled_first_call, each.first_call, digits=0),
            f"{mark}{each.error:.0e}",
            f"{each.eager_error:.0e}",
        )
    return made


def _table(first: str, *headings: str) -> Table:
    made = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    made.add_column(first, no_wrap=True)
    for heading in headings:
        made.add_column(heading, justify="right", no_wrap=True)
    return made


def _beside(seconds: float | None, ours: float, digits: int = 2) -> str:
    if seconds is None:
        return ""
    return f"{seconds * 1e3:.{digits}f} [bold]{seconds / ours:4.1f}x[/bold]"


def closing_words(outcomes: list[Outcome]) -> str:
    """The geometric means in a sentence each."""
    lines = []
    for name in ("eager", "torch.compile"):
        ratios = [
            each.seconds[name] / each.seconds["pyfuser"]
            for each in outcomes
            if name in each.seconds
        ]
        if ratios:
            lines.append(f"Against {name}: {geometric_mean(ratios):.2f} times as fast.")
        else:
            lines.append(f"No C++ compiler here, so {name} isn't in the table; pyfuser needs none.")
    lines.append(
        "`x` is the other's time over pyfuser's. GB/s are those of inputs and outputs, with their "
        "share of the copy bandwidth (above 100% from caches). Errors are against float64, in "
        "parts of the greatest value. First calls are those of a process that compiled before.\n"
        "See what was compiled: make show FILE=docs/examples/softmax.py"
    )
    return "\n".join(lines)


def _outputs(result: torch.Tensor | tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


if __name__ == "__main__":
    sys.exit(main())
