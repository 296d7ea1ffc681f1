"""The disk cache: whole entries for all processes, none that another user could have written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pyfuser import kernel_builds, options
from pyfuser.caches.disk_cache import _DIGEST_BYTES, _MAGIC, DiskCache, disk_cache, untrusted
from pyfuser.devices.registry import runtime_of
from tests.support.folders import ROOT


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
    with pytest.warns(RuntimeWarning, match="pyfuser disk cache: .*file, which isn't a directory"):
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
    def no_space(source: str, target: str, **_: int) -> None:
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


def test_the_cache_trims_itself(tmp_path: Path) -> None:
    """Whoever stores: one entry each from as many processes are one process's entries."""
    for i in range(2000):
        DiskCache(tmp_path, most_bytes=10_000).store(f"key {i}", bytes(1000))
    assert len(entries(tmp_path)) < 1990


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


# ---- what somebody else could have written ---------------------------------------------------


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives a file to another user; only root can, so others become another user instead."""
    if os.geteuid() == 0:
        os.chown(path, 12345, -1, follow_symlinks=False)
    else:
        other = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: other)


def make_writable_by_group(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.chmod(0o770)


def make_writable_by_all(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.chmod(0o777)


Opening = Callable[[Path, pytest.MonkeyPatch], None]
openings = pytest.mark.parametrize(
    "opening", [give_away, make_writable_by_group, make_writable_by_all]
)


@openings
@pytest.mark.parametrize("level", ["the directory", "its parent", "an ancestor"])
def test_a_directory_that_others_can_write_to_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opening: Opening, level: str
) -> None:
    directory = tmp_path / "a" / "b" / "c"
    DiskCache(directory).store("key", b"payload")
    opened = {"the directory": directory, "its parent": directory.parent}
    opening(opened.get(level, tmp_path), monkeypatch)
    cache = DiskCache(directory)
    with pytest.warns(RuntimeWarning, match="that nobody else can write to, got .*") as caught:
        assert cache.load("key") is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "key" not in cache
        assert cache.load("key") is None
        cache.store("other", b"payload")
        cache.trim()
    assert len(caught) == 1
    assert len(entries(directory)) == 1  # nothing was added, and nothing removed


def test_storing_refuses_such_a_directory_too(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="to which others can write"):
        DiskCache(tmp_path / "new").store("key", b"payload")
    assert list(tmp_path.iterdir()) == []


def test_a_sticky_parent_is_fine_and_a_sticky_directory_is_not(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "own")
    tmp_path.chmod(0o1777)
    cache.store("key", b"payload")
    assert cache.load("key") == b"payload"
    assert untrusted(tmp_path / "own") is None
    assert "to which others can write" in str(untrusted(tmp_path))


def test_what_is_made_is_for_this_user_alone(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        DiskCache(tmp_path / "a" / "b").store("key", b"payload")
    finally:
        os.umask(mask)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    assert entries(tmp_path / "a" / "b")[0].stat().st_mode & 0o777 == 0o600


def test_a_directory_is_looked_at_again_when_it_has_changed(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "own")
    cache.store("key", b"payload")
    cache.directory.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="to which others can write"):
        assert cache.load("key") is None


def test_a_link_to_a_safe_directory_is_followed_and_one_to_another_is_not(tmp_path: Path) -> None:
    DiskCache(tmp_path / "safe").store("key", b"payload")
    link = tmp_path / "link"
    link.symlink_to("safe")
    cache = DiskCache(link)
    assert cache.load("key") == b"payload"
    (tmp_path / "open" / "inside").mkdir(parents=True)
    (tmp_path / "open").chmod(0o777)
    link.unlink()
    link.symlink_to("open/inside")
    with pytest.warns(RuntimeWarning, match="open, to which others can write"):
        assert cache.load("key") is None


def stored_entry(cache: DiskCache) -> Path:
    cache.store("key", b"payload")
    assert cache.load("key") == b"payload"
    return entries(cache.directory)[0]


@pytest.mark.parametrize("opening", [make_writable_by_group, make_writable_by_all])
def test_an_entry_that_others_could_write_is_a_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opening: Opening
) -> None:
    cache = DiskCache(tmp_path)
    path = stored_entry(cache)
    opening(path, monkeypatch)
    assert cache.load("key") is None
    assert not path.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_an_entry_that_belongs_to_somebody_else_is_a_miss(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    path = stored_entry(cache)
    os.chown(path, 12345, -1)
    assert cache.load("key") is None
    assert not path.exists()


def replace_by_fifo(path: Path, content: bytes) -> None:
    os.mkfifo(path, 0o600)


def replace_by_link(path: Path, content: bytes) -> None:
    outside = path.parent.parent / "outside"
    outside.write_bytes(content)
    path.symlink_to(outside)


def replace_by_directory(path: Path, content: bytes) -> None:
    path.mkdir()


@pytest.mark.parametrize("replace", [replace_by_fifo, replace_by_link, replace_by_directory])
def test_only_regular_files_are_entries(
    tmp_path: Path, replace: Callable[[Path, bytes], None]
) -> None:
    cache = DiskCache(tmp_path / "cache")
    path = stored_entry(cache)
    content = path.read_bytes()
    path.unlink()
    replace(path, content)
    assert "key" not in cache
    assert cache.load("key") is None  # and doesn't wait for the other end of a FIFO
    if path.is_dir():
        with pytest.warns(RuntimeWarning, match="expected a writable directory"):
            cache.store("key", b"again")
    else:
        cache.store("key", b"again")
        assert cache.load("key") == b"again"


# ---- many processes -------

# The package without its __init__.py, which would load torch in each of the processes.
WRITER = """
import sys
import types
from pathlib import Path
package = sys.modules["pyfuser"] = types.ModuleType("pyfuser")
package.__path__ = ["pyfuser"]
from pyfuser.caches.disk_cache import DiskCache
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
            header = len(_MAGIC) + _DIGEST_BYTES
            key = content[header : header + 5].decode()
            assert content[header:] == key.encode() * size
            assert DiskCache(tmp_path).load(key) == content[header:]


# ---- the environment -------------------------------------------------------------------------


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


def test_a_user_without_a_home_has_no_cache_and_one_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("PYFUSER_DISABLE_CACHE", "PYFUSER_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    options._warn_of_no_home.cache_clear()
    with pytest.warns(RuntimeWarning, match="pyfuser disk cache: expected a home directory"):
        assert disk_cache() is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert disk_cache() is None


def test_a_failed_connection_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = runtime_of(torch.device("cpu"))
    given: list[object] = []

    def keep(cache: object) -> None:
        given.append(cache)
        if len(given) == 1:
            raise OSError("no cache yet")

    monkeypatch.setattr(kernel_builds, "_connected", {})
    monkeypatch.setattr(type(runtime), "keep_objects_in", lambda _, cache: keep(cache))
    with pytest.raises(OSError, match="no cache yet"):
        kernel_builds.share_objects(runtime)
    kernel_builds.share_objects(runtime)
    kernel_builds.share_objects(runtime)
    assert len(given) == 2
