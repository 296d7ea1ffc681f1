"""Nothing may fall back in the tests of legacy defects, and each begins with nothing compiled."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

import pytest
import torch

from pyfuser import fallback
from pyfuser.interface import (
    override_can_fuse_on_cpu,
)


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    monkeypatch.setattr(fallback, "_warned", OrderedDict())
    torch._dynamo.reset()
    yield
    override_can_fuse_on_cpu(None)
