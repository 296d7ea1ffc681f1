"""Random FusionDefinitions by seed: small ones, large ones, chains of reads, hand-made schedules.

A seed of definitions is a batch of examples of hypothesis, which shrinks what fails itself.  Memory
is poisoned and nothing may fall back.  `schedulers` counts which ones the kernels came from.
"""

from __future__ import annotations

import collections
import random
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import HealthCheck, Phase

from pyfuser.compiler import KernelPart
from pyfuser.errors import ScheduleError
from pyfuser.interface import ManualKernel
from pyfuser.ir.fusion import Fusion
from pyfuser.ops.evaluator import evaluate
from tests.cuda.random_schedules import DEFINITIONS, SHAPES, random_schedule
from tests.poison import poisoned_memory
from tests.programs.outcome import Outcome
from tests.random_fusions import RandomFusion, fusions
from tests.random_reads import check_chain

EXAMPLES_PER_SEED = 20
schedulers: collections.Counter[str] = collections.Counter()


def run_definitions(seed: int, large: bool = False) -> int:
    """A batch of random definitions; how many."""

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=EXAMPLES_PER_SEED,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
        print_blob=False,
    )
    @hypothesis.given(made=fusions(large=large))
    def validate(made: RandomFusion) -> None:
        try:
            made.fd.validate(made.inputs)
        except Exception as error:
            layouts = [(tuple(x.shape), x.stride(), x.storage_offset()) for x in made.inputs]
            error.add_note(f"{made.fd!r}\ninputs: {layouts}")
            raise

    validate()
    return EXAMPLES_PER_SEED


def run_large_definitions(seed: int) -> int:
    """A batch with long axes; how many."""
    return run_definitions(seed, large=True)


def run_reads(seed: int) -> int:
    """A chain of windows and gathers."""
    check_chain(seed)
    return 1


def run_random_schedule(seed: int) -> int:
    """Runs the schedule of a seed; 0 where it is illegal, as a ScheduleError says."""
    source = random.Random(seed)
    torch.manual_seed(seed)
    fusion = Fusion()
    inputs = source.choice(DEFINITIONS)(fusion)(*source.choice(SHAPES))
    original, _ = fusion.clone()
    scheduled = random_schedule(fusion, source)
    if scheduled is None:
        return 0
    try:
        outputs = ManualKernel(scheduled, inputs).run(inputs)
    except ScheduleError as error:
        assert ": expected " in str(error)
        return 0
    for got, want in zip(outputs, evaluate(original, inputs), strict=True):
        tolerance = {"rtol": 1e-4, "atol": 1e-5} if got.dtype is torch.float32 else {}
        torch.testing.assert_close(got, want, equal_nan=True, check_stride=False, **tolerance)
    schedulers["by hand"] += 1
    return 1


KINDS: tuple[Callable[[int], int], ...] = (
    run_definitions, run_large_definitions, run_reads, run_reads, run_reads, run_reads,
    run_random_schedule, run_random_schedule, run_random_schedule, run_random_schedule,
)  # fmt: skip


@contextmanager
def counted_schedulers() -> Iterator[None]:
    """Counts in `schedulers` whose kernels are asked for."""
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
