"""`pytest --emulate --on-gpu`: what the emulator would run is launched on a real GPU instead.

The emulator's Module is replaced by one that compiles the same text with NVRTC.  A launch copies
the memory of its tensors to the GPU, each between two guards, launches, waits, checks the guards,
and copies back what the kernel may write.  So every test that runs on emulated kernels also says
what a GPU computes.  torch needs no CUDA for that.

A failed assertion would leave the whole process without a GPU: here it sets a variable, and its
thread exits.  After any other failed launch the context is made anew.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import re
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from pyfuser.devices.cuda import nvrtc
from pyfuser.devices.cuda.driver import Driver, system_driver
from pyfuser.devices.cuda.emulator.harness import Argument, SimtError
from pyfuser.errors import CompilationError, DeviceError

_GUARD, _PATTERN = 4096, 0xA5
_PAGE = 256  # addresses on the GPU are as far from a multiple of it as those on the CPU
_REFUSED = "pyfuser_refused"
_ASSERTION = "__assertfail(what"
_EXIT = f'{{ {_REFUSED} = what; asm volatile("exit;"); }} (void)(what'
_LONGEST_TEXT = 32
_SIGNATURE = re.compile(r"__global__ void (?:__\w+__\([^)]*\) )*(\w+)\(\s*(.*?)\) \{", re.DOTALL)
_INDEX = re.compile(r"typedef (\w+) index_t;")
_FORMATS = {
    **{"float": "f", "double": "d", "bool": "?"},
    **{"int8_t": "b", "int16_t": "h", "int32_t": "i", "int64_t": "q"},
    **{"uint8_t": "B", "uint16_t": "H", "uint32_t": "I", "uint64_t": "Q"},
}


class _Gpu:
    """The first GPU: its driver, and its context, which a failed launch makes useless."""

    def __init__(self) -> None:
        self.driver: Driver = system_driver()
        self.functions = self.driver.functions
        self.generation = 0
        self.lock = threading.RLock()
        self.context = self.driver.primary_context(0)
        major, minor = (
            self.driver.attribute(0, f"COMPUTE_CAPABILITY_{each}") for each in ("MAJOR", "MINOR")
        )
        self.architecture = f"sm_{major}{minor}"
        self.most_shared = self.driver.attribute(0, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")

    def checked(self, function: str, *arguments: Any) -> Any:
        """Calls a function of the driver; what it returns, without the status."""
        return self.driver.checked(function, getattr(self.functions, function)(*arguments))

    def begin_again(self) -> None:
        """A new context; modules of the old one are gone."""
        self.functions.cuDevicePrimaryCtxReset(0)
        self.context = self.driver.primary_context(0)
        self.generation += 1


@functools.cache
def _gpu() -> _Gpu:
    return _Gpu()


class _Memory:
    """A storage of the CPU on the GPU, between two guards."""

    def __init__(self, gpu: _Gpu, storage: torch.UntypedStorage) -> None:
        self._gpu, self._host, self._bytes = gpu, storage.data_ptr(), storage.nbytes()
        self._whole = 2 * _GUARD + _PAGE + self._bytes
        self._start = int(gpu.checked("cuMemAlloc", self._whole))
        self.address = self._start + _GUARD + self._host % _PAGE
        gpu.checked("cuMemsetD8", self._start, _PATTERN, self._whole)
        if self._bytes:
            gpu.checked("cuMemcpyHtoD", self.address, self._host, self._bytes)

    def copy_back(self) -> None:
        """The CPU gets what a kernel has written."""
        if self._bytes:
            self._gpu.checked("cuMemcpyDtoH", self._host, self.address, self._bytes)

    def has_whole_guards(self) -> bool:
        """True if nothing was written before or after the storage."""
        end = self.address + self._bytes
        parts = (self._start, self.address), (end, self._start + self._whole)
        for start, stop in parts:
            found = ctypes.create_string_buffer(stop - start)
            self._gpu.checked("cuMemcpyDtoH", ctypes.addressof(found), start, stop - start)
            if found.raw != bytes([_PATTERN]) * (stop - start):
                return False
        return True

    def free(self) -> None:
        """Gives the memory back; a failed launch has taken it already."""
        self._gpu.functions.cuMemFree(self._start)


class GpuModule:
    """The kernels of one text on a GPU; `launch` is that of the emulator's Module."""

    def __init__(self, text: str) -> None:
        self._gpu = _gpu()
        refusing = text.replace(_ASSERTION, _EXIT)
        edited = f'extern "C" {{ __device__ const char* {_REFUSED}; }}\n{refusing}'
        try:
            self._cubin = nvrtc.compile_to_cubin(edited, self._gpu.architecture)
        except CompilationError as error:
            raise SimtError(str(error)) from error
        index = _INDEX.search(text)
        own = {"index_t": _FORMATS[index[1]]} if index else {}
        self.kernels = {
            name: [_format(each, own) for each in _parameters(parameters)]
            for name, parameters in _SIGNATURE.findall(text)
        }
        self._generation = -1
        self._module: Any = None

    def launch(
        self,
        kernel: str,
        grid: Sequence[int],
        block: Sequence[int],
        shared_bytes: int,
        args: Sequence[Argument],
        **of_the_emulator: object,
    ) -> None:
        """Runs the kernel, and returns when it is done; SimtError if it fails or writes outside of
        its tensors.  A GPU has its own order of threads, whatever the seed is, and counts nothing.
        """
        assert not (of_the_emulator.get("counts") or of_the_emulator.get("buffers"))
        gpu = self._gpu
        with gpu.lock:
            try:
                with gpu.driver.current(gpu.context):
                    self._launch(kernel, (*grid, *block, shared_bytes), args)
            except DeviceError as error:
                gpu.begin_again()
                raise SimtError(f"{kernel}: {error}") from error

    def _launch(self, kernel: str, extents: Sequence[int], args: Sequence[Argument]) -> None:
        gpu = self._gpu
        function, refused = self._function(kernel, extents[-1])
        memory: dict[int, _Memory] = {}
        try:
            packed = []
            for each, (kind, _) in zip(args, self.kernels[kernel], strict=True):
                if isinstance(each, torch.Tensor):
                    storage = each.untyped_storage()
                    key = storage.data_ptr()
                    if key not in memory:
                        memory[key] = _Memory(gpu, storage)
                    value: Argument = memory[key].address + each.data_ptr() - key
                else:
                    value = each
                content = value if isinstance(value, bytes) else struct.pack(f"<{kind}", value)
                packed.append(ctypes.create_string_buffer(content, len(content)))
            array = (ctypes.c_void_p * len(packed))(*map(ctypes.addressof, packed))
            gpu.checked("cuMemsetD8", refused, 0, 8)
            given = (*extents, 0, ctypes.addressof(array), 0)
            gpu.checked("cuLaunchKernel", function, *given)
            gpu.checked("cuCtxSynchronize")
            text = ctypes.c_uint64()
            gpu.checked("cuMemcpyDtoH", ctypes.addressof(text), refused, 8)
            if text.value:
                what = ctypes.create_string_buffer(_LONGEST_TEXT)
                gpu.checked("cuMemcpyDtoH", ctypes.addressof(what), text.value, _LONGEST_TEXT)
                raise SimtError(f"{kernel}: assertion failed: {what.value.decode()}")
            for each, (_, is_written) in zip(args, self.kernels[kernel], strict=True):
                if isinstance(each, torch.Tensor):
                    own = memory[each.untyped_storage().data_ptr()]
                    if not own.has_whole_guards():
                        raise SimtError(f"{kernel}: wrote outside of a tensor")
                    if is_written:
                        own.copy_back()
        finally:
            for each in memory.values():
                each.free()

    def _function(self, kernel: str, shared_bytes: int) -> tuple[Any, int]:
        """A function in the current context, and where it notes that it refused."""
        gpu = self._gpu
        if self._generation != gpu.generation:
            self._module = gpu.driver.load(self._cubin, kernel)
            self._generation = gpu.generation
        function = gpu.driver.function(self._module, kernel, kernel)
        if shared_bytes:
            gpu.driver.allow_shared(function, gpu.most_shared, kernel)
        found = gpu.functions.cuModuleGetGlobal(self._module, _REFUSED.encode())
        return function, int(gpu.driver.checked("cuModuleGetGlobal", found))


