"""Tensors whose memory comes from a caching pool, so that an output is written into warm pages.

`pool().empty_strided(shape, stride, dtype)` is torch.empty_strided for kernel outputs and scratch
memory; `shape` and `stride` are tuples of ints, in elements. Big blocks (>= THRESHOLD_BYTES) are
cut from one range of addresses, with huge pages if the system has them. They return to the pool
when the last tensor on the storage dies, in any thread and also while the interpreter exits. Small
blocks come from malloc, whose memory is warm anyway. The result is an ordinary tensor, not a view;
only its storage can't grow (`resize_` beyond it raises torch's error).

Free memory is joined with its neighbours and split for the next block (native/memory_runs.ll), so
memory that a training step frees in one size is reused in another. In steps of seven models the
pool held 1 to 9 % more than was in use at the peak (29 % where the peak was 6 MiB, because huge
pages are kept whole); free lists by size had held 17 to 55 % more. After the first step none needed
new memory.

Measured on a Zen 4: an allocation takes 0.5-0.6 us, big or small; torch.empty_strided takes 0.9 us.
Filling 64 MiB on two threads takes 8 ms in the pool's memory and 21 ms in fresh memory from torch.

Invariants: free bytes <= the limit (PYFUSER_POOL_BYTES, else min(1/8 of the memory, 1 GiB)); a
block is at most a granule (16 KiB) bigger than requested; an address belongs to one block or one
free run; bytes mapped = bytes in use + bytes free and warm. When the limit is reached, the least
recently used memory returns to the system. The fast path and the release are native code
(native/memory_pool.ll), because a release may come without the GIL; getting memory and eviction,
which wait for the system anyway, are Python.

The fast path runs no Python frame. If the frames of a call happen to end near the end of a chunk of
CPython's frame stack, every further frame maps a chunk and unmaps it again, which takes some 100 us
in a process of two threads: a training step of a LeViT did this 60 times.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import resource
import sys
import threading
from typing import Any

import torch
import torch.utils.dlpack

from ...memory import MemoryStats, register_pool
from ...options import pool_bytes
from ..tensor_memory import EmptyStrided
from .jit import CompiledModule, compile_module
from .native_function import native_function
from .native_text import native_text

# The pool is faster from here on: the median of allocate, fill, free in us, pool against
# torch.empty, was 2.8 / 3.0 at 64 KiB, 4.3 / 4.7 at 256 KiB, 8.3 / 10.2 at 1 MiB, 96 / 273 at 16
# MiB, and 8.0 / 20.8 ms at 64 MiB. Below it malloc keeps its memory warm, and shares it with all
# other users.
THRESHOLD_BYTES = 256 << 10
HUGE_PAGE_BYTES = 2 << 20
# Blocks begin and end at multiples of it: whole pages nearly everywhere, at most 6 % of a block.
GRANULE_BITS = 14
GRANULE_BYTES = 1 << GRANULE_BITS
# 8 classes for each power of two up to 2**47 bytes, the address space of x86-64 and AArch64.
_TOP_CLASS_BITS = 47
_FREE_LISTS = 8 * (_TOP_CLASS_BITS + 1)
_MOST_DIMENSIONS = 32
_HEADER_BYTES = 128
_RECORD_BYTES = _HEADER_BYTES + 16 * _MOST_DIMENSIONS
# mmap's arguments for addresses without memory that replace an existing mapping: PROT_NONE, and
# MAP_FIXED, which Python's mmap module doesn't name and which is 0x10 on Linux, macOS and the BSDs.
_NO_ACCESS = 0
_MAP_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10
_NUMBERS = {
    "THRESHOLD_BYTES": THRESHOLD_BYTES,
    "GRANULE_BITS": GRANULE_BITS,
    "GRANULE_BYTES": GRANULE_BYTES,
    "GRANULE_LESS_1": GRANULE_BYTES - 1,
    "GRANULE_MASK": -GRANULE_BYTES,
    "FREE_LISTS": _FREE_LISTS,
    "ALL_LISTS": 2 * _FREE_LISTS,
    "MOST_COMPARED": 32,  # runs of a class searched for the best fit, the latest first
    "MOST_DIMENSIONS": _MOST_DIMENSIONS,
    "HEADER_BYTES": _HEADER_BYTES,
    "HEADER_AND_63_BYTES": _HEADER_BYTES + 63,
    "RECORD_BYTES": _RECORD_BYTES,
    "MOST_BYTES": 1 << _TOP_CLASS_BITS,
    "NO_ACCESS": _NO_ACCESS,
    "MAP_FLAGS": _MAP_FLAGS,
}

# DLPack's type of each dtype: code, bits, 1 lane, as the four bytes of a DLDataType.
_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6
_DLPACK_TYPES: dict[torch.dtype, int] = {
    dtype: code | bits << 8 | 1 << 16
    for dtype, code, bits in (
        (torch.float64, _FLOAT, 64),
        (torch.float32, _FLOAT, 32),
        (torch.float16, _FLOAT, 16),
        (torch.bfloat16, _BFLOAT, 16),
        (torch.int64, _INT, 64),
        (torch.int32, _INT, 32),
        (torch.int16, _INT, 16),
        (torch.int8, _INT, 8),
        (torch.uint8, _UINT, 8),
        (torch.bool, _BOOL, 8),
        (torch.complex64, _COMPLEX, 64),
        (torch.complex128, _COMPLEX, 128),
    )
}
# What torch.from_dlpack calls once it knows that it was given a capsule.
_from_dlpack: Any = getattr(torch._C, "_from_dlpack", torch.utils.dlpack.from_dlpack)


_WARM, _COLD = 0, 1  # states of a free run
_immortal_modules: list[CompiledModule] = []


def pool_text() -> str:
    """The LLVM IR of `allocate`, `acquire`, `release`, `discard`, and the runs."""
    return native_text("memory_runs", "memory_pool", **_NUMBERS)


class _Counters(ctypes.Structure):
    """The pool's state in native memory, in the order of `@counters` in the text; 8 bytes each.

    `mapped` bytes have memory, in use or free; `cached` are those that are free.
    """

    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in ("lock", "limit", "mapped", "cached", "peak", "allocations", "misses", "clock")
    )


class _Record(ctypes.Structure):
    """What the text calls a record, including the DLManagedTensor that torch reads."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dlpack", ctypes.c_int64 * 7),
        ("next", ctypes.c_void_p),
        ("link", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("released", ctypes.c_int64),
        ("cold", ctypes.c_int64),
    )


