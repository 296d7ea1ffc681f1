"""torch's digest of its own sources, kept on disk from one process to the next.

Every key of torch's caches contains it.  torch reads and hashes all of its files for it, which
takes most of the time of a process's first key (0.13 s of 0.2 s); asking the file system whether
one of them has changed takes 0.01 s.

Invariant: what is found is what torch would compute, because all its files are in the state in
which they were when it did: path, size, times of change, inode.  The time of a change of an inode
(ctime) can't be set by a program, so no edit leaves it as it was.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import torch

from ..caches.disk_cache import DiskCache

try:
    from torch._inductor.codecache import torch_key
except ImportError:  # this torch has no such digest
    torch_key = None  # type: ignore[assignment]

_FOLDER = Path(torch.__file__).parent
# What torch's digest is made of: modules, and two files of Inductor.
_READ = (".py", ".so", ".pyd", ".cpp", ".ld")
# Files that changed so recently may change again without another time.
_FRESH_SECONDS = 10.0


@cache
def set_digest(kept: DiskCache) -> None:
    """Gives torch the digest that an earlier process computed, or keeps what torch computes now.

    Done once for a cache; torch computes its digest itself if this isn't possible.
    """
    if not hasattr(torch_key, "set"):
        return
    try:
        states = sorted(_states(_FOLDER))
    except OSError:
        return
    digest = hashlib.sha256(repr(states).encode()).hexdigest()
    key = f"digest of torch's sources\n{torch.__version__}\n{_FOLDER}\n{digest}"
    found = kept.load(key)
    if found is not None:
        try:
            torch_key.set(found)
        except RuntimeError:  # torch has already computed it
            return
    elif max(max(times) for _, _, times, _ in states) < (time.time() - _FRESH_SECONDS) * 1e9:
        kept.store(key, torch_key())


def _states(folder: str | os.PathLike[str]) -> Iterator[tuple[str, int, tuple[int, int], int]]:
    """Path, size, times of change in ns, and inode of each file in a folder and those below it."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name != "__pycache__":
                    yield from _states(entry.path)
            elif entry.name.endswith(_READ):
                found = entry.stat()
                times = found.st_mtime_ns, found.st_ctime_ns
                yield entry.path, found.st_size, times, found.st_ino
