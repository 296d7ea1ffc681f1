"""Fixtures of the tests that launch kernels through a driver that isn't a GPU's."""

from __future__ import annotations

import pytest


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing falls back, and nothing is found on disk."""
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    monkeypatch.setenv("PYFUSER_DISABLE_CACHE", "1")
