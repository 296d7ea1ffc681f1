"""The version, as a string that compares by number: clients of the interface ask for at least
0.2.34.
"""

from __future__ import annotations

import re
from functools import total_ordering
from typing import Any

_PATTERN = re.compile(r"v?(\d+(?:\.\d+)*)(?:[-_.]?(a|b|rc|dev)[-_.]?(\d*))?(.*)")
_STAGES = {"dev": 0, "a": 1, "b": 2, "rc": 3}
_RELEASED = (4, 0)


@total_ordering
class Version:
    """A version number: `1.2.0rc1+local` orders before `1.2.0`; the local part doesn't count."""

    def __init__(self, text: str) -> None:
        found = _PATTERN.fullmatch(str(text).strip())
        if found is None:
            raise ValueError(f"Version: expected a version such as 1.2.3, got {text!r}")
        numbers, stage, count, _ = found.groups()
        release = [int(number) for number in numbers.split(".")]
        while release and release[-1] == 0:
            release.pop()
        self.text = str(text)
        self.key = tuple(release), (_STAGES[stage], int(count or 0)) if stage else _RELEASED

    def __eq__(self, other: object) -> bool:
        return self.key == _version(other).key if isinstance(other, (str, Version)) else False

    def __lt__(self, other: Any) -> bool:
        return self.key < _version(other).key

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        return self.text


def _version(value: Any) -> Version:
    """A version object, a string, or any object whose text is a version."""
    return value if isinstance(value, Version) else Version(str(value))


class NvfuserVersion(str):
    """A version string; comparisons are those of `Version`."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return (
            _version(str(self)) == _version(other) if isinstance(other, (str, Version)) else False
        )

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: Any) -> bool:
        return _version(str(self)) < _version(other)

    def __le__(self, other: Any) -> bool:
        return _version(str(self)) <= _version(other)

    def __gt__(self, other: Any) -> bool:
        return _version(str(self)) > _version(other)

    def __ge__(self, other: Any) -> bool:
        return _version(str(self)) >= _version(other)

    def __hash__(self) -> int:
        return hash(_version(str(self)))

    def __str__(self) -> str:
        return str.__str__(self)


__version__ = NvfuserVersion("0.3.0")
