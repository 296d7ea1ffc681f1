"""Code that runs on every call runs no avoidable Python function.

This isn't only for their own cost: if the frames of a call end near the end of a chunk of CPython's
frame stack, each further frame maps a chunk and unmaps it again, which takes longer than a kernel.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest
import torch
from torch import nn

from pyfuser.devices.cpu.memory_pool import THRESHOLD_BYTES, pool


def python_calls(function: Callable[[], object]) -> list[tuple[str, str]]:
    """(caller's file, callee) of each Python function that runs below `function` itself."""
    found: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        caller = frame.f_back
        if event == "call" and caller is not None:
            found.append((caller.f_code.co_filename, frame.f_code.co_name))

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return found[1:]


@pytest.mark.parametrize("size", [10, THRESHOLD_BYTES])
def test_memory_comes_without_a_python_frame(size: int) -> None:
    empty_strided = pool().empty_strided
    empty_strided((size,), (1,), torch.float32)  # from now on there is a warm run
    assert python_calls(lambda: empty_strided((size,), (1,), torch.float32)) == []


def test_a_graph_calls_no_python_function() -> None:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(48, 64), nn.BatchNorm1d(64), nn.GELU(), nn.Linear(64, 48))
    step = torch.compile(lambda x: (block(x).softmax(-1) * x).sum(), backend="pyfuser")
    x = torch.randn(32, 48)
    for _ in range(2):
        step(x).backward()
    # Backward graphs run in torch's own threads, without this thread's profile.
    calls = python_calls(lambda: step(x))
    graphs = [(caller, callee) for caller, callee in calls if caller == "<pyfuser graph>"]
    assert ("<pyfuser graph>", "call") not in graphs
    assert any(callee == "call" for _, callee in calls), "no graph ran"
    assert graphs == []
