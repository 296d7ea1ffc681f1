"""The device that a stage is shown for: this processor, or an NVIDIA architecture that isn't here.

Turns the text of `--device` (cpu, sm_90) into what `pyfuser.compiler.stages` asks a device for.
Nothing is built or launched, so no GPU and no driver is needed: CUDA C++ is printed and NVRTC
compiles it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from ..devices import registry
from ..devices.cuda.device import CudaDevice
from ..devices.cuda.machine import CudaMachine
from ..ir.kernel import Kernel
from ..lower.traits import DeviceTraits


def target_of(device: str) -> registry.Device:
    """The device for `cpu` or `sm_NN`; of the latter only what printing stages needs."""
    if device == "cpu":
        return registry.device("cpu")
    return cast(registry.Device, CudaArchitecture(device))


@dataclass(frozen=True, slots=True)
class CudaArchitecture:
    """The CUDA device, with PTX for one architecture."""

    name: str
    device: CudaDevice = CudaDevice()

    @property
    def traits(self) -> DeviceTraits:
        """What lowering must know."""
        return self.device.traits

    @property
    def machine(self) -> CudaMachine:
        """The facts that heuristics use."""
        return self.device.machine

    def texts(self, kernel: Kernel) -> dict[str, str]:
        """cuda and ptx."""
        return self.device.texts(kernel, self.name)
