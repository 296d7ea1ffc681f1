"""A GPU as a runtime: NVRTC's cubins, modules in torch's context, torch's memory and streams.

Code -> cubin (cubins.py) -> module in the device's context (driver.py) -> functions that plans call
(launcher.py).  Once a call has run, calls like it only allocate and launch: nothing is compiled,
loaded or waited for.  What a CUDA graph's capture meets for the first time is compiled and loaded
then, but nothing is waited for.

Modules are unloaded when their kernels have been dropped (modules.py), but not if a captured graph
may still launch their functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch

from ...errors import UnsupportedError, expected
from ...ir.scalars import ZERO
from ..runtime import ObjectCache, Runtime
from ..tensor_memory import EmptyStrided, RequireMemory
from . import nvrtc
from .arrival_counters import ArrivalCounters
from .codegen import Counters, CudaSource, Launch
from .cubins import CubinCompiler, cubin_compiler
from .device_memory import require_memory
from .driver import Driver, system_driver
from .launcher import LoadedFunction, ParameterLayout, launcher
from .launches import FusedKernelCUDA, Launcher, launch_aligned
from .library_functions import FUNCTIONS
from .modules import LoadedModule, LoadedModules
from .target import CudaTarget

# The first cache and shared memory of a multiprocessor together, in KiB, by compute capability
# (CUDA programming guide, technical specifications); the driver only tells how much of it may be
# shared memory.
_L1_KIB = {70: 128, 75: 96, 80: 192, 86: 128, 87: 192, 89: 128, 90: 256, 100: 256, 103: 256}
_OLDEST = 70  # Volta: threads of a warp progress independently


@dataclass(frozen=True, slots=True, eq=False)
class Gpu:
    """What torch knows about a GPU: its number, and what is current when a call asks.

    current_device  the index of this thread's device
    current_stream  a device's index -> the handle of this thread's stream on it
    empty_strided   uninitialised tensors on the GPU
    synchronize     waits for the GPU
    is_capturing    whether this thread's stream on the GPU is being captured into a CUDA graph
    free_unused     frees the memory that torch's allocator keeps for later tensors
    """

    device: torch.device
    current_device: Callable[[], int]
    current_stream: Callable[[int], int]
    empty_strided: EmptyStrided
    synchronize: Callable[[], None]
    is_capturing: Callable[[], bool]
    free_unused: Callable[[], None]

    @staticmethod
    def of_torch(device: torch.device) -> Gpu:
        """A GPU of this process."""

        def stream(index: int) -> int:
            return int(torch.cuda.current_stream(index).cuda_stream)

        # torch's own bindings take 0.1 us, the public functions several.
        native_stream = getattr(torch._C, "_cuda_getCurrentRawStream", stream)
        native_device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)

        def capturing() -> bool:
            if native_device() == device.index:
                return torch.cuda.is_current_stream_capturing()
            with torch.cuda.device(device):
                return torch.cuda.is_current_stream_capturing()

        return Gpu(
            device,
            native_device,
            native_stream,
            _allocator(device, native_device),
            partial(torch.cuda.synchronize, device),
            capturing,
            torch.cuda.empty_cache,
        )


def _allocator(device: torch.device, current_device: Callable[[], int]) -> EmptyStrided:
    """torch.empty_strided on a GPU; for the current one, by a binding that takes half as long."""
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    native = getattr(guards, "_empty_strided_cuda", None)

    def empty(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if native is not None and current_device() == device.index:
            return native(shape, stride, dtype)  # type: ignore[no-any-return]
        return torch.empty_strided(shape, stride, dtype=dtype, device=device)

    return empty


class CudaRuntime(Runtime):
    """One GPU."""

    def __init__(
        self, gpu: Gpu, driver: Driver, target: CudaTarget, compiler: CubinCompiler
    ) -> None:
        self._gpu, self._driver, self._target, self._compiler = gpu, driver, target, compiler
        self._context = driver.primary_context(gpu.device.index)
        stream = partial(gpu.current_stream, gpu.device.index)
        self._modules = LoadedModules(driver, gpu.synchronize, gpu.is_capturing, gpu.free_unused)
        self._counters = ArrivalCounters(gpu.empty_strided, stream, gpu.is_capturing)

    @property
    def device(self) -> torch.device:
        return self._gpu.device

    @property
    def target(self) -> CudaTarget:
        is_demanded = torch.are_deterministic_algorithms_enabled()
        return self._target.made_deterministic(is_demanded)

    @property
    def empty_strided(self) -> EmptyStrided:
        """Memory of torch's caching allocator, for the current stream."""
        return self._gpu.empty_strided

    @property
    def require_memory(self) -> RequireMemory:
        """A check in Python, as short as possible."""
        return require_memory

    @property
    def library_functions(self) -> Mapping[Any, Callable[..., Any]]:
        """Copies of numbers, which wait for nothing."""
        return FUNCTIONS

    def synchronize(self) -> None:
        """Waits until everything launched so far has run; no call does."""
        self._gpu.synchronize()

    def keep_objects_in(self, cache: ObjectCache | None) -> None:
        """Sets where cubins are kept between processes."""
        self._compiler.cache = cache

    def compile_ahead(self, code: CudaSource) -> None:
        """Begins the compilation in another thread."""
        self._compiler.start(code.text)

    def compile(self, code: CudaSource) -> list[Launcher]:
        """What launches the functions of a text, one for each phase."""
        for launch in code.launches:
            ParameterLayout(launch).check(launch, self._target.limits)
        cubin = self._compiler.cubin(code.text)
        with self._driver.current(self._context), self._driver.outside_of_graphs():
            module = self._modules.load(cubin, f"{code.kernel.name} on {self.device}")
            functions = [self._function(module, launch) for launch in code.launches]
            if any(isinstance(p, Counters) for launch in code.launches for p in launch.parameters):
                self._counters.prepare()
        gpu = self._gpu
        asked = gpu.current_device, gpu.current_stream, gpu.is_capturing
        return [launcher(each, *asked) for each in functions]

    def _function(self, module: LoadedModule, launch: Launch) -> LoadedFunction:
        """A function of a module, which the current context has."""
        where, limits = f"{launch.function} on {self.device}", self._target.limits
        handle = self._driver.function(module.handle, launch.function, where)
        if launch.shared_bytes is not ZERO:
            self._driver.allow_shared(handle, limits.shared_bytes, where)
        own = self._driver, self.device, self._context, module
        return LoadedFunction(*own, handle, launch, limits)

    def load(self, code: CudaSource, binary: Sequence[Launcher]) -> FusedKernelCUDA:
        """A kernel with its functions; those for any address are compiled when a launch first needs
        them, as kernels with wider indices are.
        """
        any_address = cache(lambda: self.compile(code.for_any_address))
        launchers = [
            launch_aligned(aligned, launch, any_address, number)
            for number, (aligned, launch) in enumerate(zip(binary, code.launches, strict=True))
        ]
        return FusedKernelCUDA(code, launchers, self._counters.address)


