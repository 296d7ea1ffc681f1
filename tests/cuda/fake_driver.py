"""A stand-in for the CUDA driver and torch's CUDA: GPUs whose memory is the CPU's.

`FakeDriver` has the functions of cuda.bindings.driver that the runtime calls.  It keeps the rules
that pyfuser must keep (a function is launched in the context of its module, shared memory above
48 KiB is opted in to, what a graph can't contain ends its capture), records every call, runs the
launched text in the SIMT harness, and fails on request.  `FakeGpus` makes a runtime for each of its
GPUs; `on` puts a tensor on one of them.  Everything between a definition and the driver is the
product's own code: plans, packing of arguments, geometry.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from cuda.bindings import driver as bindings

from pyfuser.devices import tensor_memory
from pyfuser.devices.cuda.cubins import CubinCompiler
from pyfuser.devices.cuda.driver import Driver
from pyfuser.devices.cuda.emulator.harness import Module, SimtError, compile_and_load
from pyfuser.devices.cuda.runtime import CudaRuntime, Gpu, target_of_gpu
from pyfuser.devices.registry import runtime_of
from pyfuser.devices.switches import register_runtime
from pyfuser.devices.tensor_memory import RequireMemory, poisoned

Result = bindings.CUresult
OK = Result.CUDA_SUCCESS
MAGIC = b"\x7fELF "
STATIC_SHARED_BYTES = 256  # of every function
WITHOUT_OPT_IN = 48 << 10
Mode = bindings.CUstreamCaptureMode
_DYNAMIC = bindings.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
# An H100's, by the driver's names.
ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": 9,
    "COMPUTE_CAPABILITY_MINOR": 0,
    "MULTIPROCESSOR_COUNT": 132,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 228 << 10,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 227 << 10,
    "L2_CACHE_SIZE": 50 << 20,
}


@dataclass(frozen=True)
class Launched:
    """One launch, as the driver got it; a pointer among the arguments is an address."""

    function: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int
    stream: int
    ordinal: int
    arguments: tuple[int | float | bytes, ...]


@dataclass(eq=False)
class _Context:
    ordinal: int


@dataclass(eq=False)
class _Function:
    context: _Context
    module: Module
    name: str
    owner: Any  # its module, as the driver knows it
    dynamic_bytes: int = WITHOUT_OPT_IN - STATIC_SHARED_BYTES

    def is_unloaded(self, unloaded: Sequence[Any]) -> bool:
        """True if its module is one of these."""
        return any(each is self.owner for each in unloaded)


@dataclass(eq=False)
class Capture:
    """The capture of a graph by a thread, in the mode `global`, as torch captures.

    `nodes` are its launches.  A forbidden call has made it invalid.
    """

    thread: int = field(default_factory=threading.get_ident)
    nodes: list[Callable[[], None]] = field(default_factory=list)
    is_invalid: bool = False

    @property
    def is_of_this_thread(self) -> bool:
        return self.thread == threading.get_ident()


@dataclass(eq=False)
class FakeDriver:
    """The module cuda.bindings.driver, for GPUs with these attributes.

    `failures` has the status that a function returns instead of working; `cuda_version` is the
    driver's.  `interruption` happens once, before the next launch reads its parameters, as if
    another thread had its turn there.
    """

    gpus: Sequence[dict[str, int]]
    cuda_version: int = 13050
    failures: dict[str, Any] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    launches: list[Launched] = field(default_factory=list)
    unloaded: list[Any] = field(default_factory=list)
    capture: Capture | None = None
    memory: Callable[[], list[tuple[int, int]]] = list
    interruption: Callable[[], None] | None = None

    CUresult = bindings.CUresult
    CUdevice_attribute = bindings.CUdevice_attribute
    CUfunction_attribute = bindings.CUfunction_attribute
    CUstreamCaptureMode = Mode

    def __post_init__(self) -> None:
        self.contexts = [_Context(ordinal) for ordinal in range(len(self.gpus))]
        self.of_a_kernel: Any = OK  # after a kernel has failed, every call returns its error
        self.threads = threading.local()

    # -- the state of a thread

    @property
    def current_device(self) -> int:
        """The ordinal of torch's current device in this thread."""
        return getattr(self.threads, "device", 0)

    @current_device.setter
    def current_device(self, ordinal: int) -> None:
        """torch.cuda.set_device"""
        self.threads.device = ordinal
        self._stack()[:] = [self.contexts[ordinal]]

    def _stack(self) -> list[_Context]:
        if not hasattr(self.threads, "stack"):
            self.threads.stack = []
        stack: list[_Context] = self.threads.stack
        return stack

    @property
    def capture_mode(self) -> Any:
        """How this thread's calls and captures interact."""
        return getattr(self.threads, "capture_mode", Mode.CU_STREAM_CAPTURE_MODE_GLOBAL)

    def is_forbidden(self, in_all_modes: bool) -> bool:
        """Whether a call that a graph can't contain fails; then it has ended the capture, too.

        With `in_all_modes` it conflicts with the capture itself: it waits for the GPU.
        """
        is_relaxed = self.capture_mode == Mode.CU_STREAM_CAPTURE_MODE_RELAXED
        if self.capture is None or (is_relaxed and not in_all_modes):
            return False
        self.capture.is_invalid = True
        return True

    # -- the functions, in the driver's own names

    def _enter(self, name: str, during_capture: bool = False, waits: bool = False) -> Any:
        """Notes a call; the status with which it must fail, or OK."""
        self.calls.append(name)
        if self.of_a_kernel != OK:
            return self.of_a_kernel
        if not during_capture and self.is_forbidden(in_all_modes=waits):
            return Result.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
        return self.failures.get(name, OK)

    def cuDriverGetVersion(self) -> tuple[Any, int]:
        return self._enter("cuDriverGetVersion"), self.cuda_version

    def cuDeviceGet(self, ordinal: int) -> tuple[Any, int]:
        return self._enter("cuDeviceGet"), ordinal

    def cuDeviceGetAttribute(self, kind: Any, device: int) -> tuple[Any, int]:
        name = kind.name.removeprefix("CU_DEVICE_ATTRIBUTE_")
        return self._enter("cuDeviceGetAttribute"), self.gpus[device][name]

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[Any, _Context]:
        return self._enter("cuDevicePrimaryCtxRetain"), self.contexts[device]

    def cuCtxPushCurrent(self, context: _Context) -> tuple[Any]:
        status = self._enter("cuCtxPushCurrent", during_capture=True)
        if status == OK:
            self._stack().append(context)
        return (status,)

    def cuCtxPopCurrent(self) -> tuple[Any, _Context]:
        status = self._enter("cuCtxPopCurrent", during_capture=True)
        return status, self._stack().pop()

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> tuple[Any, Any]:
        assert isinstance(mode, Mode)
        status, before = OK, self.capture_mode
        self.threads.capture_mode = mode
        return status, before

    def cuModuleLoadData(self, image: bytes) -> tuple[Any, Any]:
        status = self._enter("cuModuleLoadData")
        if status != OK:
            return status, None
        if not self._stack():
            return Result.CUDA_ERROR_INVALID_CONTEXT, None
        if not image.startswith(MAGIC):
            return Result.CUDA_ERROR_INVALID_IMAGE, None
        _, architecture, text = image.split(b" ", 2)
        context = self._stack()[-1]
        gpu = self.gpus[context.ordinal]
        if int(architecture.removeprefix(b"sm_")) // 10 != gpu["COMPUTE_CAPABILITY_MAJOR"]:
            return Result.CUDA_ERROR_NO_BINARY_FOR_GPU, None
        return OK, (context, compile_and_load(text.decode()))

    def cuModuleUnload(self, module: Any) -> tuple[Any]:
        assert self._stack() and self._stack()[-1] is module[0]
        self.unloaded.append(module)
        return (self._enter("cuModuleUnload", waits=True),)

    def cuModuleGetFunction(self, module: Any, name: bytes) -> tuple[Any, Any]:
        status = self._enter("cuModuleGetFunction")
        context, code = module
        if status == OK and name.decode() not in code.kernels:
            status = Result.CUDA_ERROR_NOT_FOUND
        return status, _Function(context, code, name.decode(), module)

    def cuFuncGetAttribute(self, kind: Any, function: _Function) -> tuple[Any, int]:
        assert kind.name == "CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES"
        return self._enter("cuFuncGetAttribute"), STATIC_SHARED_BYTES

    def cuFuncSetAttribute(self, function: _Function, kind: Any, value: int) -> tuple[Any]:
        assert kind == _DYNAMIC
        most = self.gpus[function.context.ordinal]["MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"]
        if value + STATIC_SHARED_BYTES > most:
            return (Result.CUDA_ERROR_INVALID_VALUE,)
        function.dynamic_bytes = value
        return (self._enter("cuFuncSetAttribute"),)

    def cuGetErrorString(self, status: Any) -> tuple[Any, bytes]:
        return OK, f"the text of {status.name}".encode()

    def cuLaunchKernel(
        self, function: _Function, *given: int
    ) -> tuple[Any]:  # grid, block, shared bytes, stream, addresses of the parameters, extra
        interruption, self.interruption = self.interruption, None
        if interruption is not None:
            interruption()
        status = self._enter("cuLaunchKernel", during_capture=True)
        *extents, shared_bytes, stream, addresses, extra = given
        assert len(extents) == 6 and extra == 0
        grid, block = tuple(extents[:3]), tuple(extents[3:])
        if status != OK:
            return (status,)
        if not self._stack():
            return (Result.CUDA_ERROR_INVALID_CONTEXT,)
        if self._stack()[-1] is not function.context or function.is_unloaded(self.unloaded):
            return (Result.CUDA_ERROR_INVALID_HANDLE,)
        if shared_bytes > function.dynamic_bytes or min(extents) < 1:
            return (Result.CUDA_ERROR_INVALID_VALUE,)
        content = _parameters(function.module.signature(function.name), addresses)
        arguments = tuple(value for _, value in content)
        ordinal = function.context.ordinal
        self.launches.append(
            Launched(function.name, grid, block, shared_bytes, stream, ordinal, arguments)
        )
        run = functools.partial(
            self._run, function, grid, block, shared_bytes, [bytes_ for bytes_, _ in content]
        )
        if self.capture is not None and self.capture.is_of_this_thread:
            self.capture.nodes.append(run)
        else:
            run()
        return (OK,)

    def _run(
        self,
        function: _Function,
        grid: Sequence[int],
        block: Sequence[int],
        shared_bytes: int,
        parameters: Sequence[bytes],
    ) -> None:
        """Runs a launch; a failed assertion is reported by the next call, as on a GPU."""
        assert not function.is_unloaded(self.unloaded), "a graph has a function of this module"
        packed = [ctypes.create_string_buffer(each, len(each)) for each in parameters]
        array = (ctypes.c_void_p * len(packed))(*map(ctypes.addressof, packed))
        where = ctypes.addressof(array)
        try:
            function.module.launch_packed(
                function.name, grid, block, shared_bytes, where, self.memory()
            )
        except SimtError as error:
            if "assertion failed" not in str(error):
                raise
            self.of_a_kernel = Result.CUDA_ERROR_ASSERT


