"""Kernel specifications -> compiled kernels, in this process (KernelCache) and on disk (DiskCache).

KernelCache is a bounded map for many threads: whoever asks first for a key makes the value, whoever
asks for the same key meanwhile waits for it, other keys go on undisturbed, and a failure reaches
all who waited but isn't kept.  DiskCache keeps bytes by key for many processes: an entry appears
whole or not at all (written aside, then renamed), carries a digest that is checked on reading, and
a cache that can't be read or written is an empty one, never an error.  Neither knows a device: what
a key must contain so that its value is valid (processor, versions) is its user's duty.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sys
import tempfile
import threading
import time
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, Generic, TypeVar

from . import options
from .errors import InternalError, expected

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

# About 100 KB each with its machine code, plans and text: 4096 stay under half a gigabyte.
DEFAULT_CAPACITY = 4096
DEFAULT_DISK_BYTES = 512 << 20
_MAGIC = b"pyfuser cache 1\n"
_DIGEST_BYTES = hashlib.sha256().digest_size
_STORES_BETWEEN_TRIMS = 256
# A temporary file that is older belongs to a process that was killed.
_STALE_SECONDS = 3600.0


class _Pending(Generic[Value]):
    """A value that a thread is making; `done` is set when `value` or `error` is there."""

    __slots__ = ("done", "error", "owner", "value")

    def __init__(self) -> None:
        self.done = threading.Event()
        self.owner = threading.get_ident()
        self.value: Value | None = None
        self.error: BaseException | None = None


class KernelCache(Generic[Key, Value]):
    """A bounded, thread-safe map that makes each value once; the least recently used go first."""

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        self.capacity = capacity
        self.hits = 0
        self.misses = 0
        self.created = 0
        self.evictions = 0
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self._pending: dict[Key, _Pending[Value]] = {}
        self._lock = threading.Lock()
        _caches.add(self)

    def values(self) -> list[Value]:
        """The values that are there now, the least recently used first."""
        with self._lock:
            return list(self._values.values())

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: Key) -> bool:
        return key in self._values

    def get_or_create(self, key: Key, factory: Callable[[], Value]) -> Value:
        """The value of `key`; `factory()` makes it, without a lock held, if it isn't there.

        What `factory` raises is raised here and in every thread that waited for it; the next
        request tries again.  A request that waited counts as a hit if it got the value.
        """
        while True:
            with self._lock:
                if key in self._values:
                    self.hits += 1
                    self._values.move_to_end(key)
                    return self._values[key]
                pending = self._pending.get(key)
                if pending is None:
                    self.misses += 1
                    pending = self._pending[key] = _Pending()
                    break
            if pending.owner == threading.get_ident():
                raise InternalError(
                    expected("KernelCache", "a factory that doesn't ask for its own key", repr(key))
                )
            pending.done.wait()
            # An interrupt (KeyboardInterrupt, SystemExit) is meant for the thread it came to only:
            # those who waited try again.
            if isinstance(pending.error, Exception):
                raise pending.error
        return self._create(key, pending, factory)

    def clear(self) -> None:
        """Forget all values; the counters stay."""
        with self._lock:
            self._values.clear()

    def _create(self, key: Key, pending: _Pending[Value], factory: Callable[[], Value]) -> Value:
        """Make the value, put it in, and wake those who wait."""
        try:
            value = factory()
        except BaseException as error:
            pending.error = error
            with self._lock:
                self._pending.pop(key, None)
            pending.done.set()
            raise
        evicted = []
        with self._lock:
            self._pending.pop(key, None)
            self.created += 1
            self._values[key] = value
            while len(self._values) > self.capacity:
                # Kept until the lock is released: dropping a kernel may run code that comes back.
                evicted.append(self._values.popitem(last=False))
                self.evictions += 1
        pending.done.set()
        return value

    def reset_after_fork(self) -> None:
        """In a forked child: the threads that held the lock or were making values are gone."""
        self._lock = threading.Lock()
        self._pending = {}


class DiskCache:
    """Bytes by key in a directory that many processes share.

    An entry is a file named after the key's digest: a magic line, the digest of key and payload,
    the payload.  Anything else under that name is removed and counts as missing.
    """

    def __init__(self, directory: Path, most_bytes: int = DEFAULT_DISK_BYTES) -> None:
        self.directory = Path(directory)
        self.most_bytes = most_bytes
        self._stores = 0
        self._warned = False

    def __contains__(self, key: str) -> bool:
        """True where there is an entry; only `load` reads it, and finds out whether it is whole."""
        return self._path(key).exists()

    def load(self, key: str) -> bytes | None:
        """The payload stored under `key`, or None if there is none that is whole."""
        path = self._path(key)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        start = len(_MAGIC) + _DIGEST_BYTES
        payload = content[start:]
        if content[:start] == _MAGIC + _digest(key, payload):
            with contextlib.suppress(OSError):
                # The time of last use, which trimming goes by; written rarely, since it is a write.
                if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                    os.utime(path)
            return payload
        with contextlib.suppress(OSError):
            path.unlink()
        return None

    def store(self, key: str, payload: bytes) -> None:
        """Keep `payload` under `key`; if that isn't possible, one warning and no error."""
        temporary = None
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(prefix=".tmp-", dir=self.directory)
            with os.fdopen(descriptor, "wb") as file:
                file.write(_MAGIC + _digest(key, payload))
                file.write(payload)
            os.replace(temporary, self._path(key))
        except OSError as error:
            if temporary is not None:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
            self._warn(error)
            return
        if self._stores % _STORES_BETWEEN_TRIMS == 0:
            self.trim()
        self._stores += 1

    def trim(self) -> None:
        """Remove stale temporary files, and what was used longest ago if there are too many bytes.

        Trims to three quarters of the limit, so that the next trim isn't due at once.
        """
        entries = []
        with contextlib.suppress(OSError), os.scandir(self.directory) as listing:
            for item in listing:
                with contextlib.suppress(OSError):  # another process may be trimming, too
                    status = item.stat()
                    if item.name.startswith(".tmp-"):
                        if time.time() - status.st_mtime > _STALE_SECONDS:
                            os.unlink(item.path)
                    elif item.name.endswith(".kernel"):
                        entries.append((status.st_mtime, status.st_size, item.path))
        total = sum(size for _, size, _ in entries)
        if total <= self.most_bytes:
            return
        for _, size, path in sorted(entries):
            if total <= self.most_bytes * 3 // 4:
                break
            with contextlib.suppress(OSError):
                os.unlink(path)
            total -= size

    def _path(self, key: str) -> Path:
        return self.directory / f"{hashlib.sha256(key.encode()).hexdigest()}.kernel"

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"pyfuser disk cache: expected a writable directory, got {error}; compiled kernels "
                "won't be kept (PYFUSER_DISABLE_CACHE=1 switches the cache off)",
                RuntimeWarning,
                stacklevel=3,
            )


def disk_cache() -> DiskCache | None:
    """The disk cache that the environment asks for (PYFUSER_CACHE_DIR), or None if switched off."""
    directory = options.cache_directory()
    return None if directory is None else _disk_cache_of(directory)


def cache_key(*parts: str) -> str:
    """One text for several: different parts never give the same key, however they are divided."""
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.hexdigest()


@functools.cache
def _disk_cache_of(directory: Path) -> DiskCache:
    return DiskCache(directory)


def _digest(key: str, payload: bytes) -> bytes:
    """Digest of an entry; with the key in it, an entry under another one's name isn't valid."""
    return hashlib.sha256(hashlib.sha256(key.encode()).digest() + payload).digest()


_caches: weakref.WeakSet[KernelCache[Any, Any]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for cache in list(_caches):
        cache.reset_after_fork()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork_in_child)
