"""Tensors whose memory comes from a caching pool, so that an output is written into warm pages.

`empty_strided(shape, stride, dtype)` is torch.empty_strided for kernel outputs and scratch
memory. Big blocks (>= THRESHOLD_BYTES) are mapped once, 64-byte aligned (2 MiB, with huge pages,
from 2 MiB on), and go back to the pool when the last tensor on the storage dies, in whatever
thread and also while the interpreter exits; small ones come from malloc, which is warm by
itself. The result is an ordinary tensor, no view; only its storage can't grow (`resize_` beyond
it raises torch's error).

Measured on a Zen 4: 0.6-0.7 us an allocation, big or small, where torch.empty_strided takes 1.0 us;
filling 64 MiB on two threads takes 8 ms in the pool's memory and 21 ms in fresh memory from torch.

Invariants: free bytes <= the limit (PYFUSER_POOL_BYTES, else min(1/8 of the memory, 1 GiB)); a
block is at most 12.5 % bigger than asked for (8 size classes an octave); a block is in at most
one free list; bytes mapped = bytes in use + bytes free. When the limit is met, the blocks that
were used longest ago are unmapped. The fast path and the release are native code
(memory_pool_text.py), since a release may come without the GIL; mapping and eviction, which wait
for the system anyway, are Python.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

import torch
import torch.utils.dlpack

from ...errors import InputError, expected
from ...memory import MemoryStats, register_pool
from .jit import CompiledModule, compile_module
from .memory_pool_text import (
    HUGE_PAGE_BYTES,
    RECORD_BYTES,
    pool_text,
)
from .native_function import native_function

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
# What torch.from_dlpack calls after it has found out that it was given a capsule.
_from_dlpack: Any = getattr(torch._C, "_from_dlpack", torch.utils.dlpack.from_dlpack)


_immortal_modules: list[CompiledModule] = []


class _Counters(ctypes.Structure):
    """The pool's state in native memory, in the order of `@counters` in the text; all 8 bytes."""

    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in ("lock", "limit", "mapped", "cached", "peak", "hits", "misses", "clock")
    )


class _Record(ctypes.Structure):
    """The pool's part of a block's record, behind the DLManagedTensor that torch reads."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dlpack", ctypes.c_int64 * 7),
        ("next", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("released", ctypes.c_int64),
        ("home", ctypes.c_void_p),
    )


class MemoryPool:
    """The pool of this process: `pool()` has the one instance."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        module = compile_module(pool_text(), passes=(), codegen_level=0)
        # For good: a tensor may outlive this object, and its deleter is this module's code.
        _immortal_modules.append(module)
        self.counters = _Counters.from_address(module.address("counters"))
        self.counters.limit = _default_limit()
        self.acquire: Any = native_function(module, "acquire")
        self._take_all = _gil_function(module, "take_all", ctypes.c_void_p)
        self._put_back = _gil_function(module, "put_back", None, ctypes.c_void_p)
        self._destroy = _gil_function(module, "destroy", None, ctypes.c_void_p)

    def empty_strided(
        self, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        """An uninitialised tensor; `shape` and `stride` are tuples (elements)."""
        code = _DLPACK_TYPES.get(dtype)
        if code is None:
            return torch.empty_strided(shape, stride, dtype=dtype)
        answer = self.acquire(shape, stride, code, 0)
        if answer is None:  # no elements, or a shape for torch to refuse
            return torch.empty_strided(shape, stride, dtype=dtype)
        if type(answer) is int:  # no free block: a new one of `answer` bytes
            answer = self.acquire(shape, stride, code, self._new_block(answer))
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
            hits=counters.hits,
            misses=counters.misses,
            limit=counters.limit,
        )

    def reset_after_fork(self) -> None:
        """In a forked child: no other thread is left that could hold a lock."""
        self._lock = threading.Lock()
        self.counters.lock = 0

    def _new_block(self, size: int) -> int:
        """Address of the record of a newly mapped block of `size` bytes; RuntimeError if none."""
        with self._lock:
            # It will come back to the free lists one day: make room by then, the oldest first.
            if self.counters.cached + size > self.counters.limit:
                self._shrink(max(0, self.counters.limit - size))
            data = _map(size)
            if data is None:
                self._shrink(0)
                data = _map(size)
            if data is None:
                in_use = self.counters.mapped
                raise RuntimeError(
                    f"pyfuser memory pool: can't allocate memory: tried to allocate {size} bytes "
                    f"with {in_use} bytes in use (expected free memory, got none)"
                )
            address = _libc().calloc(1, RECORD_BYTES)
            record = _Record.from_address(address)
            record.data, record.size = data, size
            return int(address)

    def _shrink(self, target: int) -> None:
        """Unmap free blocks, the longest unused first, until at most `target` bytes are free."""
        records = []
        address = self._take_all()
        while address:
            records.append(_Record.from_address(address))
            address = records[-1].next
        records.sort(key=lambda record: record.released)
        kept = sum(record.size for record in records)
        for record in records:
            if kept > target:
                kept -= record.size
                self._destroy(ctypes.addressof(record))
            else:
                self._put_back(ctypes.addressof(record))


