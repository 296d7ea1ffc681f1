"""Poisoned memory: outputs and scratch hold NaN (or all ones) before a kernel writes them.

A kernel that leaves an element unwritten, or reads one before writing it, then gives a wrong result
instead of a correct one by luck.  The memory is fenced, too (`fences`): one that reads or writes
beyond it ends the process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pyfuser.plans import program_writer
from tests.support.fences import fenced_strided


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """While it lasts, the CPU hands out poisoned memory only."""
    # Not above: machines with a GPU need not have llvmlite.
    from pyfuser.devices.cpu.runtime import CpuRuntime

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuRuntime, "empty_strided", staticmethod(fenced_strided))
        patch.setattr(program_writer, "MOST_BYTES", -1)  # each tensor has fences of its own
        yield


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Poisoned memory, and nothing falls back."""
    monkeypatch.setenv("PYFUSER_STRICT", "1")
    with poisoned_memory():
        yield
