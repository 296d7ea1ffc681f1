"""Runs CUDA C++ text on a machine with no GPU: text -> shared object -> launches on torch tensors.

`compile_and_load` compiles the text with the host's g++ against simt.h and links it with
simt_runtime.cpp, which simulates threads, blocks, shared memory, barriers and warps.  A launch
takes its arguments as cuLaunchKernel does (a pointer array) and raises `SimtError` if the kernel
accesses memory outside its tensors, races in shared memory, or diverges at a barrier.  Invariant:
the text is the text that NVRTC compiles; two constructs are respelled that C++ macros can't
express: `extern __shared__`, and `__restrict__` of what a kernel only reads, by which the compiler
drops the loads that NVRTC drops.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from ....errors import UnsupportedError, expected
from ..device_helpers import KERNEL_FILE_NAME
from . import operations
from .counters import BufferCounts, Counts
from .shared_objects import SharedObject

_FOLDER = Path(__file__).parent
_SOURCES = (
    *("simt.h", "simt_interface.h", "simt_math.h", "simt_counters.h", "simt_touched.h"),
    *("simt_cache.h", "simt_races.h", "simt_handlers.h", "simt_runtime.cpp"),
)
_FLAGS = (
    "-std=gnu++17",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-exceptions",
)
# Compiled once; it runs for each access of a thread.  A handler must not call one of the same text:
# it would be that one's caller.
_RUNTIME_FLAGS = ("-O2", "-g0", "-fno-ipa-icf")
_KERNEL_FLAGS = (
    *("-O1", "-g1"),
    # As on the device: memory is bytes, no contraction to fused multiply-add.
    *(
        "-fno-strict-aliasing",
        "-ffp-contract=off",
        "-U_FORTIFY_SOURCE",
        "-w",
    ),
    # The load or store of a vector stays one access.
    "-fno-tree-sra",
)
# Left out are optimisations that take a fifth of the time to compile, and save none: a kernel's
# time is that of its handlers.  Those that drop loads, as NVRTC does, stay.
_FASTER_COMPILATION = (
    *("-fno-tree-loop-optimize", "-fno-move-loop-invariants", "-fno-tree-ch", "-fno-ivopts"),
    *("-fno-tree-dominator-opts", "-fno-tree-ter", "-fno-tree-slsr", "-fno-ssa-phiopt"),
    *("-fno-if-conversion", "-fno-if-conversion2", "-fno-forward-propagate"),
    *("-fno-reorder-blocks", "-fno-guess-branch-probability", "-fno-shrink-wrap"),
    *("-fno-cprop-registers", "-fno-combine-stack-adjustments", "-fno-compare-elim"),
    *("-fno-split-wide-types", "-fira-algorithm=priority", "-fira-region=one"),
)
# Instrumentation only: the handlers are simt_handlers.h's, not the sanitizers' own.
_THREAD_FLAGS = ("-fwrapv", "-fsanitize=thread,integer-divide-by-zero")
_CHECK_FLAGS = (*_FASTER_COMPILATION, *_THREAD_FLAGS, "-fsanitize=bounds,alignment")
# Tells of each basic block; the checks of arrays would be counted as operations.
_COUNT_FLAGS = (*_THREAD_FLAGS, "-fsanitize-coverage=trace-pc")
# All checks that there are, with AddressSanitizer's runtime in the process.
_SANITIZER_FLAGS = (
    *_FASTER_COMPILATION,
    *("-fsanitize=address,undefined", "-fno-sanitize=vptr", "-fsanitize-recover=address"),
    "--param=asan-instrumentation-with-call-threshold=0",
    "--param=asan-use-after-return=0",
)
# The linker reads no shared library, which would take longer than all else that it does:
# shared_objects.py has them in the process before the shared object.
_LINK_FLAGS = ("-shared", "-nodefaultlibs")
# A launch that may access more than this runs without AddressSanitizer: its memory would be copied.
_MOST_RESTORED = 1 << 30
# Accesses after which a sample of blocks has told enough: some seconds.
_ENOUGH_ACCESSES = 1 << 19
_MOST_THREADS = 1024
_MOST_GRID = (2**31 - 1, 65535, 65535)

_BOUNDS = r"(?:(?:__launch_bounds__|__maxnreg__)\s*\([^)]*\)\s*)?"
_KERNEL = re.compile(rf"__global__\s+{_BOUNDS}void\s+{_BOUNDS}(\w+)\s*\(")
_DYNAMIC_SHARED = re.compile(
    r"extern\s+(?:__align__\s*\(\s*\d+\s*\)\s*|alignas\s*\(\s*\d+\s*\)\s*)?__shared__\s+"
    r"(?:__align__\s*\(\s*\d+\s*\)\s*|alignas\s*\(\s*\d+\s*\)\s*)?([\w:<>, ]+?)\s+(\w+)\s*\[\s*\]"
)
_READ_ONLY = re.compile(r"(const [\w:]+\s*\*)\s*__restrict__")

Argument = torch.Tensor | int | float | bool | bytes


class SimtError(Exception):
    """A kernel did what CUDA doesn't allow, or couldn't be launched; the message says where."""


class _Request(ctypes.Structure):
    """One launch; the same fields as simt::Request in simt.h."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint64),
        ("seed", ctypes.c_uint64),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("buffer_count", ctypes.c_uint64),
        ("buffer_starts", ctypes.POINTER(ctypes.c_uint64)),
        ("buffer_bytes", ctypes.POINTER(ctypes.c_uint64)),
        ("message", ctypes.c_char_p),
        ("message_bytes", ctypes.c_uint64),
        ("program_counters", ctypes.POINTER(ctypes.c_uint64)),
        ("counts", ctypes.POINTER(Counts)),
        ("scratch_count", ctypes.c_uint64),
        ("most_blocks", ctypes.c_uint64),
        ("cache_sectors", ctypes.c_uint64),
        ("enough_accesses", ctypes.c_uint64),
        ("buffer_counts", ctypes.POINTER(BufferCounts)),
        ("checks_order", ctypes.c_uint64),
    )


