"""Memory pools for tests of their own: `pool`, a fixture, and allocation from one."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
import torch

from pyfuser.devices.cpu import memory_pool
from pyfuser.devices.cpu.memory_pool import (
    MemoryPool,
)

MIB = 1 << 20


@pytest.fixture
def pool() -> Iterator[MemoryPool]:
    """A separate pool for the test, so that its counters start at 0."""
    fresh = MemoryPool()
    fresh.counters.limit = 64 * MIB
    yield fresh
    fresh.empty_cache()


@functools.cache
def shared_pool() -> MemoryPool:
    """For tests of many examples, which leave nothing in it."""
    return MemoryPool()


def empty_strided(
    shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """A tensor of the process's own pool."""
    return memory_pool.pool().empty_strided(shape, stride, dtype)


def allocate(pool: MemoryPool, size: int) -> torch.Tensor:
    return pool.empty_strided((size,), (1,), torch.uint8)
