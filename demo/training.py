"""Trains two copies of a model on the same batches, eager and compiled, alternating step by step.

The results are the losses and the seconds of every step.  Alternating keeps the times comparable on
a machine that is sometimes busy with something else.  `peak` is the memory of a step, measured in
its own process: `python -m demo.training eager` prints it.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from torch import Tensor

from benchmarks import peak_memory

from .gpt import Gpt, batch, text

BACKEND = "pyfuser"
STEPS, BATCH, LENGTH = 100, 8, 96
ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Runner:
    """One copy of the model with its optimiser, and the results of its steps."""

    name: str
    model: Gpt
    call: Callable[..., Any]
    optimiser_step: Callable[[], Any]
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @staticmethod
    def of(model: Gpt, backend: str) -> Runner:
        """A runner of this very model; `backend` is eager or one of torch.compile's."""
        optimiser = torch.optim.AdamW(model.parameters(), lr=5e-4, foreach=True)
        if backend == "eager":
            return Runner(backend, model, model, optimiser.step)
        step = torch.compile(optimiser.step, backend=backend)
        return Runner(backend, model, torch.compile(model, backend=backend), step)

    def step(self, tokens: Tensor, targets: Tensor) -> None:
        """Forward, backward and the optimiser's step."""
        start = time.perf_counter()
        self.model.zero_grad(set_to_none=True)
        loss = self.call(tokens, targets)
        loss.backward()
        self.optimiser_step()
        self.seconds.append(time.perf_counter() - start)
        self.losses.append(loss.item())

    @property
    def step_seconds(self) -> float:
        """The median step, without the first ones."""
        steady = sorted(self.seconds[3:] or self.seconds)
        return steady[len(steady) // 2]

    @property
    def first_seconds(self) -> float:
        """The time of the first three steps beyond that of three later ones: compiling."""
        return max(0.0, sum(self.seconds[:3]) - 3 * self.step_seconds)


def trained(console: Console, steps: int = STEPS, backend: str = BACKEND) -> list[Runner]:
    """Both runners after `steps` steps, with a progress bar each."""
    torch.manual_seed(0)
    model, data = Gpt(), text(ROOT)
    runners = [Runner.of(copy.deepcopy(model), "eager"), Runner.of(model, backend)]
    columns = (
        TextColumn("{task.description:8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
    )
    with Progress(*columns, console=console) as progress:
        tasks = [progress.add_task(each.name, total=steps, state="") for each in runners]
        for number in range(steps):
            tokens, targets = batch(data, number, BATCH, LENGTH)
            for runner, task in zip(runners, tasks, strict=True):
                runner.step(tokens, targets)
                _advance(progress, task, runner)
    return runners


def _advance(progress: Progress, task: TaskID, runner: Runner) -> None:
    state = f"loss {runner.losses[-1]:.3f}, {runner.seconds[-1] * 1e3:.0f} ms per step"
    progress.update(task, advance=1, state=state)


def peak(backend: str) -> int | None:
    """Peak bytes of a training step beyond what stays allocated, or None if unknown."""
    if not peak_memory.can_measure():
        return None
    done = subprocess.run(
        [sys.executable, "-m", "demo.training", backend],
        env={**os.environ, **peak_memory.ENVIRONMENT},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout.split()[-1])


def _own_peak(backend: str) -> int:
    from pyfuser import memory

    torch.manual_seed(0)
    runner = Runner.of(Gpt(), backend)
    tokens, targets = batch(text(ROOT), 0, BATCH, LENGTH)
    for _ in range(3):
        runner.step(tokens, targets)
    return min(
        peak_memory.peak_bytes(lambda: runner.step(tokens, targets), memory.empty_cache)
        for _ in range(3)
    )


if __name__ == "__main__":
    print(_own_peak(sys.argv[1]))