class MemoryPool:
    """The pool of this process: `pool()` has the one instance."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        module = compile_module(pool_text(), passes=(), codegen_level=0)
        # Kept forever: a tensor may outlive this object, and its deleter is this module's code.
        _immortal_modules.append(module)
        self.counters = _Counters.from_address(module.address("counters"))
        self.counters.limit = _default_limit()
        self._acquire = native_function(module, "acquire")
        self.empty_strided: EmptyStrided = native_function(
            module, "allocate", (self._allocated, _from_dlpack, _DLPACK_TYPES)
        )
        self._carve = _gil_function(
            module, "carve", ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
        )
        self._oldest = _gil_function(module, "oldest", ctypes.c_void_p, ctypes.c_int64)
        self._put = _gil_function(module, "put", None, ctypes.c_void_p, ctypes.c_int64)
        self._discard = _gil_function(module, "discard", None, ctypes.c_void_p)
        self._reserve(module)
        _keep_whole_at_fork(module)

    def _allocated(
        self, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        """The slow path of `empty_strided`, without a warm run: gets memory, or asks torch.

        If the system has no memory left, the cache is emptied and torch asked, which raises
        RuntimeError with the number of bytes.
        """
        code = _DLPACK_TYPES.get(dtype)
        answer = None if code is None else self._acquire(shape, stride, code)
        while type(answer) is int:  # no room for `answer` bytes
            answer = self._acquire(shape, stride, code) if self._grow(answer) else None
        if answer is None:  # no elements, no memory, or a shape or dtype for torch
            return torch.empty_strided(shape, stride, dtype=dtype)
        tensor: torch.Tensor = _from_dlpack(answer)
        return tensor

    def empty_cache(self) -> None:
        """Give every free block back to the system."""
        with self._lock:
            self._shrink(0)

    def stats(self) -> MemoryStats:
        """What the pool holds now; blocks below THRESHOLD_BYTES are malloc's and not counted."""
        counters = self.counters
        return MemoryStats(
            in_use=counters.mapped - counters.cached,
            cached=counters.cached,
            peak=counters.peak,
            hits=counters.allocations - counters.misses,
            misses=counters.misses,
            limit=counters.limit,
        )

    def reset_after_fork(self) -> None:
        """In a forked child: no other thread is left that could hold the lock."""
        self._lock = threading.Lock()

    def _reserve(self, module: CompiledModule) -> None:
        """Takes the range of addresses, as one cold run, without any memory yet."""
        size, base = _range_bytes(), None
        while size >= HUGE_PAGE_BYTES and base is None:
            base = _map(size, _NO_ACCESS)
            size = size if base else size // 2 & -HUGE_PAGE_BYTES
        cells = size // GRANULE_BYTES + 2
        table = _map(ctypes.sizeof(ctypes.c_void_p) * cells, mmap.PROT_READ | mmap.PROT_WRITE)
        if base is None or table is None:
            return  # without free runs: torch allocates
        ctypes.c_int64.from_address(module.address("base")).value = base
        ctypes.c_void_p.from_address(module.address("table")).value = table
        address = _libc().calloc(1, _RECORD_BYTES)
        record = _Record.from_address(address)
        record.data, record.size = base, size
        self.counters.mapped = self.counters.cached = size  # `put` subtracts it again
        self._put(address, _COLD)

    def _grow(self, size: int) -> bool:
        """Gets memory for a free run of `size` bytes.  False if there is none."""
        with self._lock:
            # It will return to the free runs later: make room for it, evicting the oldest first.
            self._shrink(max(0, self.counters.limit - size))
            if self._warm(size):
                return True
            self._shrink(0)
            return self._warm(size)

    def _warm(self, size: int) -> bool:
        """Makes a cold run warm, so that together with its neighbours it has `size` bytes."""
        # The system gives whole huge pages: the rest of one may be kept for others.
        may_keep = self.counters.limit - self.counters.cached >= HUGE_PAGE_BYTES
        address = self._carve(size, HUGE_PAGE_BYTES if may_keep else GRANULE_BYTES)
        if not address:
            return False
        record = _Record.from_address(address)
        given = _make_usable(record.data, record.size)
        self._put(address, _WARM if given else _COLD)
        return given

    def _shrink(self, target: int) -> None:
        """Gives free memory back, the longest unused first, until at most `target` bytes remain."""
        while (surplus := self.counters.cached - target) > 0:
            address = self._oldest(-(-surplus // GRANULE_BYTES) * GRANULE_BYTES)
            if not address:  # another thread has taken it
                return
            self._discard(address)
            self._put(address, _COLD)


@functools.cache
def pool() -> MemoryPool:
    """The process's pool; made at the first allocation, because that compiles its native part."""
    made = MemoryPool()
    register_pool("cpu", made.empty_cache, made.stats)
    return made


def _gil_function(module: CompiledModule, name: str, result: Any, *arguments: Any) -> Any:
    """A ctypes function that keeps the GIL: these take well under a microsecond."""
    return ctypes.PYFUNCTYPE(result, *arguments)(module.address(name))


def _default_limit() -> int:
    """Most free bytes that the pool keeps, from the environment or from the machine's memory."""
    configured = pool_bytes()
    if configured is not None:
        return configured
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(memory // 8, 1 << 30)


def _range_bytes() -> int:
    """Addresses to reserve: twice the memory, to allow for gaps; at most a quarter of any limit."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    size = min(2 * memory, 1 << _TOP_CLASS_BITS - 1)
    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    if allowed != resource.RLIM_INFINITY:
        size = min(size, allowed // 4)
    return size & -HUGE_PAGE_BYTES


@functools.cache
def _libc() -> Any:
    """mmap, munmap, mprotect, madvise and calloc with their C types."""
    libc = ctypes.CDLL(None, use_errno=True)
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.argtypes = (pointer, size, number, number, number, ctypes.c_int64)
    libc.mmap.restype = pointer
    libc.munmap.argtypes = (pointer, size)
    libc.mprotect.argtypes = (pointer, size, number)
    libc.madvise.argtypes = (pointer, size, number)
    libc.calloc.argtypes = (size, size)
    libc.calloc.restype = pointer
    return libc


def _map(size: int, protection: int) -> int | None:
    """Address of `size` new bytes, or None; aligned to huge pages."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = _libc().mmap(None, size + HUGE_PAGE_BYTES, protection, flags, -1, 0)
    if address == ctypes.c_void_p(-1).value:
        return None
    assert isinstance(address, int)
    before = -address % HUGE_PAGE_BYTES
    if before:
        _libc().munmap(address, before)
    if before < HUGE_PAGE_BYTES:
        _libc().munmap(address + before + size, HUGE_PAGE_BYTES - before)
    return address + before


def _make_usable(address: int, size: int) -> bool:
    """Makes addresses of the range readable and writable.  False if the system refuses."""
    usable: bool = _libc().mprotect(address, size, mmap.PROT_READ | mmap.PROT_WRITE) == 0
    if usable and hasattr(mmap, "MADV_HUGEPAGE"):
        # Discarding has reset this.  It may fail on a system without huge pages, which is fine.
        _libc().madvise(address, size, mmap.MADV_HUGEPAGE)
    return usable


def _keep_whole_at_fork(module: CompiledModule) -> None:
    """Holds the native lock during a fork, so that the child finds no run half moved.

    os.register_at_fork won't do: between its function and the fork another thread may get the GIL
    and wait for the lock while holding it.
    """
    lock, unlock = (ctypes.c_void_p(module.address(name)) for name in ("lock", "unlock"))
    if hasattr(_libc(), "pthread_atfork"):
        _libc().pthread_atfork(lock, unlock, unlock)
    elif hasattr(_libc(), "__register_atfork"):  # glibc's, used by its static pthread_atfork
        _libc().__register_atfork(lock, unlock, unlock, None)


def _after_fork_in_child() -> None:
    if pool.cache_info().currsize:
        pool().reset_after_fork()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork_in_child)
