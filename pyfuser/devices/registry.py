"""What a device offers to the device-independent code, and how one is found.

A device is a subpackage of `pyfuser.devices` named like its torch device type, whose module
`device` has the object `DEVICE`.  It is imported when a tensor of that type is first seen, so that
no device needs another one's libraries.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ..errors import UnsupportedError, expected
from ..ir.kernel import Kernel
from ..lower.traits import DeviceTraits


@dataclass(frozen=True, slots=True)
class Binding:
    """How a built kernel is called for known sizes:

        function(*leading, *tensor pointers, *(scratch pointer + offset), *trailing, *scalars)

    `scratch_bytes` of memory are allocated for the call; `scratch_offsets` are bytes into it.
    """

    function: Any
    leading: tuple[int, ...]
    scratch_bytes: int
    scratch_offsets: tuple[int, ...]
    trailing: tuple[int, ...]


class BuiltKernel(Protocol):
    """A kernel as machine code."""

    @property
    def kernel(self) -> Kernel:
        """What it was made from."""

    def bind(self, sizes: Mapping[str, int]) -> Binding:
        """How to call it when the symbols have these values."""


class Code(Protocol):
    """A kernel as text."""

    @property
    def text(self) -> str:
        """Everything that decides the machine code."""


class Device(Protocol):
    """One device."""

    @property
    def traits(self) -> DeviceTraits:
        """What lowering must know."""

    @property
    def machine(self) -> Any:
        """The facts that heuristics use: cores, lanes(bytes), l1_bytes, l2_bytes."""

    def keep_objects_in(self, cache: Any) -> None:
        """Where machine code is kept between processes: `load(key)` and `store(key, bytes)`."""

    def generate(self, kernel: Kernel) -> Any:
        """The `Code` of a kernel.  UnsupportedError for what the device can't compute."""

    def compile_ahead(self, code: Any) -> None:
        """Begins with what `compile` will soon be asked for, beside the caller; or does nothing."""

    def compile(self, code: Any) -> Any:
        """Machine code, in this process; the caller shares it between equal texts.
        CompilationError where the text doesn't compile."""

    def load(self, code: Any, binary: Any) -> BuiltKernel:
        """A callable kernel of a code and the machine code of its text."""

    def empty_strided(
        self, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        """An uninitialised tensor."""

    def scratch(self, size_bytes: int) -> torch.Tensor:
        """Uninitialised memory for one call."""

    @property
    def require_memory(self) -> Callable[..., None]:
        """Takes `tensor_memory.Needs`; InputError for a tensor with less memory than it needs."""

    def texts(self, kernel: Kernel) -> dict[str, str]:
        """The device's own stages as text: generated code, machine code."""


@functools.cache
def device(device_type: str) -> Device:
    """The device for tensors of a torch device type.  UnsupportedError where there is none."""
    try:
        module = importlib.import_module(f"{__package__}.{device_type}.device")
    except ModuleNotFoundError as error:
        # Either there is no such folder, or what it is made with isn't installed.
        is_known = not (error.name or "").startswith(f"{__package__}.{device_type}")
        got = str(error) if is_known else f"{device_type} tensors"
        raise UnsupportedError(expected("device", "a device that has kernels", got)) from error
    found: Device = module.DEVICE
    return found
