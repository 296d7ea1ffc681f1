"""`make demo`: a small GPT learns the project's own documents, eager and compiled side by side.

Two copies are trained, and their losses compared; then the compiled copy generates text, which
grows byte by byte; then some hand-written kernels run.  Exits with 1 if losses, scores or kernels
disagree.  Caches are empty at the start, so compile times are those of a first run.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Before torch is imported: an empty cache, in a folder that is removed with the process.
_CACHES = tempfile.TemporaryDirectory(prefix="pyfuser-demo-")
os.environ["PYFUSER_CACHE_DIR"] = str(Path(_CACHES.name) / "pyfuser")

import torch  # noqa: E402
from rich import box  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.panel import Panel  # noqa: E402
from rich.table import Table  # noqa: E402
from rich.text import Text  # noqa: E402

from pyfuser.interface import compiled_kernel_count  # noqa: E402

from . import gpt, kernels, training  # noqa: E402
from .training import Runner  # noqa: E402

PROMPT, COUNT = b"def lower(", 160
# Eager's losses differ by at most 1e-6 in all steps if its first weights are off by one rounding.
_LOSS_TOLERANCE, _SCORE_TOLERANCE = 1e-4, 1e-3


def main() -> int:
    """Runs everything; 1 if a result was wrong."""
    console = Console()
    # Dynamo warns about the profiler's marks in every optimiser step.
    torch._logging.set_logs(dynamo=logging.ERROR)
    size = sum(each.numel() for each in gpt.Gpt().parameters())
    console.print(
        f"A GPT of {size / 1e6:.1f}M parameters reads the project's documents, byte by byte: "
        f"{training.STEPS} steps of {training.BATCH}x{training.LENGTH} bytes, float32, "
        f"{torch.get_num_threads()} threads.\n"
    )
    runners = training.trained(console)
    kernels_of_training = compiled_kernel_count()
    console.print(loss_table(*runners))
    with console.status("writing"):
        samples = [sample(runner) for runner in runners]
    console.print(Panel(Text(printable(samples[1].text)), title="what it writes", width=100))
    with console.status("measuring memory"):
        memory = [training.peak(runner.name) for runner in runners]
    console.print(summary_table(runners, samples, memory, kernels_of_training))
    with console.status("hand-written kernels"):
        outcomes = kernels.measured(gpt.text(training.ROOT))
    console.print(kernels.table(outcomes))
    losses = zip(*(each.losses for each in runners), strict=True)
    apart = max(abs(a - b) for a, b in losses)
    drift = score_difference(samples[1])
    console.print(
        f"Losses of {training.STEPS} steps differ by {apart:.1e} at most, scores of the same "
        f"weights by {drift:.1e}. "
        f"While the text grew byte by byte, {samples[1].late_kernels} kernels were compiled.\n"
        "See how a model is cut: .venv/bin/python examples/inspect_model.py"
    )
    right = apart <= _LOSS_TOLERANCE and drift <= _SCORE_TOLERANCE
    return 0 if right and all(outcome.is_right for outcome in outcomes) else 1


@dataclass
class Sample:
    """What a runner wrote after training: its text, and the calls and seconds that it took."""

    model: gpt.Gpt
    call: Callable[..., Any]
    text: bytes
    seconds: float
    late_kernels: int


def sample(runner: Runner) -> Sample:
    """`COUNT` bytes; the first two, which compile, are neither timed nor counted."""
    model = runner.model.eval()
    is_eager = runner.name == "eager"
    call = model if is_eager else torch.compile(model, backend=runner.name, dynamic=True)
    begun = gpt.write(call, PROMPT, 2)
    kernels_before, start = compiled_kernel_count(), time.perf_counter()
    text = gpt.write(call, begun, COUNT)
    seconds = time.perf_counter() - start
    return Sample(model, call, text, seconds, compiled_kernel_count() - kernels_before)


@torch.no_grad()
def score_difference(written: Sample) -> float:
    """The greatest difference of compiled and eager scores, relative to the greatest score."""
    tokens = torch.tensor([list(written.text)])
    expected = written.model(tokens)
    return ((written.call(tokens) - expected).abs().max() / expected.abs().max()).item()


def printable(text: bytes) -> str:
    """The text with a dot for each byte that isn't a character."""
    return text.decode("utf-8", errors="replace").replace("\ufffd", "·")


def loss_table(eager: Runner, ours: Runner) -> Table:
    """The losses of some steps, side by side."""
    made = table("loss at step", *(str(step) for step in _shown_steps(len(eager.losses))))
    for runner in (eager, ours):
        losses = [runner.losses[step - 1] for step in _shown_steps(len(eager.losses))]
        made.add_row(runner.name, *(f"{loss:.4f}" for loss in losses))
    return made


def _shown_steps(count: int) -> list[int]:
    return [1, *range(count // 5, count + 1, count // 5)]


def summary_table(
    runners: list[Runner], samples: list[Sample], memory: list[int | None], kernel_count: int
) -> Table:
    """Times, compile times, kernels and memory, eager and compiled."""
    made = table("", *(runner.name for runner in runners), "eager / compiled")
    rows = [
        ("training step, ms", [each.step_seconds * 1e3 for each in runners]),
        ("writing, ms per byte", [each.seconds / COUNT * 1e3 for each in samples]),
        ("memory per step, MiB", [(each or 0) / 2**20 for each in memory]),
    ]
    for name, (eager, ours) in rows:
        if eager and ours:
            made.add_row(name, f"{eager:.1f}", f"{ours:.1f}", f"[bold]{eager / ours:.2f}x")
    made.add_row("compiling model and optimiser, s", "", f"{runners[1].first_seconds:.1f}", "")
    made.add_row("kernels of a training step", "", str(kernel_count), "")
    return made


def table(first: str, *headings: str) -> Table:
    """A table of numbers under a column of names."""
    made = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    made.add_column(first, no_wrap=True)
    for heading in headings:
        made.add_column(heading, justify="right", no_wrap=True)
    return made


if __name__ == "__main__":
    sys.exit(main())
