"""Kernels for another processor than the one that runs the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyfuser.devices.cpu.runtime import CpuRuntime
from pyfuser.devices.cpu.target import CpuTarget
from pyfuser.devices.switches import register_runtime
from tests.support.targets import Pretend


@pytest.fixture
def pretend() -> Iterator[Pretend]:
    """Runs CPU tensors by kernels for another processor, until the test is over."""
    yield lambda other: register_runtime("cpu", lambda _: CpuRuntime(CpuTarget(other)))
    register_runtime("cpu", None)