@functools.cache
def pool() -> MemoryPool:
    """The process's pool; made at the first allocation, since that compiles its native part."""
    made = MemoryPool()
    register_pool("cpu", made.empty_cache, made.stats)
    return made


def empty_strided(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised CPU tensor from the pool: torch.empty_strided with warm memory.

    `shape` and `stride` are tuples of ints, in elements.  Raises RuntimeError with the number of
    bytes when the system has no memory left, after having emptied the cache.
    """
    return pool().empty_strided(shape, stride, dtype)


def scratch(size_bytes: int) -> torch.Tensor:
    """Uninitialised memory for a kernel's own use: a uint8 tensor [size_bytes], 64-byte aligned.

    The memory goes back to the pool with the tensor: keep it until the kernel has returned.
    """
    if size_bytes < 0:
        raise InputError(expected("scratch", "a number of bytes", size_bytes))
    return pool().empty_strided((size_bytes,), (1,), torch.uint8)


def _gil_function(module: CompiledModule, name: str, result: Any, *arguments: Any) -> Any:
    """A ctypes function that keeps the GIL: these take well under a microsecond."""
    return ctypes.PYFUNCTYPE(result, *arguments)(module.address(name))


def _default_limit() -> int:
    """Most free bytes that the pool keeps, from the environment or from the machine's memory."""
    configured = os.environ.get("PYFUSER_POOL_BYTES")
    if configured is not None:
        try:
            return max(0, int(configured))
        except ValueError:
            raise InputError(expected("PYFUSER_POOL_BYTES", "a number", configured)) from None
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(memory // 8, 1 << 30)


@functools.cache
def _libc() -> Any:
    """mmap, munmap, madvise and calloc with their C types."""
    libc = ctypes.CDLL(None, use_errno=True)
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.argtypes = (pointer, size, number, number, number, ctypes.c_int64)
    libc.mmap.restype = pointer
    libc.munmap.argtypes = (pointer, size)
    libc.madvise.argtypes = (pointer, size, number)
    libc.calloc.argtypes = (size, size)
    libc.calloc.restype = pointer
    return libc


def _map(size: int) -> int | None:
    """Address of `size` new bytes, or None; aligned for huge pages where they fit."""
    slack = HUGE_PAGE_BYTES if size >= HUGE_PAGE_BYTES else 0
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = _libc().mmap(None, size + slack, protection, flags, -1, 0)
    if address == ctypes.c_void_p(-1).value:
        return None
    assert isinstance(address, int)
    if slack:
        before = -address % HUGE_PAGE_BYTES
        if before:
            _libc().munmap(address, before)
        if slack - before:
            _libc().munmap(address + before + size, slack - before)
        address += before
        if hasattr(mmap, "MADV_HUGEPAGE"):
            # May fail where the system has none: the block then has small pages.
            _libc().madvise(address, size, mmap.MADV_HUGEPAGE)
    return address


def _after_fork_in_child() -> None:
    if pool.cache_info().currsize:
        pool().reset_after_fork()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork_in_child)
