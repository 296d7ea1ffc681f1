"""A device that isn't there: `meta`, given the CPU's code generator and kernels that write down.

For what is decided by devices alone.  Its tensors have no memory, so a launch only notes what it
was given; `launches` has the arguments of each.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import pytest
import torch

from pyfuser.devices import registry
from pyfuser.devices.cpu.device import CpuDevice
from pyfuser.devices.registry import Binding


class NotedKernel:
    """A kernel of the CPU whose launches are noted."""

    def __init__(self, built: Any, launches: list[tuple[Any, ...]]) -> None:
        self.built, self.kernel, self.launches = built, built.kernel, launches

    def bind(self, sizes: Mapping[str, int]) -> Binding:
        """The CPU's binding, for a function that notes its arguments."""
        bound = self.built.bind(sizes)
        note = lambda *arguments: self.launches.append(arguments)  # noqa: E731
        return Binding(note, bound.leading, 0, bound.scratch_offsets, bound.trailing)


class OtherDevice(CpuDevice):
    """See the text of the module."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []

    @property
    def require_memory(self) -> Callable[..., None]:
        """Nothing is required: there is no memory."""
        return lambda *needs: None

    def compile_ahead(self, code: Any) -> None:
        """Nothing."""

    def load(self, code: Any, binary: Any) -> Any:
        """A kernel that notes."""
        return NotedKernel(super().load(code, binary), self.launches)

    def empty_strided(
        self, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        """Without memory."""
        return torch.empty_strided(shape, stride, dtype=dtype, device="meta")


@pytest.fixture
def other_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtherDevice]:
    """While in use, there are kernels for meta tensors."""
    found = OtherDevice()
    module = ModuleType("device")
    module.DEVICE = found  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyfuser.devices.meta", ModuleType("meta"))
    monkeypatch.setitem(sys.modules, "pyfuser.devices.meta.device", module)
    registry.device.cache_clear()
    yield found
    registry.device.cache_clear()
