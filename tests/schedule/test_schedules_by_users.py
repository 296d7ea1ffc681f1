"""Random definitions with random schedules of everything a user can write, and their shrinking.

`make fuzz FUZZ_ARGS="--schedules"` runs thousands more.
"""

from __future__ import annotations

import pytest
import torch

from tests.programs.draw_schedules import drawn
from tests.programs.outcome import Outcome
from tests.programs.scheduled_case import ScheduledCase
from tests.programs.schedules import check_schedule, judge
from tests.programs.shrink_schedules import smaller_case

# Two thirds of them run; the others are refused.
SEEDS = 150


def test_schedules_are_refused_or_compute_what_the_evaluator_does() -> None:
    kinds = []
    for seed in range(SEEDS):
        case, outcome = check_schedule(seed)
        if outcome.failed:
            text = f"seed {seed}: {outcome.signature}\n{outcome.detail}\n{case.script()}"
            pytest.fail(text, pytrace=False)
        kinds.append(outcome.kind)
    assert kinds.count("ok") > SEEDS / 2


def test_the_same_seed_makes_the_same_schedule() -> None:
    for seed in range(8):
        made = drawn((), seed)
        assert drawn(made.numbers).case.lines == made.case.lines


def test_the_schedules_have_everything_in_them() -> None:
    text = "\n".join(line for seed in range(250) for line in drawn((), seed).case.lines)
    for wanted in (
        "split", "merge", "reorder", "swizzle", "reverse", "rfactor", "cache_before", "cache_after",
        "cached_uses", "transform_like", "bounded_transform_backward", "parallelize_like",
        "inline_most", "inline_at", "compute_at", "set_memory_type", "set_allocation_domain",
        "grid_x", "block_x", "vectorize", "unroll", "unswitch", "shared", "global_",
        "welford", "cumsum", "gather", "index_select", "pad", "cat", "slice", "reshape",
        "BFloat16", "Half",
    ):  # fmt: skip
        assert wanted in text


def test_a_failure_shrinks_to_what_it_needs() -> None:
    lines = (
        "tv0 = fd.define_tensor(shape=[-1, -1], contiguity=True)",
        "tv1 = fd.ops.exp(tv0)",
        "tv2 = fd.ops.sum(tv1, dims=[1])",
        "tv3 = fd.ops.neg(tv0)",
        "fd.add_output(tv2)",
        "fd.add_output(tv3)",
        "tv3.split(0, 4)",
        "tv2.split(1, 8)",
        "made0 = tv2.rfactor([1])",
        "fd.sched.inline_most()",
    )

    def fails(case: ScheduledCase) -> Outcome:
        text = "\n".join(case.lines)
        bad = judge(case).kind == "ok" and "rfactor" in text
        return Outcome("wrong", "rfactor") if bad else Outcome("ok")

    case = ScheduledCase(lines, (torch.randn(3, 20),))
    small = smaller_case(case, fails(case), fails, 60)
    text = "\n".join(small.lines)
    assert len(small.lines) <= 5 and "rfactor" in small.lines[-1]
    assert not any(other in text for other in ("exp", "neg", "inline_most", "tv3"))
    assert "fd.manual_validate" in small.script()
