"""The memory pool: ordinary tensors in recycled memory, within its limits, from any thread."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import peak_memory
from pyfuser.devices.cpu import memory_pool
from pyfuser.devices.cpu.memory_pool import (
    GRANULE_BYTES,
    HUGE_PAGE_BYTES,
    THRESHOLD_BYTES,
    MemoryPool,
)
from tests.devices.cpu.pools import MIB, allocate, empty_strided, shared_pool
from tests.devices.cpu.pools import pool as pool

DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)


# ---- the tensor ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (2, 1, 4), (300, 1000)])
def test_like_a_tensor_of_torch(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    stride = torch.empty(shape).stride()
    ours = empty_strided(shape, stride, dtype)
    theirs = torch.empty(shape, dtype=dtype)
    assert (ours.shape, ours.stride(), ours.dtype) == (theirs.shape, stride, dtype)
    assert ours.device.type == "cpu" and ours.is_contiguous() and not ours._is_view()
    assert ours._base is None and ours.storage_offset() == 0 and not ours.requires_grad
    assert ours.untyped_storage().nbytes() == theirs.untyped_storage().nbytes()
    assert ours.data_ptr() % 64 == 0
    assert torch.equal(ours.fill_(1), torch.ones(shape, dtype=dtype))


@pytest.mark.parametrize("n", [4, 700])
def test_strided_layouts(n: int) -> None:
    transposed = empty_strided((n, n), (1, n), torch.float32)
    assert not transposed.is_contiguous() and transposed.t().is_contiguous()
    source = torch.randn(n, n)
    assert torch.equal(transposed.copy_(source), source)
    channels_last = empty_strided((2, 3, n, n), (3 * n * n, 1, 3 * n, 3), torch.float32)
    assert channels_last.is_contiguous(memory_format=torch.channels_last)
    channels_last.fill_(0)
    padded = empty_strided((n, n), (n + 5, 1), torch.float32)
    assert padded.untyped_storage().nbytes() == 4 * ((n - 1) * (n + 5) + n)
    expanded = empty_strided((n, n), (0, 1), torch.float32)
    assert expanded.untyped_storage().nbytes() == 4 * n


def test_torch_size_is_a_shape() -> None:
    like = torch.empty(3, 4)
    assert empty_strided(like.shape, like.stride(), like.dtype).shape == (3, 4)


@pytest.mark.parametrize("shape", [(0,), (3, 0, 5)])
def test_no_elements(shape: tuple[int, ...]) -> None:
    stride = torch.empty(shape).stride()
    assert empty_strided(shape, stride, torch.float32).shape == shape


@pytest.mark.parametrize(
    ("shape", "stride"),
    [
        ((-1,), (1,)),
        ((4,), (-1,)),
        ((2, 3), (1,)),
        ((2**40, 2**40), (2**40, 1)),  # 2**80 bytes must not wrap around to few
        ((2**61,), (1,)),
        ((2,) * 3, (2**62, 2**62, 1)),
    ],
)
def test_what_torch_refuses(shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    with pytest.raises(RuntimeError):
        empty_strided(shape, stride, torch.float64)


@pytest.mark.parametrize(("shape", "stride"), [((2.0,), (1,)), ((2,), ("1",)), ([2], [1])])
def test_wrong_types(shape: object, stride: object) -> None:
    with pytest.raises((TypeError, SystemError)):
        empty_strided(shape, stride, torch.float32)  # type: ignore[arg-type]


def test_dtype_that_dlpack_lacks() -> None:
    quantized = empty_strided((4,), (1,), torch.float8_e4m3fn)
    assert quantized.dtype == torch.float8_e4m3fn


@pytest.mark.parametrize("size", [100, MIB])
def test_operations_on_the_storage(size: int) -> None:
    x = empty_strided((size,), (1,), torch.float32).fill_(2)
    assert copy.deepcopy(x).sum() == 2 * size
    assert x.numpy().sum() == 2 * size
    x.resize_(size // 2)
    assert x.sum() == size
    x.set_(torch.ones(3))
    assert x.tolist() == [1, 1, 1]
    shared = empty_strided((size,), (1,), torch.float32).fill_(3).share_memory_()
    assert shared.is_shared() and shared.sum() == 3 * size
    with pytest.raises(RuntimeError, match="resiz"):
        empty_strided((size,), (1,), torch.float32).resize_(2 * size)
    parameter = torch.nn.Parameter(empty_strided((size,), (1,), torch.float32).fill_(1))
    parameter.sum().backward()
    assert parameter.grad is not None and parameter.grad.sum() == size


# ---- recycling -------------------------------------------------------------------------------


def test_memory_comes_back_when_the_last_tensor_dies(pool: MemoryPool) -> None:
    x = allocate(pool, 2 * MIB)
    address, view = x.data_ptr(), x[10:].view(torch.int8)
    assert pool.stats().in_use == 2 * MIB
    del x
    assert (pool.stats().in_use, pool.stats().cached) == (2 * MIB, 0)
    del view
    assert (pool.stats().in_use, pool.stats().cached) == (0, 2 * MIB)
    assert allocate(pool, 2 * MIB - 5).data_ptr() == address
    stats = pool.stats()
    assert (stats.hits, stats.misses, stats.peak) == (1, 1, 2 * MIB)


def test_last_released_is_first_used(pool: MemoryPool) -> None:
    blocks = [allocate(pool, MIB) for _ in range(6)]
    addresses = [block.data_ptr() for block in blocks]
    for number in (0, 2, 4):  # none next to another
        blocks[number] = torch.empty(0)
    again = [allocate(pool, MIB) for _ in range(3)]
    assert [block.data_ptr() for block in again] == [addresses[number] for number in (4, 2, 0)]


def test_free_neighbours_become_one_block(pool: MemoryPool) -> None:
    """Releases each of three last: before, after, or between free memory."""
    for order in ((0, 1, 2), (2, 1, 0), (0, 2, 1)):
        blocks = {number: allocate(pool, 3 * MIB).fill_(number) for number in range(3)}
        for number in order:
            del blocks[number]
        misses = pool.stats().misses
        whole = allocate(pool, 9 * MIB).fill_(9)
        assert pool.stats().misses == misses and pool.stats().cached == MIB  # of five huge pages
        del whole


def test_a_bigger_block_is_split(pool: MemoryPool) -> None:
    big = allocate(pool, 8 * MIB)
    start = big.data_ptr()
    del big
    parts = [allocate(pool, size) for size in (MIB, 3 * MIB, 4 * MIB)]
    assert [part.data_ptr() - start for part in parts] == [0, MIB, 4 * MIB]
    assert (pool.stats().misses, pool.stats().cached) == (1, 0)


def test_the_best_fit_is_taken(pool: MemoryPool) -> None:
    """A hole of 3 MiB, one of 2.25, and one of 2: each goes to the block that wastes least."""
    sizes = (3 * MIB, MIB, 9 * MIB // 4, MIB, 2 * MIB, 3 * MIB // 4)  # together five huge pages
    blocks = [allocate(pool, size) for size in sizes]
    holes = [blocks[number].data_ptr() for number in (0, 2, 4)]
    del blocks[0], blocks[1], blocks[2]
    wanted = (2 * MIB, 2 * MIB + 1, 3 * MIB)
    found = [allocate(pool, size) for size in wanted]
    assert [block.data_ptr() for block in found] == holes[::-1]


def test_new_memory_is_what_lacks_of_the_block(pool: MemoryPool) -> None:
    """The free end of the mapped memory is used, and not left unused."""
    first = allocate(pool, 4 * MIB)
    start = first.data_ptr()
    del first
    bigger = allocate(pool, 6 * MIB).fill_(1)
    assert bigger.data_ptr() == start
    assert (pool.stats().in_use, pool.stats().cached) == (6 * MIB, 0)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 7), st.integers(THRESHOLD_BYTES, 3 * MIB)), min_size=1, max_size=60
    ),
    st.sampled_from([0, 2 * MIB, 64 * MIB]),
)
def test_any_order_of_blocks(actions: list[tuple[int, int]], limit: int) -> None:
    """Blocks don't overlap and keep their bytes; the free memory at the end is one run."""
    mine = shared_pool()
    mine.empty_cache()
    mine.counters.limit = limit
    held: dict[int, torch.Tensor] = {}
    for slot, size in actions:
        if slot in held:
            assert held.pop(slot).eq(slot).all()
        else:
            held[slot] = allocate(mine, size).fill_(slot)
        in_use = sum(-(-x.numel() // GRANULE_BYTES) * GRANULE_BYTES for x in held.values())
        assert mine.stats().in_use == in_use
        assert mine.stats().cached <= limit
        spans = sorted((x.data_ptr(), x.data_ptr() + x.numel()) for x in held.values())
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert all(x.eq(slot).all() for slot, x in held.items())
    held.clear()
    mine.empty_cache()
    assert mine.counters.mapped == 0
    misses = mine.stats().misses
    assert allocate(mine, 32 * MIB).fill_(1).sum() == 32 * MIB
    assert mine.stats().misses == misses + 1


@settings(max_examples=300, deadline=None)
@given(st.integers(THRESHOLD_BYTES, 1 << 47) | st.integers(18, 46).map(lambda k: 1 << k))
def test_a_block_is_at_most_a_granule_too_big(size: int) -> None:
    mine = shared_pool()
    mine.empty_cache()
    answer = mine._acquire((size,), (1,), 1 | 8 << 8 | 1 << 16)
    if size < 1 << 47:
        assert size <= answer < size + GRANULE_BYTES
    else:
        assert answer is None  # for torch to refuse


def test_memory_comes_in_huge_pages(pool: MemoryPool) -> None:
    block = allocate(pool, 3 * MIB)
    assert block.data_ptr() % HUGE_PAGE_BYTES == 0
    assert (pool.stats().in_use, pool.stats().cached) == (3 * MIB, MIB)


def test_small_blocks_are_not_the_pools(pool: MemoryPool) -> None:
    keep = [allocate(pool, THRESHOLD_BYTES - 1) for _ in range(5)]
    assert pool.stats().in_use == 0
    keep.append(allocate(pool, THRESHOLD_BYTES))
    assert pool.stats().in_use == THRESHOLD_BYTES


def test_empty_cache(pool: MemoryPool) -> None:
    held, dropped = allocate(pool, MIB).fill_(7), allocate(pool, 2 * MIB)
    del dropped
    pool.empty_cache()
    stats = pool.stats()
    assert (stats.in_use, stats.cached) == (MIB, 0)
    assert held.eq(7).all()


def test_free_bytes_stay_within_the_limit(pool: MemoryPool) -> None:
    pool.counters.limit = 4 * MIB
    blocks = [allocate(pool, MIB) for _ in range(10)]
    blocks.clear()
    assert pool.stats().cached == 4 * MIB
    assert pool.stats().in_use == 0
    pool.counters.limit = 0
    pool.empty_cache()
    x = allocate(pool, MIB)
    del x
    assert pool.stats().cached == 0


def test_a_training_step_holds_little_more_than_it_uses(pool: MemoryPool) -> None:
    """Forwards keep some blocks of several sizes, backwards free them; temporaries come between."""
    sizes = [int(MIB * size) for size in (0.6, 1.5, 0.3, 2.3, 1.1, 0.5, 3.1, 0.8)]

    def step() -> None:
        saved = []
        for layer in range(6):
            for number, size in enumerate(sizes):
                temporary = allocate(pool, size + layer % 3 * MIB // 4)
                if number % 3:
                    saved.append(temporary)
        while saved:
            gradient = allocate(pool, saved[-1].numel())
            saved.pop()
            del gradient

    step()
    first = pool.stats()
    assert first.cached <= 1.1 * first.peak + HUGE_PAGE_BYTES
    step()
    assert pool.stats().misses == first.misses


def test_longest_unused_memory_makes_room(pool: MemoryPool) -> None:
    pool.counters.limit = 4 * MIB
    blocks = [allocate(pool, MIB) for _ in range(6)]
    addresses = [block.data_ptr() for block in blocks]
    for number in (2, 0, 4):  # none next to another, the third one the oldest
        blocks[number] = torch.empty(0)
    big = allocate(pool, 2 * MIB)
    assert pool.stats().cached == 2 * MIB  # 2 MiB more have to fit later
    again = [allocate(pool, MIB) for _ in range(2)]
    assert sorted(x.data_ptr() for x in again) == [addresses[0], addresses[4]]
    del big, again
    blocks.clear()
    assert pool.stats().cached <= 4 * MIB


def test_part_of_a_run_makes_room(pool: MemoryPool) -> None:
    pool.counters.limit = 8 * MIB
    block = allocate(pool, 8 * MIB)
    del block
    big = allocate(pool, 10 * MIB)
    assert pool.stats().cached == 0
    del big  # more than the pool may keep
    assert (pool.stats().in_use, pool.stats().cached) == (0, 0)
    block = allocate(pool, 8 * MIB)
    del block
    pool._shrink(3 * MIB)
    assert pool.stats().cached == 3 * MIB
    assert allocate(pool, 8 * MIB).fill_(1).sum() == 8 * MIB


def test_given_back_memory_leaves_the_process(pool: MemoryPool) -> None:
    if not peak_memory.can_measure():
        pytest.skip("the process's memory can't be measured here")

    def resident() -> int:
        return peak_memory.resident_bytes()

    x = allocate(pool, 32 * MIB).fill_(1)
    full = resident()
    del x
    assert resident() > full - 8 * MIB
    pool.empty_cache()
    assert resident() < full - 24 * MIB


def test_no_memory_is_torchs_error_after_emptying_the_cache(
    pool: MemoryPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = allocate(pool, MIB)
    del cached
    with pytest.raises(RuntimeError, match=rf"can't allocate .*{1 << 46} bytes"):
        allocate(pool, 1 << 46)
    assert pool.stats().cached == 0
    # If emptying the cache frees enough memory, the second try succeeds.
    cached = allocate(pool, MIB)
    del cached
    original = memory_pool._make_usable
    monkeypatch.setattr(
        memory_pool,
        "_make_usable",
        lambda address, size: size >= pool.stats().cached and original(address, size),
    )
    assert allocate(pool, 4 * MIB).fill_(1).sum() == 4 * MIB
    assert pool.stats().in_use == 0
    # Otherwise, torch's own allocator is called.
    monkeypatch.setattr(memory_pool, "_make_usable", lambda address, size: False)
    assert allocate(pool, 16 * MIB).fill_(1).sum() == 16 * MIB
    assert (pool.stats().in_use, pool.stats().cached) == (0, 0)


@pytest.mark.parametrize("addresses", [0, 4 * MIB])
def test_without_addresses_torch_allocates(addresses: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_pool, "_range_bytes", lambda: addresses)
    small = MemoryPool()
    assert allocate(small, 8 * MIB).fill_(1).sum() == 8 * MIB
    assert small.stats().in_use == 0
    x = allocate(small, 3 * MIB).fill_(2)
    assert small.stats().in_use == (3 * MIB if addresses else 0)
    assert x.eq(2).all()