def _parameters(
    signature: Sequence[tuple[str, int]], addresses: int
) -> list[tuple[bytes, int | float | bytes]]:
    """The bytes and the values of a launch's parameters, copied as the driver does."""
    array = (ctypes.c_void_p * len(signature)).from_address(addresses)
    found: list[tuple[bytes, int | float | bytes]] = []
    for (kind, size), address in zip(signature, array, strict=True):
        assert address is not None and address % size == 0, "a parameter that isn't aligned"
        content = ctypes.string_at(address, size)
        match kind:
            case "f":
                found.append((content, struct.unpack("<f" if size == 4 else "<d", content)[0]))
            case "p" | "i":
                found.append((content, int.from_bytes(content, "little", signed=kind == "i")))
            case _:
                found.append((content, content))
    return found


# -- torch's side


class _OnGpu0(torch.Tensor):
    """A tensor of the CPU that says that it is on the first GPU."""

    device = property(lambda self: torch.device("cuda", 0))  # type: ignore[assignment]
    is_cpu = False  # type: ignore[assignment]


class _OnGpu1(torch.Tensor):
    """A tensor of the CPU that says that it is on the second GPU."""

    device = property(lambda self: torch.device("cuda", 1))  # type: ignore[assignment]
    is_cpu = False  # type: ignore[assignment]


