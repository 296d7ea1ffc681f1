"""Random FusionDefinitions by seed: small ones, large ones, chains of reads, hand-made schedules.

A seed of definitions is a batch of examples of hypothesis, which itself shrinks failures.  Memory
is poisoned and nothing may fall back.  `schedulers` counts the schedulers of the kernels.
"""

from __future__ import annotations

import collections
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import hypothesis
import pytest
import torch

from pyfuser.errors import ScheduleError
from pyfuser.interface import ManualKernel
from pyfuser.ops.evaluator import evaluate
from pyfuser.parts import KernelPart
from tests.cuda.random_schedules import Example, example
from tests.programs.outcome import Outcome
from tests.support.poison import poisoned_memory
from tests.support.random_fusions import RandomFusion, check, examples, fusions
from tests.support.random_reads import check_chain

EXAMPLES_PER_SEED = 20
schedulers: collections.Counter[str] = collections.Counter()


def run_definitions(seed: int, large: bool = False) -> int:
    """A batch of random definitions; how many."""

    @examples(EXAMPLES_PER_SEED, seed)
    @hypothesis.given(made=fusions(large=large))
    def run(made: RandomFusion) -> None:
        check(made)

    run()
    return EXAMPLES_PER_SEED


def run_large_definitions(seed: int) -> int:
    """A batch with long axes; how many."""
    return run_definitions(seed, large=True)


def run_reads(seed: int) -> int:
    """A chain of windows and gathers."""
    check_chain(seed)
    return 1


def run_random_schedule(seed: int) -> int:
    """Runs the schedule of a seed; 0 if it is refused because of one of its doubts."""
    torch.manual_seed(seed)
    made = example(seed)
    try:
        run_schedule(made)
    except ScheduleError as error:
        if not made.explains(error):
            error.add_note(str(made))
            raise
        return 0
    return 1


def run_schedule(made: Example) -> None:
    """Runs one, compared with the evaluator."""
    scheduled, original, inputs = made.scheduled()
    outputs = ManualKernel(scheduled, inputs).run(inputs)
    for got, want in zip(outputs, evaluate(original, inputs), strict=True):
        tolerance = {"rtol": 1e-4, "atol": 1e-5} if got.dtype is torch.float32 else {}
        torch.testing.assert_close(got, want, equal_nan=True, check_stride=False, **tolerance)
    schedulers["by hand"] += 1


KINDS: tuple[Callable[[int], int], ...] = (
    run_definitions, run_large_definitions, run_reads, run_reads, run_reads, run_reads,
    run_random_schedule, run_random_schedule, run_random_schedule, run_random_schedule,
)  # fmt: skip


@contextmanager
def counted_schedulers() -> Iterator[None]:
    """Counts in `schedulers` the schedulers of requested kernels."""
    original = KernelPart.build

    def build(self: KernelPart, *arguments: Any, **keywords: Any) -> Any:
        schedulers[self.segment.scheduler] += 1
        return original(self, *arguments, **keywords)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KernelPart, "build", build)
        yield


def check_fusions(seed: int) -> Outcome:
    """Runs the fusions of a seed, of the kind that its last digit says."""
    run = KINDS[seed % len(KINDS)]
    schedulers.clear()
    outcome = Outcome("ok")
    with pytest.MonkeyPatch.context() as patch, poisoned_memory(), counted_schedulers():
        patch.setenv("PYFUSER_STRICT", "1")
        try:
            outcome.count = run(seed)
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            message = f"{run.__name__}: {type(error).__name__}: {lines[0]}"[:300]
            notes = "\n".join(getattr(error, "__notes__", ()))
            outcome = Outcome("wrong", message, f"{traceback.format_exc()}\n{notes}")
    outcome.schedulers = dict(schedulers)
    return outcome
