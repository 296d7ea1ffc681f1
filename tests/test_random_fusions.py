"""Random fusions against the evaluator in float64: hypothesis finds and shrinks what is wrong.

Deterministic, so that a failure of one run is a failure of all.  Memory is poisoned and nothing may
fall back to torch.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from pyfuser.dtypes import DataType
from pyfuser.errors import DefinitionError, UnsupportedError
from tests.random_fusions import RandomFusion, fusions

pytestmark = pytest.mark.usefixtures("poison")


@settings(
    max_examples=150,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(made=fusions())
def test_random_fusions(made: RandomFusion) -> None:
    made.fd.validate(made.inputs)
