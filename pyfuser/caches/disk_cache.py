"""Bytes by key in a directory that processes share: machine code kept from one run to the next.

An entry appears whole or not at all (it is written to a temporary file, then renamed) and carries a
digest that is checked on reading.  A cache that can't be read or written counts as empty and is
never an error.  The cache is independent of devices: its user must put everything into a key on
which the validity of the value depends (processor, versions).

The loaded bytes are executed.  Invariant: none of them was written by anyone except this user or
root.  The directory and all its parents must belong to one of the two and be writable by nobody
else (a parent such as /tmp may be, if its sticky bit keeps others from replacing our files).  The
same holds for an entry, which has to be a regular file: links are not followed, and opening never
blocks.  A directory that doesn't meet this isn't used, and one warning says why.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import secrets
import stat
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from .. import options

DEFAULT_MOST_BYTES = 512 << 20
_MAGIC = b"pyfuser cache 1\n"
_DIGEST_BYTES = hashlib.sha256().digest_size
# Entries whose names begin with this, one in 256, trim the cache when they are stored.  A count of
# stores would begin again in every process, and looking at a hundred thousand entries takes 0.4 s.
_TRIMMING_PREFIX = "00"
# A temporary file older than this belongs to a process that was killed.
_STALE_SECONDS = 3600.0
# With access control lists, the group's bits are the maximum that any entry grants.
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class TrustedDirectory:
    """A directory whose files only this user and root can have written; files are replaced whole.

    `contents` is what won't be kept if the directory can't be used.
    """

    contents = "results"

    def __init__(self, directory: Path) -> None:
        self.directory = Path(directory).absolute()
        self._is_refused = False
        self._trusted: tuple[int, ...] | None = None
        self._warned = False

    def read(self, name: str) -> bytes:
        """A file's contents; empty if others may have written it.  OSError if there is none."""
        with self._opened() as directory:
            return _read_entry(name, directory)

    def write(self, name: str, content: bytes) -> bool:
        """Writes a file; False if that isn't possible, after one warning."""
        if self._is_refused:
            return False
        try:
            self._make_directory()
            with self._opened() as directory:
                self._replace(name, content, directory)
        except OSError as error:
            self._warn("a writable directory", str(error))
            return False
        return True

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Waits for other processes that change a file by what is in it.

        Where the directory can't be made or locked, nobody waits.
        """
        with contextlib.ExitStack() as until_closed:
            with contextlib.suppress(OSError):
                self._make_directory()
                directory = until_closed.enter_context(self._opened())
                fcntl.flock(directory, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """A descriptor of the directory, for a moment.  OSError if there is no trusted directory.

        All access goes through it: a directory that later appears under the same name is checked
        again, and so is one whose owner or mode has changed.
        """
        if self._is_refused:
            raise PermissionError("the directory was refused")
        directory = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            found = os.fstat(directory)
            identity = (found.st_dev, found.st_ino, found.st_uid, found.st_mode)
            if identity != self._trusted:
                self._require_trust()
                resolved = os.lstat(os.path.realpath(self.directory))
                if (resolved.st_dev, resolved.st_ino) != identity[:2]:
                    raise FileNotFoundError("the directory has just been replaced")
                self._trusted = identity
            yield directory
        finally:
            os.close(directory)

    def _require_trust(self) -> None:
        """PermissionError, and a warning, if others can write to the directory."""
        complaint = untrusted(self.directory)
        if complaint is not None:
            self._is_refused = True
            self._warn("a directory that nobody else can write to", complaint)
            raise PermissionError(complaint)

    def _make_directory(self) -> None:
        """Makes the directory and its missing parents, accessible only to this user."""
        if self.directory.is_dir():
            return
        self._require_trust()
        for each in (*reversed(self.directory.parents), self.directory):
            if not each.is_dir():
                each.mkdir(mode=0o700, exist_ok=True)

    def _replace(self, name: str, content: bytes, directory: int) -> None:
        temporary = f".tmp-{os.getpid()}-{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        opened = os.open(temporary, flags, 0o600, dir_fd=directory)
        try:
            with os.fdopen(opened, "wb") as file:
                file.write(content)
            os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=directory)
            raise

    def _warn(self, what: str, got: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"pyfuser disk cache: expected {what}, got {got}; {self.contents} won't be kept "
                "(PYFUSER_CACHE_DIR names another one, PYFUSER_DISABLE_CACHE=1 switches it off)",
                RuntimeWarning,
                stacklevel=3,
            )


class DiskCache(TrustedDirectory):
    """Bytes by key in a directory.

    An entry is a file named after the key's digest: a magic line, the digest of key and payload,
    the payload.  Any other content under that name is removed and counts as missing.
    """

    contents = "compiled kernels"

    def __init__(self, directory: Path, most_bytes: int = DEFAULT_MOST_BYTES) -> None:
        super().__init__(directory)
        self.most_bytes = most_bytes

    def __contains__(self, key: str) -> bool:
        """True if there is an entry; only `load` reads it and checks whether it is whole."""
        with contextlib.suppress(OSError), self._opened() as directory:
            found = os.stat(_name(key), dir_fd=directory, follow_symlinks=False)
            return stat.S_ISREG(found.st_mode)
        return False

    def load(self, key: str) -> bytes | None:
        """The payload stored under `key`, or None if there is no whole entry."""
        with contextlib.suppress(OSError), self._opened() as directory:
            content = _read_entry(_name(key), directory)
            start = len(_MAGIC) + _DIGEST_BYTES
            payload = content[start:]
            if content[:start] == _MAGIC + _digest(key, payload):
                return payload
            os.unlink(_name(key), dir_fd=directory)
        return None

    def store(self, key: str, payload: bytes) -> None:
        """Store `payload` under `key`; if that isn't possible, warn once and raise nothing."""
        name = _name(key)
        is_stored = self.write(name, _MAGIC + _digest(key, payload) + payload)
        if is_stored and name.startswith(_TRIMMING_PREFIX):
            self.trim()

    def trim(self) -> None:
        """Remove stale temporary files and, above the limit, the least recently used entries.

        Trims to three quarters of the limit, so that the next trim isn't due immediately.
        """
        with contextlib.suppress(OSError), self._opened() as directory:
            entries = _entries_to_trim(directory)
            total = sum(size for _, size, _ in entries)
            if total <= self.most_bytes:
                return
            for _, size, name in sorted(entries):
                if total <= self.most_bytes * 3 // 4:
                    break
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=directory)
                total -= size