class Module:
    """The kernels of one text, ready to launch.

    `counted`: launches can be counted.  `sanitized`: the same kernels with AddressSanitizer and
    UndefinedBehaviorSanitizer; each launch runs them first, on the same memory.
    """

    def __init__(
        self,
        path: Path,
        kernels: Sequence[str],
        counted: bool = False,
        sanitized: Module | None = None,
        checks_order: bool = True,
    ) -> None:
        self._path = path
        self._counted, self._sanitized, self._checks_order = counted, sanitized, checks_order
        try:
            self._shared_object = SharedObject.of(path)
        except OSError as error:
            raise SimtError(f"compile_and_load: {error}") from error
        self.kernels = tuple(kernels)

    def signature(self, kernel: str) -> list[tuple[str, int]]:
        """A letter (pointer, floating, integer, struct) and a size in bytes, per parameter."""
        # Its accesses are watched as those of a launch are.
        with self._shared_object.functions() as functions:
            describe = functions[f"simt_signature_{kernel}"]
            describe.restype = ctypes.c_char_p
            text = describe().decode()
        return [(word[:1], int(word[1:])) for word in text.split()]

    def launch(
        self,
        kernel: str,
        grid: Sequence[int] | int,
        block: Sequence[int] | int,
        shared_bytes: int,
        args: Sequence[Argument],
        *,
        seed: int = 0,
        buffers: Sequence[torch.Tensor] = (),
        counts: Counts | None = None,
        scratch: Sequence[torch.Tensor] = (),
        most_blocks: int = 0,
        cache_sectors: int = 0,
    ) -> None:
        """Runs the kernel over the grid, and returns when it is done.

        `args`: tensors for pointers (their whole storage may be accessed) or 0 for null, ints,
        floats and bools for scalars, bytes for structs.  `buffers`: tensors that structs point
        into.  `seed`: 0 runs threads and blocks in ascending order between barriers, others in a
        shuffled one.  `counts`: filled in if given.  `scratch`: those of the arguments whose bytes
        don't count as needed.  `most_blocks`: runs only so many blocks, spread over the grid, or
        fewer that make many accesses; looks for no races; 0 runs all.  `cache_sectors`: of the
        second cache, for each block; 0: what is in it isn't counted.
        """
        if kernel not in self.kernels:
            raise SimtError(f"launch: expected one of {self.kernels}, got {kernel}")
        _check_geometry(_three(grid), _three(block), shared_bytes)
        packed = _pack(self.signature(kernel), args)
        tensors = [a for a in args if isinstance(a, torch.Tensor)] + list(buffers)
        arguments = (ctypes.c_void_p * len(packed))(*map(ctypes.addressof, packed))
        self.launch_packed(
            kernel,
            grid,
            block,
            shared_bytes,
            ctypes.addressof(arguments),
            _memory([t for t in tensors if all(t is not each for each in scratch)]),
            seed=seed,
            counts=counts,
            scratch=_memory(scratch),
            most_blocks=most_blocks,
            cache_sectors=cache_sectors,
        )

    def launch_packed(
        self,
        kernel: str,
        grid: Sequence[int] | int,
        block: Sequence[int] | int,
        shared_bytes: int,
        arguments: int,
        memory: Sequence[tuple[int, int]],
        *,
        seed: int = 0,
        counts: Counts | None = None,
        scratch: Sequence[tuple[int, int]] = (),
        most_blocks: int = 0,
        cache_sectors: int = 0,
    ) -> None:
        """`launch` with the address of an array of the parameters' addresses.

        `memory`: first address and bytes of everything that the kernel may access,
        with `scratch`.
        """
        sizes = _three(grid), _three(block)
        _check_geometry(sizes[0], sizes[1], shared_bytes)
        if counts is not None and not self._counted:
            raise SimtError("launch: expected a text compiled with counted=True, got counts alone")
        memory = [*memory, *scratch]
        if self._sanitized is not None and sum(size for _, size in memory) <= _MOST_RESTORED:
            with _restored(memory):
                self._sanitized.launch_packed(
                    kernel, grid, block, shared_bytes, arguments, memory, seed=seed
                )
        count = len(memory)
        of_buffers = (BufferCounts * count)(*(BufferCounts(bytes=size) for _, size in memory))
        message = ctypes.create_string_buffer(1024)
        counters = (ctypes.c_uint64 * 2)()
        request = _Request(
            grid=(ctypes.c_uint * 3)(*sizes[0]),
            block=(ctypes.c_uint * 3)(*sizes[1]),
            shared_bytes=shared_bytes,
            seed=seed,
            arguments=ctypes.cast(arguments, ctypes.POINTER(ctypes.c_void_p)),
            buffer_count=count,
            buffer_starts=(ctypes.c_uint64 * count)(*(start for start, _ in memory)),
            buffer_bytes=(ctypes.c_uint64 * count)(*(size for _, size in memory)),
            message=ctypes.cast(message, ctypes.c_char_p),
            message_bytes=len(message),
            program_counters=counters,
            counts=None if counts is None else ctypes.pointer(counts),
            scratch_count=len(scratch),
            most_blocks=most_blocks,
            cache_sectors=cache_sectors,
            enough_accesses=_ENOUGH_ACCESSES,
            buffer_counts=of_buffers,
            checks_order=self._checks_order and not most_blocks,
        )
        with self._shared_object.functions() as functions:
            failed = functions[f"simt_launch_{kernel}"](ctypes.byref(request))
        if failed:
            where = _where(self._path, [each for each in counters if each])
            raise SimtError(f"{kernel}{where}: {message.value.decode()}")
        if counts is not None:
            counts.buffers = tuple(of_buffers)


