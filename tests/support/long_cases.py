"""Parameters of which a short run has only the first ones: the rest are marked `long`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def long(*values: Any) -> Any:
    """One case, left out without --long."""
    return pytest.param(*values, marks=pytest.mark.long)


def first(count: int, cases: Sequence[Any]) -> list[Any]:
    """The cases, a tuple for each if there are several parameters; so many of them are short."""
    rest = [case if isinstance(case, tuple) else (case,) for case in cases[count:]]
    return [*cases[:count], *(long(*case) for case in rest)]
