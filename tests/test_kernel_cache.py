"""The kernel caches: one compilation a key in a process, whole entries on disk for all of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pyfuser import kernel_cache
from pyfuser.errors import InternalError
from pyfuser.kernel_cache import DiskCache, KernelCache, cache_key, disk_cache

ROOT = Path(__file__).parent.parent


# ---- in the process --------------------------------------------------------------------------


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


# ---- on disk ---------------------------------------------------------------------------------


def entries(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.kernel"))


@pytest.mark.parametrize("payload", [b"", b"x", bytes(range(256)) * 1000])
def test_disk_round_trip(tmp_path: Path, payload: bytes) -> None:
    cache = DiskCache(tmp_path / "new" / "directory")
    assert cache.load("key") is None
    cache.store("key", payload)
    assert cache.load("key") == payload
    assert DiskCache(cache.directory).load("key") == payload
    assert cache.load("other key") is None


def test_only_the_entry_is_left_behind(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    cache.store("key", b"one")
    cache.store("key", b"two")
    assert list(tmp_path.iterdir()) == entries(tmp_path)
    assert len(entries(tmp_path)) == 1
    assert cache.load("key") == b"two"


def damage_truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def damage_flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)


def damage_append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"!")


def damage_empty(path: Path) -> None:
    path.write_bytes(b"")


def damage_foreign(path: Path) -> None:
    path.write_bytes(b"\x7fELF" + bytes(200))


@pytest.mark.parametrize(
    "damage", [damage_truncate, damage_flip_bit, damage_append, damage_empty, damage_foreign]
)
def test_damaged_entry_is_a_miss_and_is_removed(tmp_path: Path, damage: object) -> None:
    cache = DiskCache(tmp_path)
    cache.store("key", b"payload of some length")
    (path,) = entries(tmp_path)
    assert callable(damage)
    damage(path)
    assert cache.load("key") is None
    assert not path.exists()
    cache.store("key", b"again")
    assert cache.load("key") == b"again"


def test_entry_under_the_name_of_another_is_a_miss(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    cache.store("a", b"payload")
    (path_a,) = entries(tmp_path)
    cache.store("b", b"other")
    (path_b,) = set(entries(tmp_path)) - {path_a}
    os.replace(path_a, path_b)
    assert cache.load("b") is None


def test_unusable_directory_is_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    cache = DiskCache(tmp_path / "file" / "cache")
    with pytest.warns(RuntimeWarning, match="pyfuser disk cache: expected a writable directory"):
        cache.store("key", b"payload")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.store("key", b"payload")
        assert cache.load("key") is None


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write")
def test_read_only_directory(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    cache.store("key", b"payload")
    tmp_path.chmod(0o500)
    try:
        assert cache.load("key") == b"payload"
        with pytest.warns(RuntimeWarning, match="expected a writable directory"):
            cache.store("other", b"payload")
    finally:
        tmp_path.chmod(0o700)


def test_full_disk_leaves_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(source: str, target: Path) -> None:
        raise OSError(28, "No space left on device")

    cache = DiskCache(tmp_path)
    monkeypatch.setattr(os, "replace", no_space)
    with pytest.warns(RuntimeWarning, match="No space left"):
        cache.store("key", b"payload")
    assert list(tmp_path.iterdir()) == []


def test_oldest_entries_are_trimmed(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, most_bytes=10_000)
    ages = {}
    for i in range(20):
        before = set(entries(tmp_path))
        cache.store(f"key {i}", bytes(1000))
        (path,) = set(entries(tmp_path)) - before
        ages[i] = path
        os.utime(path, (1000 + i, 1000 + i))
    cache.trim()
    left = [i for i, path in ages.items() if path.exists()]
    assert left == list(range(20 - len(left), 20))
    assert 5 <= len(left) <= 7  # three quarters of 10,000 bytes


def test_trimming_removes_stale_temporary_files_only(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    cache.store("key", b"payload")
    old, new, foreign = tmp_path / ".tmp-old", tmp_path / ".tmp-new", tmp_path / "README"
    for path in (old, new, foreign):
        path.write_bytes(b"half an entry")
    for path in (old, foreign):
        os.utime(path, (1000, 1000))
    cache.trim()
    assert not old.exists() and new.exists() and foreign.exists()
    assert cache.load("key") == b"payload"


def test_use_renews_an_entry(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    cache.store("key", b"payload")
    (path,) = entries(tmp_path)
    os.utime(path, (1000, 1000))
    cache.load("key")
    assert path.stat().st_mtime > 1000


# The package without its __init__.py, which would load torch in each of the processes.
WRITER = """
import sys
import types
from pathlib import Path
package = sys.modules["pyfuser"] = types.ModuleType("pyfuser")
package.__path__ = ["pyfuser"]
from pyfuser.kernel_cache import DiskCache
cache = DiskCache(Path(sys.argv[1]))
seed, rounds, size = int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
print("ready", flush=True)
bad = 0
for i in range(rounds):
    key = f"key {(i + seed) % 10}"
    cache.store(key, key.encode() * size)
    found = cache.load(f"key {(i * 7 + seed) % 10}")
    expected = f"key {(i * 7 + seed) % 10}".encode() * size
    bad += found is not None and found != expected
print("bad", bad, flush=True)
"""


def start_writer(directory: Path, seed: int, rounds: int, size: int) -> subprocess.Popen[str]:
    arguments = [str(directory), str(seed), str(rounds), str(size)]
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def test_eight_processes_share_a_directory(tmp_path: Path) -> None:
    writers = [start_writer(tmp_path, seed, 100, 5000) for seed in range(8)]
    outputs = [writer.communicate(timeout=120)[0] for writer in writers]
    assert outputs == ["ready\nbad 0\n"] * 8
    cache = DiskCache(tmp_path)
    for i in range(10):
        assert cache.load(f"key {i}") == f"key {i}".encode() * 5000
    assert list(tmp_path.glob(".tmp-*")) == []


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_killed_writers_leave_whole_entries_only(tmp_path: Path) -> None:
    size = 400_000  # 2 MB entries: the kill comes while one is being written
    for delay in (0.0, 0.003, 0.007, 0.013, 0.02, 0.03):
        writer = start_writer(tmp_path, 0, 1_000_000, size)
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        time.sleep(delay)
        writer.kill()
        writer.communicate()
        for path in entries(tmp_path):
            content = path.read_bytes()
            header = len(kernel_cache._MAGIC) + kernel_cache._DIGEST_BYTES
            key = content[header : header + 5].decode()
            assert content[header:] == key.encode() * size
            assert DiskCache(tmp_path).load(key) == content[header:]


# ---- keys and the environment ----------------------------------------------------------------


def test_cache_key_tells_parts_apart() -> None:
    keys = {
        cache_key(*parts)
        for parts in (("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), ("", "abc"))
    }
    assert len(keys) == 5
    assert cache_key("a", "b") == cache_key("a", "b")


def test_directory_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYFUSER_DISABLE_CACHE", raising=False)
    monkeypatch.setenv("PYFUSER_CACHE_DIR", str(tmp_path))
    cache = disk_cache()
    assert cache is not None and cache.directory == tmp_path
    assert disk_cache() is cache
    monkeypatch.setenv("PYFUSER_DISABLE_CACHE", "1")
    assert disk_cache() is None
