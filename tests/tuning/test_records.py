"""Parameters as records of JSON: the round trip, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from pyfuser.target.parameter_records import from_record, to_record
from pyfuser.target.parameters import (
    InnerOuterParameters,
    PointwiseParameters,
    ReductionParameters,
    ScanParameters,
    ScatterParameters,
)
from pyfuser.target.thread_parameters import ThreadedPointwise, ThreadedReduction

_ROWS = ReductionParameters(True, 16, 2, 0, 4, cascade=((0, 32), (0, 0)))


@pytest.mark.parametrize(
    "parameters",
    [
        PointwiseParameters(16, 4, 0, rows=True),
        _ROWS,
        replace(_ROWS, whole=_ROWS),
        PointwiseParameters(8, 1, 512, across=True),
        InnerOuterParameters(_ROWS, ((0, 64),)),
        ScanParameters(False, 8, 1, 64, 4096),
        ScatterParameters(8, 4, 64),
        ThreadedPointwise(32, 4, 32, 32, lines=4, padding=1),
        ThreadedReduction(True, 128, 2, 0, 1, lines=2, vector=4, is_whole=True),
        InnerOuterParameters(ThreadedReduction(True, 128, 2, 0, 1), ()),
    ],
    ids=lambda each: type(each).__name__,
)
def test_round_trip(parameters: Any) -> None:
    again = from_record(json.loads(json.dumps(to_record(parameters))))
    assert again == parameters
    assert hash(again) == hash(parameters)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "Popen"},
        {"lanes": "16"},
        {"lanes": True},
        {"inner": 1},
        {"cascade": [[1]]},
        {"cascade": [[1, "2"]]},
        {"cascade": 4},
        {"whole": 4},
        {"more": 1},
        {"kind": ["ReductionParameters"]},
    ],
    ids=str,
)
def test_anything_else_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        from_record({**to_record(_ROWS), **change})
    with pytest.raises(ValueError, match="parameters: expected one of"):
        from_record(None)
