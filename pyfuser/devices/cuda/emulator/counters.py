"""What a kernel did to memory, as a GPU's profiler would count it: launch -> Counts.

`Module.launch(..., counts=Counts())` has the emulator fill one in (simt_counters.h says how), and
`Profile` keeps those of the first launch of each kernel and geometry.  A request is one memory
instruction of a warp; a sector is 32 aligned bytes, the unit in which the caches and the memory
transfer.  Invariant: counting changes no result.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..codegen import Geometry
from . import operations

SECTOR_BYTES = 32


class BufferCounts(ctypes.Structure):
    """Of one buffer of a launch; the same fields as simt::BufferCounts in simt.h."""

    bytes: int
    sectors: Sequence[int]  # of all requests: those that read, those that write
    missed: Sequence[int]  # those of them that aren't in the block's share of the second cache
    distinct: Sequence[int]  # sectors that are different

    _fields_ = (
        ("bytes", ctypes.c_uint64),
        ("sectors", ctypes.c_uint64 * 2),
        ("missed", ctypes.c_uint64 * 2),
        ("distinct", ctypes.c_uint64 * 2),
    )


class Counts(ctypes.Structure):
    """The counts of one launch; the same fields as simt::Counts in simt.h."""

    read_requests: int
    read_sectors: int  # per request, so an address that is read twice counts twice
    write_requests: int
    write_sectors: int
    bytes_read: int  # distinct ones, as are the next three
    bytes_written: int
    scratch_bytes: int  # read and written, of memory between the phases; in no other count of bytes
    distinct_sectors: int  # those read plus those written, scratch memory included
    shared_requests: int
    bank_conflicts: int  # cycles that requests to shared memory take beyond the fewest possible
    barriers: int  # __syncthreads, of blocks
    warp_operations: int  # shuffles, ballots and __syncwarp, of warps
    atomics: int  # of threads; they are in no other count of memory
    divergent_branches: int  # of warps: their lanes go on to different basic blocks
    operations: int  # of threads: see operations.py; with accesses of memory
    threads: int
    blocks: int  # that were run
    buffers: tuple[BufferCounts, ...] = ()  # of one launch

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in (
            *("read_requests", "read_sectors", "write_requests", "write_sectors"),
            *("bytes_read", "bytes_written", "scratch_bytes", "distinct_sectors"),
            *("shared_requests", "bank_conflicts", "barriers", "warp_operations", "atomics"),
            *("divergent_branches", "operations", "threads", "blocks"),
        )
    )

    @property
    def sectors(self) -> int:
        """Sectors that move between the multiprocessors and the memory if no cache helps."""
        return self.read_sectors + self.write_sectors

    @property
    def sectors_per_request(self) -> float:
        """4 for 32 consecutive elements of 4 bytes, 16 for vectors of 16 bytes, 32 at worst."""
        return _ratio(self.sectors, self.read_requests + self.write_requests)

    @property
    def bytes_needed(self) -> int:
        """Distinct bytes of tensors that are read, plus those that are written."""
        return self.bytes_read + self.bytes_written

    @property
    def overhead(self) -> float:
        """Bytes of all sectors per byte needed: 1 if each byte moves once, and no other."""
        return _ratio(SECTOR_BYTES * self.sectors, self.bytes_needed)

    @property
    def cached_overhead(self) -> float:
        """The overhead if a cache keeps everything: parts of sectors, and scratch memory."""
        return _ratio(SECTOR_BYTES * self.distinct_sectors, self.bytes_needed)

    @property
    def share_of_roof(self) -> float:
        """The predicted share of the memory's bandwidth that moves bytes needed, without caches."""
        return _ratio(self.bytes_needed, SECTOR_BYTES * self.sectors)

    @property
    def conflicts_per_request(self) -> float:
        """31 at worst, for accesses of up to 4 bytes."""
        return _ratio(self.bank_conflicts, self.shared_requests)

    @property
    def operations_per_thread(self) -> float:
        """The mean over all threads; NaN if the host's operations can't be counted."""
        return _ratio(self.operations, self.threads) if operations.is_counted() else math.nan

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, n) + getattr(other, n) for n, *_ in self._fields_))


def _ratio(a: int, b: int) -> float:
    return a / b if b else math.nan


@dataclass(frozen=True, slots=True)
class CountedLaunch:
    """The first launch of a kernel with a geometry."""

    text: str
    function: str
    geometry: Geometry
    counts: Counts

    @property
    def scale(self) -> float:
        """The blocks of the grid over those that were run."""
        return math.prod(self.geometry.grid) / max(self.counts.blocks, 1)


@dataclass(slots=True)
class Profile:
    """The counts of each kernel's first launch with each geometry, in the order of launches.

    `most_blocks`: only a sample of at most so many blocks is run, so results are wrong; 0 runs all.
    """

    most_blocks: int = 0
    launches: list[CountedLaunch] = field(default_factory=list)
    _known: set[tuple[str, str, Geometry]] = field(default_factory=set)

    def counts(self, text: str, function: str, geometry: Geometry) -> Counts | None:
        """What a launch shall count into; None if such a launch has been counted."""
        launch = (text, function, geometry)
        if launch in self._known:
            return None
        self._known.add(launch)
        counts = Counts()
        self.launches.append(CountedLaunch(text, function, geometry, counts))
        return counts

    def launches_of(self, call: Callable[[], object]) -> list[CountedLaunch]:
        """The launches of a call, counted again; the profile itself stays as it is."""
        kept, known = self.launches, self._known
        self.launches, self._known = [], set()
        try:
            call()
            return self.launches
        finally:
            self.launches, self._known = kept, known

    @property
    def total(self) -> Counts:
        """The sum over the launches: of all phases of a kernel, if the profile has one."""
        return sum((launch.counts for launch in self.launches), Counts())