def require_host_compiler() -> None:
    """UnsupportedError if this machine can't compile kernels for itself."""
    if (found := platform.system()) != "Linux":
        raise UnsupportedError(expected("emulator", "Linux", found))
    if shutil.which("g++") is None:
        hint = "install GCC (`apt install g++`)"
        raise UnsupportedError(
            expected("emulator", "g++, which compiles the kernels for this machine", "none", hint)
        )


@functools.cache
def has_address_sanitizer() -> bool:
    """True if this process was started with AddressSanitizer's runtime (LD_PRELOAD)."""
    return hasattr(ctypes.CDLL(None), "__asan_region_is_poisoned")


@functools.lru_cache(maxsize=256)
def compile_and_load(cuda_text: str, counted: bool = False) -> Module:
    """Compiles CUDA C++ text and loads it; SimtError with the compiler's log if it doesn't compile.

    `counted`: its launches can be counted; indices of arrays and alignment aren't checked.
    UnsupportedError without g++.  Shared objects are kept for the process, and in the temporary
    folder across processes.
    """
    require_host_compiler()
    kernels = _KERNEL.findall(cuda_text)
    if not kernels:
        raise SimtError("compile_and_load: expected a __global__ void function, got none")
    text = host_text(cuda_text)
    path = _shared_object(text, _COUNT_FLAGS if counted else _CHECK_FLAGS)
    if counted or not has_address_sanitizer():
        return Module(path, kernels, counted)
    sanitized = Module(_shared_object(text, _SANITIZER_FLAGS), kernels, checks_order=False)
    return Module(path, kernels, sanitized=sanitized)


