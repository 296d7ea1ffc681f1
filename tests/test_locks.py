"""What several threads and forked processes do at once: locks, interning, definitions."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from pyfuser import FusionDefinition
from pyfuser.ir.scalars import Symbol, floor_div
from pyfuser.locks import ForkSafeLock
from tests.support.concurrency import in_threads
from tests.support.folders import ROOT


@contextmanager
def often_interrupted() -> Iterator[None]:
    """Lets another thread run every microsecond."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


def results_of_threads(work: Callable[[int], object], count: int = 4) -> list[object]:
    """The results of `work(number)` in threads that often interrupt each other."""
    results: list[object] = [None] * count

    def run(number: int) -> None:
        results[number] = work(number)

    with often_interrupted():
        in_threads(count, run)
    return results


def test_equal_expressions_of_several_threads_are_one_object() -> None:
    def expressions(_: int) -> list[object]:
        symbols = [Symbol.of(f"in_threads_{number}") for number in range(3000)]
        return [*symbols, *(floor_div(each + 1, 7) for each in symbols)]

    first, *others = results_of_threads(expressions)
    for other in others:
        assert all(a is b for a, b in zip(first, other, strict=True))


def test_a_definition_is_first_executed_by_several_threads() -> None:
    x = torch.randn(5)
    for _ in range(20):
        with FusionDefinition() as fd:
            fd.add_output(fd.ops.add(fd.from_pytorch(x), 1))
        for (got,) in results_of_threads(lambda _, fd=fd: fd.execute([x])):
            assert torch.equal(got, x + 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes by fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_lock_that_a_thread_holds_is_open_in_a_forked_child() -> None:
    lock, held, done = ForkSafeLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        threading.Timer(20, os._exit, (1,)).start()  # were the lock still held
        with lock:
            os._exit(0)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# These renew their locks, and more, in a forked child by themselves.
OWN_LOCKS = {"locks.py", "kernel_cache.py", "jit.py", "memory_pool.py", "compiler_process.py"}


def test_locks_are_open_in_a_forked_child() -> None:
    sources = (ROOT / "pyfuser").rglob("*.py")
    bare = re.compile(r"threading\.R?Lock\(\)")
    found = {path.name for path in sources if bare.search(path.read_text(encoding="utf-8"))}
    assert found == OWN_LOCKS
