"""Fixtures of the tests of kernels that refuse values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pyfuser import fallback
from pyfuser.ir.fusion import Fusion


@pytest.fixture
def noticed(monkeypatch: pytest.MonkeyPatch) -> list[Fusion]:
    """The fusions of kernels that refuse a call, from now on; nothing falls back to torch."""
    found: list[Fusion] = []
    original = fallback.refused

    def spy(fusion: Fusion, inputs: Sequence[Any]) -> None:
        found.append(fusion)
        original(fusion, inputs)

    monkeypatch.setattr(fallback, "refused", spy)
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    return found