def _shared_object(text: str, checks: Sequence[str]) -> Path:
    """Compiles and links the host's text, unless that has been done."""
    object_path = _runtime_object()
    flags = (*_KERNEL_FLAGS, *checks)
    digest = _digest(text, *flags, *_LINK_FLAGS, object_path.name, operations.VERSION)
    path = _build_folder() / f"kernel_{digest}.so"
    if path.exists():
        return path
    with tempfile.TemporaryDirectory(dir=_build_folder()) as folder:
        source, assembly = Path(folder) / "kernel.cu", Path(folder) / "kernel.s"
        source.write_text(text)
        given: tuple[str, ...] = (*flags, "-x", "c++", str(source), "-x", "none")
        if checks is _COUNT_FLAGS:
            _compile(*given, "-S", output=assembly)
            assembly.write_text(operations.with_block_table(assembly.read_text()))
            given = (*_KERNEL_FLAGS, str(assembly))
        _compile(*_LINK_FLAGS, *given, str(object_path), "-lgcc", output=path)
    return path


@contextmanager
def _restored(memory: Sequence[tuple[int, int]]) -> Iterator[None]:
    """Memory (addresses and bytes) has its contents again at the end."""
    before = [ctypes.string_at(start, size) for start, size in memory]
    yield
    for (start, _), content in zip(memory, before, strict=True):
        ctypes.memmove(start, content, len(content))


def host_text(cuda_text: str) -> str:
    """The text the host compiler gets: lines are those of `cuda_text`, exports follow it."""
    respelled = _DYNAMIC_SHARED.sub(r"\1* const \2 = simt::dynamic_shared<\1>()", cuda_text)
    respelled = _READ_ONLY.sub(r"\1 __restrict", respelled)
    exports = "\n".join(f"SIMT_EXPORT({name})" for name in _KERNEL.findall(cuda_text))
    start = f'#include "simt.h"\n#line 1 "{KERNEL_FILE_NAME}"\n'
    return f'{start}{respelled}\n#line 1 "exports"\n{exports}\n'


def _build_folder() -> Path:
    # One folder per user, not readable by others: code is loaded from it.
    folder = Path(tempfile.gettempdir()) / f"pyfuser_simt_{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


@functools.cache
def _runtime_object() -> Path:
    sources = [(_FOLDER / name).read_text() for name in _SOURCES]
    path = _build_folder() / f"runtime_{_digest(*sources, *_FLAGS, *_RUNTIME_FLAGS)}.o"
    if not path.exists():
        _compile(*_RUNTIME_FLAGS, "-c", str(_FOLDER / "simt_runtime.cpp"), output=path)
    return path


