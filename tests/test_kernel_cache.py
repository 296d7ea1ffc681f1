"""The kernel cache: one compilation a key in a process, whatever its threads do."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from pyfuser.errors import InternalError
from pyfuser.kernel_cache import KernelCache


def test_value_is_made_once() -> None:
    cache: KernelCache[str, object] = KernelCache()
    first = cache.get_or_create("key", object)
    assert cache.get_or_create("key", object) is first
    assert (cache.hits, cache.misses, cache.evictions) == (1, 1, 0)
    assert "key" in cache and len(cache) == 1


def test_least_recently_used_goes_first() -> None:
    cache: KernelCache[int, int] = KernelCache(capacity=3)
    for key in (0, 1, 2, 0, 3):  # 0 was used again, so 1 is the oldest
        cache.get_or_create(key, lambda: -1)
    assert [key for key in range(4) if key in cache] == [0, 2, 3]
    assert cache.evictions == 1
    cache.clear()
    assert len(cache) == 0


def test_eight_threads_make_each_value_once() -> None:
    cache: KernelCache[int, int] = KernelCache()
    made: list[int] = []
    start = threading.Barrier(8)

    def work(_: int) -> list[int]:
        start.wait()
        return [cache.get_or_create(key, lambda key=key: make(key)) for key in range(20)]

    def make(key: int) -> int:
        time.sleep(0.002)  # long enough for the others to come and wait
        made.append(key)
        return key * key

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, range(8)))
    assert sorted(made) == list(range(20))
    assert all(result == [key * key for key in range(20)] for result in results)
    assert cache.hits + cache.misses == 160 and cache.misses == 20


def test_different_keys_do_not_wait_for_each_other() -> None:
    cache: KernelCache[str, str] = KernelCache()
    inside, go_on = threading.Event(), threading.Event()

    def slow() -> str:
        inside.set()
        assert go_on.wait(30)
        return "slow"

    thread = threading.Thread(target=cache.get_or_create, args=("slow", slow))
    thread.start()
    assert inside.wait(30)
    assert cache.get_or_create("other", lambda: "fast") == "fast"  # or this would hang
    go_on.set()
    thread.join()
    assert cache.get_or_create("slow", lambda: "again") == "slow"


def test_failure_reaches_all_who_wait_and_is_not_kept() -> None:
    cache: KernelCache[str, int] = KernelCache()
    calls = []
    others_wait = threading.Event()

    def fail() -> int:
        calls.append(1)
        others_wait.wait(30)
        raise ValueError("no kernel")

    def request(_: int) -> str:
        try:
            return str(cache.get_or_create("key", fail))
        except ValueError as error:
            return str(error)

    with ThreadPoolExecutor(4) as pool:
        results = [pool.submit(request, i) for i in range(4)]
        time.sleep(0.05)
        others_wait.set()
        assert [result.result() for result in results] == ["no kernel"] * 4
    assert "key" not in cache
    assert cache.get_or_create("key", lambda: 5) == 5


def test_interrupt_of_the_maker_is_not_passed_on() -> None:
    cache: KernelCache[str, int] = KernelCache()
    inside, go_on = threading.Event(), threading.Event()

    def interrupted() -> int:
        inside.set()
        assert go_on.wait(30)
        raise KeyboardInterrupt

    def maker() -> None:
        with pytest.raises(KeyboardInterrupt):
            cache.get_or_create("key", interrupted)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(maker)
        assert inside.wait(30)
        second = pool.submit(cache.get_or_create, "key", lambda: 7)
        go_on.set()
        first.result()
        assert second.result() == 7


def test_factory_that_asks_for_its_own_key() -> None:
    cache: KernelCache[str, int] = KernelCache()

    def factory() -> int:
        return cache.get_or_create("key", lambda: 1)

    with pytest.raises(InternalError, match="expected a factory that doesn't ask for its own key"):
        cache.get_or_create("key", factory)
    assert cache.get_or_create("key", lambda: 1) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forked_child_does_not_wait_for_threads_of_the_parent() -> None:
    cache: KernelCache[str, int] = KernelCache()
    inside, go_on = threading.Event(), threading.Event()

    def slow() -> int:
        inside.set()
        go_on.wait(30)
        return 1

    thread = threading.Thread(target=cache.get_or_create, args=("key", slow))
    thread.start()
    assert inside.wait(30)
    child = os.fork()
    if child == 0:
        os._exit(0 if cache.get_or_create("key", lambda: 2) == 2 else 1)
    assert os.waitpid(child, 0)[1] == 0
    go_on.set()
    thread.join()
