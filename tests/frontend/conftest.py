"""The front end alone: the eager evaluator replaces the engine in all tests of this folder."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator

import pytest

from tests.frontend.definitions import Engine


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Engine]]:
    module = types.ModuleType("pyfuser.interface")
    module.CompiledFusion = Engine  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyfuser.interface", module)
    Engine.made = Engine.calls = 0
    yield Engine