def runtime(device: torch.device) -> Runtime:
    """The runtime of a GPU.  UnsupportedError, in one sentence, if kernels can't run on it."""
    if not torch.cuda.is_available():
        got = "none" if torch.version.cuda else "none: this torch is built for the CPU"
        raise UnsupportedError(expected("CUDA", "a GPU that torch can use", got))
    index = torch.cuda.current_device() if device.index is None else device.index
    driver = system_driver()
    found = target_of_gpu(driver, index, nvrtc.version(), nvrtc.supported_architectures())
    gpu = Gpu.of_torch(torch.device("cuda", index))
    return CudaRuntime(gpu, driver, found, cubin_compiler(found.architecture))


def target_of_gpu(
    driver: Driver, ordinal: int, version: tuple[int, int], known: Sequence[str]
) -> CudaTarget:
    """The target of a GPU, for an NVRTC of this version that compiles for these architectures.

    UnsupportedError if there is none.
    """
    supported = driver.version()
    if supported[0] < version[0]:
        what = f"a driver for CUDA {version[0]}, the version of NVRTC"
        got = "one for CUDA {}.{}".format(*supported)
        hint = "install a newer driver, or the extra `cuda12` instead of `cuda`"
        raise UnsupportedError(expected("CUDA", what, got, hint))
    major = driver.attribute(ordinal, "COMPUTE_CAPABILITY_MAJOR")
    minor = driver.attribute(ordinal, "COMPUTE_CAPABILITY_MINOR")
    capability = 10 * major + minor
    shared = driver.attribute(ordinal, "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR")
    return CudaTarget(
        _architecture(capability, version, known),
        multiprocessors=driver.attribute(ordinal, "MULTIPROCESSOR_COUNT"),
        l1_bytes=_L1_KIB[capability] << 10 if capability in _L1_KIB else shared,
        l2_bytes=driver.attribute(ordinal, "L2_CACHE_SIZE"),
        most_shared_bytes=driver.attribute(ordinal, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
    )


def _architecture(capability: int, version: tuple[int, int], known: Sequence[str]) -> str:
    """The newest architecture whose cubins run on a GPU: of its generation, and not newer."""
    if capability < _OLDEST:
        what = f"a GPU from sm_{_OLDEST} on"
        raise UnsupportedError(expected("CUDA", what, f"one of sm_{capability}"))
    numbers = [int(name.removeprefix("sm_")) for name in known]
    fitting = [n for n in numbers if n // 10 == capability // 10 and n <= capability]
    if not fitting:
        what = "a GPU that NVRTC {}.{} compiles for ({})".format(*version, ", ".join(known))
        is_older = capability < min(numbers)
        hint = "the extra `cuda12` may" if is_older else "a newer nvidia-cuda-nvrtc may"
        raise UnsupportedError(expected("CUDA", what, f"one of sm_{capability}", hint))
    return f"sm_{max(fitting)}"
