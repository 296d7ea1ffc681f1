"""Random fusions against the evaluator in float64: hypothesis finds and shrinks failures.

Deterministic, so that a failure in one run is a failure in all.  Memory is poisoned and nothing may
fall back to torch.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from pyfuser import DataType, FusionDefinition
from pyfuser.ir.keys import definition_key
from tests.support.random_fusions import RandomFusion, fusions

pytestmark = pytest.mark.usefixtures("poison")


def examples(count: int) -> settings:
    """The same examples in every run, and as much time for each as it takes."""
    return settings(
        max_examples=count,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@examples(400)
@given(made=fusions())
def test_random_fusions(made: RandomFusion) -> None:
    made.fd.validate(made.inputs)


@examples(60)
@given(made=fusions())
def test_the_text_of_a_random_fusion_rebuilds_it(made: RandomFusion) -> None:
    names: dict[str, Any] = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(repr(made.fd), names)
    with FusionDefinition() as again:
        names["nvfuser_fusion"](again)
    assert definition_key(again.fusion.definition) == definition_key(made.fd.fusion.definition)