_CLASSES = (_OnGpu0, _OnGpu1)


def on(ordinal: int, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, as if it were on a GPU."""
    return tensor.as_subclass(_CLASSES[ordinal])


def at_home(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of a GPU as what it is."""
    return tensor.as_subclass(torch.Tensor)


class FakeRuntime(CudaRuntime):
    """The runtime, which in addition notes the memory of inputs."""

    note: Callable[[torch.Tensor], None]

    @property
    def require_memory(self) -> RequireMemory:
        real = super().require_memory

        def require(*needs: Any) -> bool:
            is_for_torch = real(*needs)
            for tensor in needs[::3]:
                self.note(tensor)
            return is_for_torch

        return require


class FakeGpus:
    """GPUs, their driver, and a compiler whose machine code is the text.

    `streams` has the handle of the current stream on each GPU; `compiled` the texts that were
    compiled, `synchronised` the GPUs that were waited for.
    """

    def __init__(self, count: int = 1, **attributes: int) -> None:
        self.driver = FakeDriver([{**ATTRIBUTES, **attributes} for _ in range(count)])
        self.driver.memory = self._memory
        self.driver.current_device = 0
        self.streams = [0] * count
        self.compiled: list[str] = []
        self.synchronised: list[int] = []
        self.allocated: list[tuple[int, ...]] = []  # (ordinal, stream, bytes)
        self.compiler = CubinCompiler("sm_90", self._compile, "a fake")
        self._storages: dict[int, torch.UntypedStorage] = {}

    def _compile(self, text: str, architecture: str) -> bytes:
        self.compiled.append(text)
        return MAGIC + f"{architecture} {text}".encode()

    def _memory(self) -> list[tuple[int, int]]:
        return [(address, storage.nbytes()) for address, storage in self._storages.items()]

    def free_unused(self) -> None:
        """torch.cuda.empty_cache; then there is memory for modules."""
        self.driver.failures.pop("cuModuleLoadData", None)

    def _synchronize(self, ordinal: int) -> None:
        self.synchronised.append(ordinal)
        if self.driver.is_forbidden(in_all_modes=True):
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    def note(self, tensor: torch.Tensor) -> None:
        """Lets kernels access a tensor's memory; it is kept, so that no other takes its place."""
        storage = at_home(tensor).untyped_storage()
        self._storages[storage.data_ptr()] = storage

    def runtime(self, device: torch.device) -> FakeRuntime:
        """The runtime of one GPU."""
        ordinal = device.index or 0

        def empty(
            shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype
        ) -> torch.Tensor:
            made = poisoned(torch.empty_strided(shape, stride, dtype=dtype))
            if device.type == "cpu":
                return made
            self.note(made)
            self.allocated.append((ordinal, self.streams[ordinal], made.untyped_storage().nbytes()))
            return on(ordinal, made)

        gpu = Gpu(
            torch.device(device.type, ordinal),
            lambda: self.driver.current_device,
            lambda index: self.streams[index],
            empty,
            lambda: self._synchronize(ordinal),
            lambda: self.driver.capture is not None and self.driver.capture.is_of_this_thread,
            self.free_unused,
        )
        driver = Driver(self.driver)
        target = target_of_gpu(driver, ordinal, (13, 0), ("sm_75", "sm_90", "sm_100"))
        made = FakeRuntime(gpu, driver, target, self.compiler)
        made.note = self.note if device.type == "cuda" else lambda tensor: None
        return made

    @contextmanager
    def captured(self) -> Iterator[list[Callable[[], None]]]:
        """While it lasts, this thread's launches become the nodes of a graph instead of running.

        RuntimeError at its end, as from torch, if a call has invalidated the graph.
        """
        capture = self.driver.capture = Capture()
        try:
            yield capture.nodes
        finally:
            self.driver.capture = None
        if capture.is_invalid:
            raise RuntimeError(
                "CUDA error: operation failed due to a previous error during capture"
            )


@contextmanager
def fake_gpus(count: int = 1, **attributes: int) -> Iterator[FakeGpus]:
    """While it lasts, CUDA tensors are those of `on`."""
    found = FakeGpus(count, **attributes)
    register_runtime("cuda", found.runtime)
    real = tensor_memory.plain_keys
    keys_of_the_cpu = patch.object(tensor_memory, "plain_keys", lambda device: real("cpu"))
    keys_of_the_cpu.start()
    try:
        for ordinal in range(count):
            runtime_of(torch.device("cuda", ordinal))
        yield found
    finally:
        keys_of_the_cpu.stop()
        register_runtime("cuda", None)


@contextmanager
def fake_gpu_for_cpu_tensors() -> Iterator[FakeGpus]:
    """While it lasts, tensors of the CPU are run by a GPU: what torch.compile makes of any program.

    The memory of results of library calls isn't known, so kernels may access all addresses.
    """
    found = FakeGpus()
    found.driver.memory = lambda: [(1 << 12, 1 << 47)]
    register_runtime("cpu", found.runtime)
    try:
        yield found
    finally:
        register_runtime("cpu", None)
