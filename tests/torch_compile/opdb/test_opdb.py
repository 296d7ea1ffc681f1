"""Every operator of torch's database, compiled with backend="pyfuser", against eager.

One sample an operator: float32 forward and backward, and with --long bfloat16 and int64 forward.
Which are skipped and which have no fused region is known (see outcomes.py).  `make opdb` runs the
rest (see all_samples.py).  A kernel that can't be compiled is an error here, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.torch_compile.opdb import cases as running
from tests.torch_compile.opdb import outcomes
from tests.torch_compile.opdb.cases import Case, Unfit, cases, check_sample

_QUICK = (torch.float32, torch.bfloat16, torch.int64)
# Of 1,696 cases: those that torch doesn't run on a CPU, and those with a fused region.
MOST_SKIPPED = 15
FEWEST_FUSED = 836


def _parameter(case: Case) -> Any:
    marks = () if case.dtype is torch.float32 else pytest.mark.long
    return pytest.param(case, id=case.name, marks=marks)


@pytest.mark.parametrize("case", map(_parameter, cases(_QUICK)))
def test_first_sample(
    case: Case,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
    time_limit: Callable[[float], None],
) -> None:
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    time_limit(60)
    backward = case.has_backward and case.dtype is torch.float32
    sample = case.first_sample(backward)
    assert sample is not None, "torch has no sample"
    try:
        made = check_sample(case, sample, backward)
        found, reason = outcomes.outcome(made.graphs, made.regions), ""
        record_property("opdb", [1, made.graphs, made.regions, 0])
    except Unfit as unfit:
        found, reason = outcomes.SKIPPED, str(unfit)
    if request.config.getoption("--update-golden"):
        outcomes.write(outcomes.listed() | {case.name: found})
    expected = outcomes.listed().get(case.name, outcomes.FUSED)
    assert found == expected, f"expected it to be {expected}, got {found}; {reason}"
    if reason:
        pytest.skip(reason)


def test_how_many_are_skipped_and_how_many_fused() -> None:
    names = {case.name for case in cases(_QUICK)}
    listed = outcomes.listed()
    assert listed.keys() <= names
    skipped = [name for name, found in listed.items() if found == outcomes.SKIPPED]
    assert len(skipped) <= MOST_SKIPPED
    assert len(names) - len(listed) >= FEWEST_FUSED


def test_a_result_that_is_off_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = running._compile

    def off(operation: Callable[..., Any], backend: str, *rest: Any) -> Callable[..., Any]:
        if backend != "pyfuser":
            return compiled(operation, backend, *rest)
        return lambda *args, **kwargs: operation(*args, **kwargs) + 1e-3

    monkeypatch.setattr(running, "_compile", off)
    case = next(case for case in cases((torch.float32,)) if case.op.name == "sin")
    sample = case.first_sample(backward=True)
    assert sample is not None
    with pytest.raises(AssertionError, match="output 0: error 1.00e-03"):
        check_sample(case, sample, backward=True)
