"""A device that doesn't exist: `meta`, with the CPU's code generator and kernels that only record.

For decisions that only depend on devices.  Its tensors have no memory, so a launch only records its
arguments; `launches` has the arguments of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from pyfuser.devices.cpu.runtime import CpuRuntime, FusedKernelCPU
from pyfuser.devices.runtime import LaunchWriter, LoadedKernel
from pyfuser.devices.switches import register_runtime
from pyfuser.devices.tensor_memory import EmptyStrided


class NotedKernel(LoadedKernel):
    """A kernel of the CPU whose launches are noted."""

    def __init__(self, loaded: FusedKernelCPU, launches: list[tuple[Any, ...]]) -> None:
        self.code, self.launches = loaded.code, launches

    def write_launch(self, writer: LaunchWriter) -> None:
        """A call that notes the addresses of its tensors."""
        note = writer.constant("note", lambda *arguments: self.launches.append(arguments))
        addresses = ", ".join(writer.address(tensor) for tensor in self.kernel.tensors)
        writer.call(f"{note}({addresses})")


class OtherDevice(CpuRuntime):
    """See the text of the module."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[tuple[Any, ...]] = []

    @property
    def device(self) -> torch.device:
        """The device without memory."""
        return torch.device("meta")

    @property
    def require_memory(self) -> Callable[..., bool]:
        """Nothing is required: there is no memory."""
        return lambda *needs: False

    def compile_ahead(self, code: Any) -> None:
        """Nothing."""

    def load(self, code: Any, binary: Any) -> Any:
        """A kernel that notes."""
        return NotedKernel(super().load(code, binary), self.launches)

    @property
    def empty_strided(self) -> EmptyStrided:
        """Without memory."""
        return lambda shape, stride, dtype: torch.empty_strided(
            shape, stride, dtype=dtype, device="meta"
        )


@pytest.fixture
def other_device() -> Iterator[OtherDevice]:
    """While in use, there are kernels for meta tensors."""
    found = OtherDevice()
    register_runtime("meta", lambda _: found)
    yield found
    register_runtime("meta", None)
