"""Random schedules, run on the CPU like users' schedules, against the evaluator.

Nearly all are legal; refused ones had a doubt (see tests/cuda/random_schedules.py).
"""

from __future__ import annotations

import pytest
import torch

from tests.cuda.random_schedules import (
    Example,
    Steps,
    bias_and_two_outputs,
    layer_norm,
    row_sums,
    total,
    transposed_add,
)
from tests.programs.fusions import run_random_schedule, run_schedule

pytestmark = pytest.mark.usefixtures("poison")


# Once wrong: stores past the end, empty extents, initialisations cut off, indices along lanes.
FORMER_BUGS = (
    Example(
        transposed_add,
        (5, 37),
        Steps(
            reference=3,
            transformations=[("split", 1, 8, True), ("merge", 0), ("split", 1, 3, False)],
            parallel={0: "block_x", 2: "grid_y"},
        ),
    ),
    Example(
        bias_and_two_outputs,
        (7, 3),
        Steps(
            reference=6,
            transformations=[
                ("split", 1, 32, True),
                ("split", 2, 2, True),
                ("split", 1, 1, True),
                ("split", 0, 3, True),
            ],
            parallel={0: "grid_x", 2: "block_x"},
        ),
    ),
    Example(
        row_sums,
        (0, 4),
        Steps(
            caches={1: "shared"},
            reference=3,
            transformations=[("split", 0, 2, True), ("split", 1, 2, True), ("split", 3, 2, True)],
            rfactored=(4,),
            parallel={2: "grid_x", 3: "block_x", 1: "block_y", 0: "grid_y"},
        ),
    ),
    Example(
        total,
        (0, 4),
        Steps(
            reference=1,
            transformations=[("split", 1, 8, False), ("split", 0, 3, False)],
            parallel={1: "block_x", 3: "grid_x", 2: "grid_y"},
        ),
    ),
    Example(
        total,
        (3, 70),
        Steps(
            reference=1,
            transformations=[("split", 1, 2, True), ("split", 0, 4, True), ("split", 2, 4, True)],
            rfactored=(2, 4),
            parallel={1: "grid_x", 0: "block_x", 4: "block_y", 2: "grid_y"},
            inlined=0,
        ),
    ),
    Example(
        layer_norm,
        (1, 1),
        Steps(
            reference=1,
            transformations=[
                ("split", 1, 4, True),
                ("split", 0, 4, True),
                ("split", 1, 16, False),
                ("reorder", 0, 4),
            ],
            rfactored=(3,),
            parallel={3: "grid_y", 0: "block_x"},
        ),
    ),
    Example(
        bias_and_two_outputs,
        (0, 4),
        Steps(
            caches={0: "shared", 1: "local", 2: "global_"},
            reference=8,
            transformations=[("split", 1, 32, True), ("merge", 0), ("split", 0, 2, False)],
            parallel={0: "block_x", 2: "grid_y"},
            inlined=1,
        ),
    ),
    Example(
        total,
        (16, 32),
        Steps(
            caches={0: "shared"},
            reference=1,
            transformations=[
                ("split", 1, 32, True),
                ("reorder", 2, 0),
                ("split", 1, 8, False),
                ("split", 1, 3, False),
            ],
            rfactored=(4, 2),
            parallel={0: "block_x"},
            inlined=1,
        ),
    ),
)


@pytest.mark.parametrize("made", FORMER_BUGS, ids=lambda made: made.define.__name__)
def test_schedules_that_once_were_wrong(made: Example) -> None:
    torch.manual_seed(0)
    run_schedule(made)


def test_random_schedules_compute_what_torch_does() -> None:
    legal = sum(run_random_schedule(seed) for seed in range(200))
    assert legal >= 190
