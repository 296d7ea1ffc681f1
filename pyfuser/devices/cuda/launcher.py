"""What a plan calls to launch one function on a GPU: numbers -> parameters in memory -> the driver.

    launch(grid x, y, z, block x, y, z, bytes of shared memory, *arguments)

Everything that doesn't depend on the call is prepared: the function, the format of its parameters,
and memory for them with the array of their addresses that cuLaunchKernel takes.  A call packs the
arguments, reads torch's current stream and launches; it allocates, loads and waits for nothing, so
it can be captured into a CUDA graph.

No stream is recorded for any tensor.  torch's allocator hands out memory for the stream that is
current when a plan allocates, the plan launches on this same stream, and memory freed after a
launch is reused in the order of that stream; so outputs and scratch memory never cross streams.
For the inputs of a call from another stream its caller is responsible, as for every torch op.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ...dtypes import DataType
from ...errors import DeviceError, UnsupportedError, expected
from ...ir.kernel import Buffer, ScalarParameter
from ...ir.scalars import Symbol
from ...target.target import Limits
from .codegen import Counters, Geometry, Launch, Parameter, SeedAddress
from .driver import Driver
from .modules import LoadedModule

# How Python's struct packs a parameter; offsets are those of C's natural alignment.
_FORMATS = {
    DataType.Double: "d",
    DataType.Float: "f",
    DataType.Half: "e",
    DataType.BFloat16: "H",  # `bfloat16_bits`
    DataType.Int: "q",
    DataType.Index: "q",
    DataType.Int32: "i",
    DataType.Int16: "h",
    DataType.Int8: "b",
    DataType.UInt8: "B",
    DataType.UInt64: "Q",
    DataType.Bool: "?",
}

Call = Callable[..., None]


class ParameterLayout:
    """Where the parameters of a function are in a block of memory."""

    def __init__(self, launch: Launch) -> None:
        formats = [_format(parameter, launch.index_bits) for parameter in launch.parameters]
        self.format = "@" + "".join(formats)
        self.bytes = struct.calcsize(self.format)
        self.offsets = []
        for count, each in enumerate(formats, start=1):
            end = struct.calcsize(self.format[: 1 + count])
            self.offsets.append(end - struct.calcsize(each))

    def block(self) -> tuple[Any, int, Any]:
        """(memory for the parameters, the address of the array of their addresses, the array)."""
        memory = ctypes.create_string_buffer(max(self.bytes, 1))
        base = ctypes.addressof(memory)
        array = (ctypes.c_void_p * len(self.offsets))(*(base + each for each in self.offsets))
        return memory, ctypes.addressof(array), array

    def check(self, launch: Launch, limits: Limits) -> None:
        """UnsupportedError if there are more parameters than a launch can have."""
        most = limits.parameter_bytes
        if self.bytes > most:
            what = f"at most {most} bytes of parameters"
            tensors = sum(isinstance(each, Buffer) for each in launch.parameters)
            ends = zip(launch.parameters, [*self.offsets[1:], self.bytes], strict=True)
            too_many = next(each for each, end in ends if end > most)
            got = (
                f"{self.bytes}, of which {tensors} tensors; {_name(too_many)} is the first too many"
            )
            raise UnsupportedError(expected(launch.subject(), what, got))


def _format(parameter: Parameter, index_bits: int) -> str:
    match parameter:
        case Buffer() | Counters() | SeedAddress():
            return "Q"
        case Symbol():
            return "i" if index_bits == 32 else "q"
        case ScalarParameter():
            return _FORMATS[parameter.dtype]


def _name(parameter: Parameter) -> str:
    match parameter:
        case Counters():
            return "the counters"
        case SeedAddress(seed=seed):
            return seed.name
        case _:
            return parameter.name


def bfloat16_bits(value: float) -> int:
    """The bits of a number that is a bfloat16."""
    bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    return bits >> 16


@dataclass(frozen=True, slots=True, eq=False)
class LoadedFunction:
    """A function in a GPU's context; `handle` is the driver's.  It keeps its module loaded."""

    driver: Driver
    device: torch.device
    context: Any
    module: LoadedModule
    handle: Any
    launch: Launch
    limits: Limits

    def grid_within(
        self, grid: tuple[int, ...], block: tuple[int, ...], shared_bytes: int
    ) -> tuple[int, ...]:
        """The blocks to launch; ScheduleError, which names tensors and GPU, if they can't be."""
        subject = self.launch.subject(self.device)
        geometry = Geometry(grid, block, shared_bytes, self.launch.goes_on_along_z)
        return geometry.within(self.limits, subject).grid

    def launch_in_context(self, given: tuple[Any, ...]) -> Any:
        """cuLaunchKernel for a thread that has another context, or none; the status."""
        with self.driver.current(self.context):
            return self.driver.functions.cuLaunchKernel(*given)[0]

    def error(self, status: Any) -> DeviceError:
        """The error of a launch with this status."""
        operation = f"launching {self.launch.function} on {self.device}"
        return self.driver.error(operation, status)


def launcher(
    function: LoadedFunction,
    current_device: Callable[[], int],
    current_stream: Callable[[int], int],
    is_capturing: Callable[[], bool],
) -> Call:
    """What a plan calls to launch a function; see the module."""
    layout, limits = ParameterLayout(function.launch), function.limits
    functions, handle = function.driver.functions, function.handle
    pack, launch_kernel = struct.Struct(layout.format).pack_into, functions.cuLaunchKernel
    wrong_context = functions.CUresult.CUDA_ERROR_INVALID_HANDLE
    without_context = (functions.CUresult.CUDA_ERROR_INVALID_CONTEXT, wrong_context)
    ordinal, most_shared, most_threads = function.device.index, limits.shared_bytes, limits.threads
    (most_x, most_y, most_z), most_deep = limits.grid, limits.block[2]
    # A call takes a block of memory, so that concurrent ones don't share it.
    free = [layout.block()]

    def call(
        x: int, y: int, z: int, width: int, height: int, depth: int, shared: int, *arguments: Any
    ) -> None:
        threads = width * height * depth
        if not (x and y and z and threads):
            return  # nothing to compute
        if (x > most_x or y > most_y or z > most_z or shared > most_shared) or (
            threads > most_threads or depth > most_deep
        ):
            x, y, z = function.grid_within((x, y, z), (width, height, depth), shared)
        try:
            block = free.pop()
        except IndexError:
            block = layout.block()
        memory, addresses, _ = block
        pack(memory, 0, *arguments)
        stream = current_stream(ordinal)
        if stream and is_capturing():  # never on the default stream
            function.module.keep()
        given = (handle, x, y, z, width, height, depth, shared, stream, addresses, 0)
        # A thread's context is that of its current device.  One that hasn't used CUDA yet has none;
        # the driver says so, and nothing has been launched.
        is_current = current_device() == ordinal
        status = launch_kernel(*given)[0] if is_current else wrong_context
        if status in without_context:
            status = function.launch_in_context(given)
        free.append(block)
        if status:
            raise function.error(status)

    return call
