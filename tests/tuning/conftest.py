"""Results of tuning in a folder of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pyfuser.target import varied


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own, and nothing falls back; few candidates, to save time."""
    monkeypatch.setattr(varied, "MOST_CANDIDATES", 4)
    monkeypatch.setenv("PYFUSER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    torch._dynamo.reset()
    yield tmp_path / "cache" / "tuning"
    torch._dynamo.reset()
