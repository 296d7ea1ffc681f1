"""The memory pool with threads, at exit and fork, and as users set it up."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading

import pytest
import torch

from pyfuser import memory
from pyfuser.devices.cpu import memory_pool
from pyfuser.devices.cpu.memory_pool import (
    THRESHOLD_BYTES,
    MemoryPool,
)
from pyfuser.errors import InputError
from tests.devices.cpu.pools import MIB, allocate, empty_strided
from tests.devices.cpu.pools import pool as pool
from tests.support.folders import ROOT

# ---- threads, processes ----------------------------------------------------------------------


def test_released_in_another_thread(pool: MemoryPool) -> None:
    box = [allocate(pool, 2 * MIB)]
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    assert pool.stats().cached == 2 * MIB


def test_eight_threads_never_share_a_block(pool: MemoryPool) -> None:
    """Each thread holds blocks full of its own number, passes some to others, and checks them."""
    pool.counters.limit = 4 * MIB
    handed_over: list[tuple[int, torch.Tensor]] = []
    wrong = []

    def work(seed: int) -> None:
        choice = random.Random(seed)
        held: list[tuple[int, torch.Tensor]] = []
        for _ in range(150):
            mark = choice.randrange(256)
            block = allocate(pool, THRESHOLD_BYTES + choice.randrange(MIB))
            held.append((mark, block.fill_(mark)))
            if len(held) > 4:
                mark, block = held.pop(choice.randrange(len(held)))
                if not (
                    block[0] == mark and block[-1] == mark and block[:: 1 << 14].eq(mark).all()
                ):
                    wrong.append(mark)
                if choice.random() < 0.5:
                    handed_over.append((mark, block))
            if len(handed_over) > 8:
                handed_over.clear()
            if choice.random() < 0.05:
                pool.empty_cache()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    handed_over.clear()
    assert not wrong
    stats = pool.stats()
    assert stats.in_use == 0 and stats.cached <= 4 * MIB
    pool.empty_cache()
    assert pool.counters.mapped == 0


def test_tensors_that_outlive_the_interpreter() -> None:
    """Held by a global, by a leaked reference and by a daemon thread."""
    script = """
import ctypes, threading, time
import torch
from pyfuser.devices.cpu.memory_pool import pool

def big():
    return pool().empty_strided((1 << 20,), (1,), torch.float32)

kept = [big() for _ in range(3)]
leaked = big().mul_(1)
ctypes.pythonapi.Py_IncRef(ctypes.py_object(leaked))
x = big().fill_(1).requires_grad_()
loss = (x * x).sum()

def hold():
    mine = big().fill_(2)
    ready.set()
    time.sleep(600)

ready = threading.Event()
threading.Thread(target=hold, daemon=True).start()
ready.wait()
print("end")
"""
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert (run.returncode, run.stdout) == (0, "end\n"), run.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forked_child_has_a_pool_of_its_own() -> None:
    kept = empty_strided((MIB,), (1,), torch.uint8)
    kept[:] = 5
    stop = threading.Event()

    def allocate_and_release() -> None:
        while not stop.is_set():
            empty_strided((MIB,), (1,), torch.uint8)

    busy = threading.Thread(target=allocate_and_release)
    busy.start()
    for _ in range(5):
        child = os.fork()
        if child == 0:
            x = empty_strided((MIB,), (1,), torch.uint8)
            x[:1] = 6
            del x
            memory_pool.pool().empty_cache()
            os._exit(0 if int(kept[-1]) == 5 else 1)
        assert os.waitpid(child, 0)[1] == 0
    stop.set()
    busy.join()
    assert int(kept[0]) == 5


# ---- pyfuser.memory, the environment ---------------------------------------------------------


def test_memory_module_speaks_for_the_pool() -> None:
    memory.empty_cache()
    before = memory.stats("cpu")
    x = empty_strided((MIB,), (1,), torch.float32)
    during = memory.stats("cpu")
    assert during.in_use == before.in_use + 4 * MIB
    assert memory.stats().in_use >= during.in_use
    del x
    assert memory.stats("cpu").cached >= 4 * MIB
    memory.empty_cache()
    assert memory.stats("cpu").cached == 0
    assert memory.stats("no device").in_use == 0


def test_limit_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYFUSER_POOL_BYTES", "12345678")
    assert MemoryPool().stats().limit == 12345678
    monkeypatch.setenv("PYFUSER_POOL_BYTES", "many")
    with pytest.raises(InputError, match="PYFUSER_POOL_BYTES: expected a number, got many"):
        MemoryPool()
    monkeypatch.delenv("PYFUSER_POOL_BYTES")
    assert 0 < MemoryPool().stats().limit <= 1 << 30
