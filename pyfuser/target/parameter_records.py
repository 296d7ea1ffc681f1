"""Parameters as records: values of JSON, and back.

    PointwiseParameters(lanes=16, ...)  <->  {"kind": "PointwiseParameters", "lanes": 16, ...}

`from_record` accepts only what `to_record` can have made, so a file that somebody edited or that an
older version wrote can't make parameters of a wrong shape.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from ..errors import expected
from .cascade import Levels
from .parameters import (
    InnerOuterParameters,
    PointwiseParameters,
    ReductionParameters,
    ScanParameters,
    ScatterParameters,
)
from .thread_parameters import ThreadedPointwise, ThreadedReduction

Record = dict[str, Any]

_KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *(PointwiseParameters, ReductionParameters, InnerOuterParameters),
        *(ScanParameters, ScatterParameters, ThreadedPointwise, ThreadedReduction),
    )
}


def to_record(parameters: object) -> Record:
    """The kind and the fields."""
    record: Record = {"kind": type(parameters).__name__}
    for each in fields(parameters):  # type: ignore[arg-type]
        value = getattr(parameters, each.name)
        is_nested = type(value).__name__ in _KINDS
        record[each.name] = to_record(value) if is_nested else value
    return record


def from_record(record: object) -> Any:
    """The parameters.  ValueError for anything else than a record of some."""
    kind = _KINDS.get(record.get("kind", "")) if isinstance(record, dict) else None
    if kind is None:
        raise ValueError(expected("parameters", f"one of {', '.join(_KINDS)}", repr(record)))
    assert isinstance(record, dict)
    wanted = {each.name: each.type for each in fields(kind)}
    if record.keys() != {"kind", *wanted}:
        raise ValueError(expected(kind.__name__, ", ".join(wanted), ", ".join(record)))
    return kind(**{name: _value(name, text, record[name]) for name, text in wanted.items()})


def _value(name: str, wanted: object, value: object) -> Any:
    """A field's value, whose type is written as `wanted`."""
    if wanted == "ReductionParameters | None" and value is None:
        return None
    if wanted in ("ReductionParameters", "ReductionParameters | None"):
        return from_record(value)
    if wanted == "Levels":
        return _levels(name, value)
    if type(value).__name__ != wanted:
        raise ValueError(expected(name, wanted.__str__(), repr(value)))
    return value


def _levels(name: str, value: object) -> Levels:
    if not isinstance(value, (list, tuple)):
        raise ValueError(expected(name, "pairs of numbers", repr(value)))
    found = tuple(tuple(pair) if isinstance(pair, (list, tuple)) else () for pair in value)
    if any(len(pair) != 2 or any(type(each) is not int for each in pair) for pair in found):
        raise ValueError(expected(name, "pairs of numbers", repr(value)))
    return found