def _compile(*arguments: str, output: Path) -> None:
    """Runs g++; the result appears under its name only when it is whole."""
    with tempfile.TemporaryDirectory(dir=_build_folder()) as folder:
        partial = Path(folder) / output.name
        command = ["g++", *_FLAGS, f"-I{_FOLDER}", *arguments, "-o", str(partial)]
        result = _run(command)
        if result.returncode:
            raise SimtError(f"compile_and_load: g++ failed\n{result.stderr}")
        partial.replace(output)


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Runs a tool without the sanitizer that this process may have been started with."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:24]


def _where(library: Path, addresses: Sequence[int]) -> str:
    """` at kernel.cu:12` for addresses in the shared object, from the inside; empty if unknown.

    The line of a helper is followed by the kernel's: ` at helpers.cuh:5, called at kernel.cu:9`.
    """
    lines = [line for address in addresses for line in _source_lines(library, address)]
    if not lines:
        return ""
    inner = next((line for line in lines if not line.startswith("simt")), lines[0])
    outer = next((line for line in lines if line.startswith(KERNEL_FILE_NAME)), inner)
    return f" at {inner}" if inner == outer else f" at {inner}, called at {outer}"


def _source_lines(library: Path, address: int) -> list[str]:
    """`kernel.cu:12` for an address, and for the calls that were inlined there."""
    if shutil.which("addr2line") is None:
        return []
    # The address is the check's return address: one less is in the line of the access.
    command = ["addr2line", "-i", "-e", str(library), hex(address - 1)]
    found = _run(command).stdout
    return re.findall(r"^(?:.*/)?([^/:]+:\d+)", found, re.MULTILINE)


def _three(size: Sequence[int] | int) -> tuple[int, ...]:
    given = (size,) if isinstance(size, int) else tuple(size)
    return given + (1,) * (3 - len(given))


def _check_geometry(grid: Sequence[int], block: Sequence[int], shared_bytes: int) -> None:
    threads = block[0] * block[1] * block[2]
    if not 0 < threads <= _MOST_THREADS or block[2] > 64:
        raise SimtError(f"launch: expected a block of 1 to {_MOST_THREADS} threads, got {block}")
    if not all(0 < size <= most for size, most in zip(grid, _MOST_GRID, strict=True)):
        raise SimtError(f"launch: expected a grid of 1 to {_MOST_GRID} blocks, got {grid}")
    if not 0 <= shared_bytes <= 227 * 1024:
        raise SimtError(f"launch: expected 0 to 227 KiB of shared memory, got {shared_bytes} bytes")


def _memory(tensors: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    """First address and bytes of the tensors' storages."""
    return [(s.data_ptr(), s.nbytes()) for s in (t.untyped_storage() for t in tensors)]


def _pack(
    signature: Sequence[tuple[str, int]], args: Sequence[Argument]
) -> list[ctypes.Array[ctypes.c_char]]:
    if len(signature) != len(args):
        raise SimtError(f"launch: expected {len(signature)} arguments, got {len(args)}")
    packed = []
    for index, ((kind, size), value) in enumerate(zip(signature, args, strict=True)):
        content = _argument_bytes(kind, size, value)
        if content is None or len(content) != size:
            raise SimtError(
                f"launch: expected argument {index} of kind {kind}{size}, got {value!r}"
            )
        packed.append(ctypes.create_string_buffer(content, size))
    return packed


def _argument_bytes(kind: str, size: int, value: Argument) -> bytes | None:
    """The parameter's bytes, or None if the value isn't of its kind."""
    match kind, value:
        case "p", torch.Tensor():
            return struct.pack("<Q", value.data_ptr())
        case "p", 0:
            return bytes(size)
        case "f", bool() | int() | float():
            return struct.pack("<f" if size == 4 else "<d", value)
        case "i", bool() | int():
            return (int(value) % (1 << 8 * size)).to_bytes(size, "little")
        case "s", bytes():
            return value
    return None
