"""The CUDA driver: contexts, modules, functions and their errors.

Cubins -> functions that can be launched.  The driver is called through `cuda.bindings` and not
through `cuda.core`, because a launch is then one call with a prepared array of parameters, and
`cuda.core` makes several objects for each.  The package is imported by `system_driver`, never by
importing this module.

Invariant: no call here waits for the GPU, except that `unload` may.

CUDA graphs: torch captures in the mode `global`, in which calls that a graph can't contain, such as
loading a module, fail in every thread and end the capture.  By `outside_of_graphs` a thread says
that its calls aren't meant for the graph.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ...errors import DeviceError, UnsupportedError, expected

_HINT = "pip install 'pyfuser[cuda]'"

# Errors of an earlier kernel: the driver reports them at the next call, and at all later ones.
_OF_A_KERNEL = (
    *("CUDA_ERROR_ASSERT", "CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_LAUNCH_FAILED"),
    *("CUDA_ERROR_MISALIGNED_ADDRESS", "CUDA_ERROR_LAUNCH_TIMEOUT"),
)
_OF_A_KERNEL_HINT = (
    "a kernel launched earlier may be the one that failed: CUDA_LAUNCH_BLOCKING=1 waits for each"
)
_OF_A_CAPTURE = "CUDA_ERROR_STREAM_CAPTURE_"
_OF_A_CAPTURE_HINT = "run the call once before it is captured into a CUDA graph"


@dataclass(frozen=True, slots=True, eq=False)
class Driver:
    """The functions of the driver that pyfuser calls.

    `functions` is the module cuda.bindings.driver; the tests have a stand-in.
    """

    functions: Any

    def version(self) -> tuple[int, int]:
        """The newest CUDA version that the driver supports."""
        number = self.checked("driver", self.functions.cuDriverGetVersion())
        return number // 1000, number % 1000 // 10

    def attribute(self, ordinal: int, name: str) -> int:
        """A property of a GPU; `name` is the driver's, without CU_DEVICE_ATTRIBUTE_."""
        kind = getattr(self.functions.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        device = self.checked("device", self.functions.cuDeviceGet(ordinal))
        return int(self.checked("device", self.functions.cuDeviceGetAttribute(kind, device)))

    def primary_context(self, ordinal: int) -> Any:
        """The context of a GPU that torch uses too; it is never released."""
        device = self.checked("device", self.functions.cuDeviceGet(ordinal))
        return self.checked("device", self.functions.cuDevicePrimaryCtxRetain(device))

    @contextlib.contextmanager
    def current(self, context: Any) -> Iterator[None]:
        """Makes a context this thread's, and restores the thread's own one."""
        self.checked("context", self.functions.cuCtxPushCurrent(context))
        try:
            yield
        finally:
            self.functions.cuCtxPopCurrent()

    @contextlib.contextmanager
    def outside_of_graphs(self) -> Iterator[None]:
        """Lets this thread load modules and allocate while it, or another thread, captures a graph.

        What the calls do isn't part of the graph.  Waiting for the GPU is still forbidden.
        """
        exchange = self.functions.cuThreadExchangeStreamCaptureMode
        relaxed = self.functions.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        before = self.checked("capture", exchange(relaxed))
        try:
            yield
        finally:
            exchange(before)

    def load(self, image: bytes, where: str, make_room: Callable[[], None] | None = None) -> Any:
        """The module of a cubin in the current context; `where` names kernel and device.

        If there is no memory for it, `make_room` is called once.
        """
        answer = self.functions.cuModuleLoadData(image)
        if make_room and answer[0] == self.functions.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            make_room()
            answer = self.functions.cuModuleLoadData(image)
        return self.checked(f"loading {where}", answer)

    def unload(self, module: Any) -> None:
        """Frees the memory of a module.  If that fails, as all calls do after a kernel has failed,
        nothing else is lost.
        """
        self.functions.cuModuleUnload(module)

    def function(self, module: Any, name: str, where: str) -> Any:
        """A function of a module."""
        found = self.functions.cuModuleGetFunction(module, name.encode())
        return self.checked(f"loading {where}", found)

    def allow_shared(self, function: Any, most: int, where: str) -> None:
        """Lets launches of a function have more than 48 KiB of shared memory, `most` in total.

        The function's own arrays count too.
        """
        kinds = self.functions.CUfunction_attribute
        own = self.checked(
            f"loading {where}",
            self.functions.cuFuncGetAttribute(kinds.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function),
        )
        dynamic = kinds.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        answer = self.functions.cuFuncSetAttribute(function, dynamic, most - int(own))
        self.checked(f"loading {where}", answer)

    def checked(self, operation: str, answer: Any) -> Any:
        """The value that a function returned; DeviceError if it failed."""
        status, *values = answer
        if status:
            raise self.error(operation, status)
        return values[0] if values else None

    def error(self, operation: str, status: Any) -> DeviceError:
        """The error of a call that returned this status."""
        name = getattr(status, "name", str(status))
        _, text = self.functions.cuGetErrorString(status)
        got = f"{name} ({text.decode()})" if isinstance(text, bytes) else name
        hint = _OF_A_KERNEL_HINT if name in _OF_A_KERNEL else ""
        if name.startswith(_OF_A_CAPTURE):
            hint = _OF_A_CAPTURE_HINT
        return DeviceError(expected(operation, "CUDA_SUCCESS", got, hint))


@functools.cache
def system_driver() -> Driver:
    """The driver of this machine, initialised.

    UnsupportedError if there is none, or no package to call it with.
    """
    try:
        functions = importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        what = "the package cuda-bindings"
        raise UnsupportedError(expected("CUDA", what, f"`{error}`", _HINT)) from error
    found = Driver(functions)
    try:
        found.checked("CUDA", functions.cuInit(0))
    except (RuntimeError, OSError) as error:  # no libcuda, or a driver that can't be initialised
        what = "NVIDIA's driver"
        raise UnsupportedError(expected("CUDA", what, f"`{error}`")) from error
    return found
