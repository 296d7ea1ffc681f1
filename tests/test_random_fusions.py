"""Random fusions against the evaluator in float64: hypothesis finds and shrinks failures.

Each operation of the interface, and each common composition of them, has a batch of fusions that
contain it.  Deterministic, so that a failure in one run is a failure in all.  Memory is poisoned
and nothing may fall back to torch, except for complex numbers.
"""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch
from hypothesis import given

from pyfuser import DataType, FusionDefinition
from pyfuser.frontend.ops import FUNCTIONS
from pyfuser.ops.evaluator import evaluate
from tests.support.random_fusions import (
    COMPOSITES,
    NOT_DRAWN,
    STEPS,
    RandomFusion,
    check,
    examples,
    fusions,
    seed_of,
)
from tests.support.steps import pointwise

pytestmark = pytest.mark.usefixtures("poison")

# Fusions of a batch: 156 batches of 13 are 2,028.
BATCH = 13


@pytest.mark.parametrize("name", STEPS)
def test_random_fusions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in pointwise.COMPLEX:
        monkeypatch.setenv("PYFUSER_STRICT", "0")
    drawn: collections.Counter[str] = collections.Counter()

    @examples(BATCH, seed_of(name))
    @given(made=fusions(name))
    def run(made: RandomFusion) -> None:
        drawn.update(made.drawn)
        check(made)

    run()
    assert drawn[name], "no step could add the operation"


def test_a_run_has_at_least_2000_fusions() -> None:
    assert len(STEPS) * BATCH >= 2000


def test_every_operation_is_drawn_or_has_a_reason() -> None:
    drawn = set(STEPS) - set(COMPOSITES)
    assert drawn | set(NOT_DRAWN) == set(FUNCTIONS)
    assert not drawn & set(NOT_DRAWN)


@examples(60, 0)
@given(made=fusions())
def test_the_text_of_a_random_fusion_rebuilds_it(made: RandomFusion) -> None:
    names: dict[str, Any] = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(repr(made.fd), names)
    with FusionDefinition() as again:
        names["nvfuser_fusion"](again)
    # Not the same definition: sizes that the text computes twice are one scalar or two.
    wanted, found = (
        evaluate(fd.fusion.definition, made.inputs, updates=False) for fd in (made.fd, again)
    )
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