def disk_cache() -> DiskCache | None:
    """The disk cache that the environment selects, or None if it disables it."""
    directory = options.cache_directory()
    return None if directory is None else _disk_cache_of(directory)


def untrusted(directory: Path) -> str | None:
    """Why the contents of a directory may be somebody else's; None if nobody else can write them.

    Goes from the root down: once a directory is safe, nobody else can replace its contents while we
    look.  A path that doesn't exist yet can't be unsafe.
    """
    resolved = Path(os.path.realpath(directory))
    for each in (*reversed(resolved.parents), resolved):
        try:
            found = os.lstat(each)
        except FileNotFoundError:
            return None
        except OSError as error:
            return str(error)
        if not stat.S_ISDIR(found.st_mode):
            return f"{each}, which isn't a directory"
        if not _is_ours(found):
            return f"{each}, which belongs to another user (uid {found.st_uid})"
        is_sticky_parent = each != resolved and found.st_mode & stat.S_ISVTX
        if found.st_mode & _WRITABLE_BY_OTHERS and not is_sticky_parent:
            mode = stat.S_IMODE(found.st_mode)
            return f"{each}, to which others can write (mode {mode:o}; chmod go-w forbids it)"
    return None


@functools.cache
def _disk_cache_of(directory: Path) -> DiskCache:
    return DiskCache(directory)


def _is_ours(found: os.stat_result) -> bool:
    """True for files of the user whose rights this process has, or of root."""
    return found.st_uid in (0, os.geteuid())


def _read_entry(name: str, directory: int) -> bytes:
    """The contents of an entry's file; empty if it isn't a regular file that only we can write.

    OSError if there is no such file.
    """
    # Opening a FIFO would wait for its other end, and a device might do anything.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    opened = os.open(name, flags, dir_fd=directory)
    try:
        found = os.fstat(opened)
        is_safe = _is_ours(found) and not found.st_mode & _WRITABLE_BY_OTHERS
        if not stat.S_ISREG(found.st_mode) or not is_safe:
            return b""
        with os.fdopen(opened, "rb", closefd=False) as file:
            content = file.read()
        # The time of last use, on which trimming is based; rarely updated, because that is a write.
        if time.time() - found.st_mtime > _STALE_SECONDS:
            with contextlib.suppress(OSError):
                os.utime(opened)
        return content
    finally:
        os.close(opened)


def _entries_to_trim(directory: int) -> list[tuple[float, int, str]]:
    """Time of last use, bytes and name of every entry; stale temporary files are removed."""
    entries = []
    with os.scandir(directory) as listing:
        for item in listing:
            with contextlib.suppress(OSError):  # another process may be trimming too
                status = item.stat(follow_symlinks=False)
                if item.name.startswith(".tmp-"):
                    if time.time() - status.st_mtime > _STALE_SECONDS:
                        os.unlink(item.name, dir_fd=directory)
                elif item.name.endswith(".kernel"):
                    entries.append((status.st_mtime, status.st_size, item.name))
    return entries


def _name(key: str) -> str:
    """The file name of an entry."""
    return f"{hashlib.sha256(key.encode()).hexdigest()}.kernel"


def _digest(key: str, payload: bytes) -> bytes:
    """Digest of an entry; it includes the key, so an entry under another one's name isn't valid."""
    return hashlib.sha256(hashlib.sha256(key.encode()).digest() + payload).digest()