def _parameters(text: str) -> list[str]:
    """The declarations of a kernel's parameters, without comments."""
    plain = re.sub(r"//.*", "", text)
    return [each.strip() for each in plain.split(",") if each.strip()]


def _format(declaration: str, own: dict[str, str]) -> tuple[str, bool]:
    """How a parameter is packed, and whether it points at what a kernel may write."""
    if "*" in declaration:
        return "Q", not declaration.startswith("const ")
    kind = declaration.removeprefix("const ").split()[0]
    return {**_FORMATS, **own}.get(kind, ""), False  # a struct comes as its bytes


@functools.lru_cache(maxsize=512)
def _compile_and_load(cuda_text: str, counted: bool = False) -> GpuModule:
    """In place of the emulator's: a text is compiled once."""
    assert not counted, "a GPU counts nothing"
    return GpuModule(cuda_text)


@contextmanager
def launched_on_gpu() -> Iterator[None]:
    """While it lasts, what the emulator would run is launched on the first GPU."""
    with pytest.MonkeyPatch.context() as patch:
        emulator = "pyfuser.devices.cuda.emulator"
        for module in (f"{emulator}.runtime", f"{emulator}.harness", "tests.cuda.emulate"):
            patch.setattr(importlib.import_module(module), "compile_and_load", _compile_and_load)
        yield
