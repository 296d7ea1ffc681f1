"""The interface of the engine: compiled fusions, fusion nodes, and what can be asked about them.

`CompiledFusion` is what the front ends hold.  `register_fusion` stores a definition under a key
made of its structure alone, so that equal fusions share programs and kernels; `run_fusion` runs it
on a stack of values.  What can be fused where can be overridden, for tests.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

from .compiler import compiled_kernel_count
from .devices.registry import device
from .executor import Executor
from .ir.fusion import Fusion
from .ir.schedule import ScheduledFusion
from .ops.binding import bind

_registered: dict[str, int] = {}
_fusions: dict[int, CompiledFusion] = {}
_overrides: dict[str, bool] = {}
_lock = threading.Lock()


class CompiledFusion:
    """A fusion that can be run; compiles when and as far as its inputs ask for it."""

    def __init__(self, fusion: Fusion) -> None:
        self.executor = Executor(fusion)
        self.execute = self.executor.execute
        """execute(inputs) -> outputs; a bound method, so that a call has one frame less."""

    @property
    def fusion(self) -> Fusion:
        """The definition."""
        return self.executor.fusion


class ManualKernel:
    """A fusion that runs as one kernel, the way its user scheduled it."""

    def __init__(self, scheduled: ScheduledFusion, inputs: Sequence[Any]) -> None:
        bind(scheduled.fusion, inputs)
        self.executor = Executor.of_schedule(scheduled)
        self.executor.make_plan(inputs)

    def run(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """The outputs."""
        return self.executor.execute(inputs)


def structure_key(fusion: Fusion) -> str:
    """Text that two fusions share exactly when they compute the same thing."""
    return str(fusion)


def register_fusion(fusion: Fusion) -> int:
    """A key for a fusion; the same structure gives the same key, from any thread."""
    text = structure_key(fusion)
    with _lock:
        key = _registered.get(text)
        if key is None:
            key = _registered[text] = len(_registered)
            _fusions[key] = CompiledFusion(fusion)
        return key


def run_fusion(key: int, stack: list[Any]) -> None:
    """Takes the inputs from the end of the stack and leaves the outputs there."""
    compiled = _fusions[key]
    count = len(compiled.fusion.inputs)
    inputs = stack[len(stack) - count :]
    outputs = compiled.execute(inputs)
    stack[len(stack) - count :] = outputs


def can_fuse_on(device_type: str) -> bool:
    """True when there is a device for tensors of this type and nobody has switched it off."""
    override = _overrides.get(device_type)
    if override is not None:
        return override
    try:
        device(device_type)
    except NotImplementedError:
        return False
    return True


def override_can_fuse_on(device_type: str, value: bool | None) -> None:
    """Switches fusing on a device on or off; None gives the decision back."""
    with _lock:
        if value is None:
            _overrides.pop(device_type, None)
        else:
            _overrides[device_type] = value


__all__ = [
    "CompiledFusion",
    "ManualKernel",
    "cached_spec_count",
    "can_fuse_on",
    "compiled_kernel_count",
    "override_can_fuse_on",
    "register_fusion",
    "run_fusion",
]


def cached_spec_count() -> int:
    """The number of registered fusions."""
    return len(_registered)
