"""The device object for CUDA tensors: prints kernels as CUDA C++ and compiles them to machine code.

Kernel -> CUDA C++ -> (NVRTC) -> cubin or PTX, none of which needs a GPU.  Nothing is launched yet:
`generate` refuses, and so the fallback computes fusions of CUDA tensors with torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...errors import UnsupportedError, expected
from ...ir.kernel import Kernel
from ...lower.traits import DeviceTraits
from ..registry import BuiltKernel
from ..tensor_memory import require_memory
from .codegen import generate
from .device_helpers import with_device_helpers
from .machine import COMMON, CudaMachine
from .nvrtc import compile_to_ptx

# What PTX is shown for where no architecture is asked for: the oldest that NVRTC 13 knows.
_OLDEST = "sm_75"


class CudaDevice:
    """The device object; see `registry.Device`."""

    traits = DeviceTraits(threads_are_hardware=True)

    @property
    def machine(self) -> CudaMachine:
        """The facts that heuristics use."""
        return COMMON

    def keep_objects_in(self, cache: Any) -> None:
        """Machine code isn't kept: none is made."""

    def generate(self, kernel: Kernel) -> Any:
        """Refuses with UnsupportedError: kernels for CUDA tensors aren't launched yet."""
        raise _not_launched(kernel.name)

    def compile_ahead(self, code: Any) -> None:
        """Nothing: no code gets this far."""

    def compile(self, code: Any) -> Any:
        """Refuses, as `generate` does."""
        raise _not_launched("compile")

    def load(self, code: Any, binary: Any) -> BuiltKernel:
        """Refuses, as `generate` does."""
        raise _not_launched("load")

    def empty_strided(
        self, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        """From torch's caching allocator, on the current CUDA device."""
        return torch.empty_strided(shape, stride, dtype=dtype, device="cuda")

    def scratch(self, size_bytes: int) -> torch.Tensor:
        """From torch's caching allocator, on the current CUDA device."""
        return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")

    @property
    def require_memory(self) -> Callable[..., None]:
        """In Python: nothing is launched yet."""
        return require_memory

    def texts(self, kernel: Kernel, architecture: str = _OLDEST) -> dict[str, str]:
        """cuda, and ptx for `architecture`; instead of PTX the reason why there is none."""
        text = generate(kernel).text
        try:
            ptx = compile_to_ptx(with_device_helpers(text), architecture)
        except UnsupportedError as error:
            ptx = f"// {error}\n"
        return {"cuda": text, "ptx": ptx}


def _not_launched(operation: str) -> UnsupportedError:
    what = "a device that launches kernels"
    return UnsupportedError(expected(operation, what, "CUDA, for which they are only compiled"))


DEVICE = CudaDevice()
