"""Every operator of torch's database, compiled with backend="pyfuser", against eager.

One sample an operator: float32 forward and backward, bfloat16 and int64 forward.  `make opdb` runs
the rest (see all_samples.py).  A kernel that can't be compiled is an error here, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.torch_compile.opdb import cases as running
from tests.torch_compile.opdb.cases import Case, Unfit, cases, check_sample

_QUICK = (torch.float32, torch.bfloat16, torch.int64)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in cases(_QUICK)])
def test_first_sample(
    case: Case,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
    time_limit: Callable[[float], None],
) -> None:
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    time_limit(60)
    backward = case.has_backward and case.dtype is torch.float32
    sample = case.first_sample(backward)
    if sample is None:
        pytest.skip("torch has no sample")
    try:
        found = check_sample(case, sample, backward)
    except Unfit as reason:
        pytest.skip(str(reason))
    record_property("opdb", [1, found.graphs, found.regions, 0])


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
