"""All samples of all operators of torch's database in all dtypes: many thousands, `make opdb`.

Also one sample of each operator with `dynamic=True`, where sizes and floats are symbols.

These tests aren't collected by default, because they take hours.  A case is an operator in one
dtype; each sample is compiled by itself, forward and backward, and its kernels must compile.
Passed cases are recorded (see report.py), so that a run resumes where it was stopped.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.torch_compile.opdb.cases import DTYPES, Case, Unfit, cases, check_sample

_SECONDS = 120  # for one sample


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in cases(DTYPES)])
def test_every_sample(
    case: Case,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
    time_limit: Callable[[float], None],
) -> None:
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    passed = graphs = regions = 0
    reasons: list[str] = []
    differences: list[str] = []
    for number, sample in enumerate(case.samples(case.has_backward)):
        time_limit(_SECONDS)
        try:
            found = check_sample(case, sample, case.has_backward)
            passed, graphs = passed + 1, graphs + found.graphs
            regions += found.regions
        except Unfit as reason:
            reasons.append(str(reason))
        except AssertionError as difference:
            differences.append(f"sample {number}: {difference}")
    assert not differences, f"{len(differences)} samples differ:\n" + "\n".join(differences[:5])
    if not passed:
        pytest.skip(reasons[0] if reasons else "torch has no sample")
    record_property("opdb", [passed, graphs, regions, len(reasons)])


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=f"{case.name}-dynamic") for case in cases((torch.float32,))]
)
def test_dynamic_sizes(
    case: Case,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
    time_limit: Callable[[float], None],
) -> None:
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    time_limit(_SECONDS)
    sample = case.first_sample(case.has_backward)
    if sample is None:
        pytest.skip("torch has no sample")
    try:
        found = check_sample(case, sample, case.has_backward, dynamic=True)
    except Unfit as reason:
        pytest.skip(str(reason))
    record_property("opdb", [1, found.graphs, found.regions, 0])
