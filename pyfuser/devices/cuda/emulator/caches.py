"""Which of a launch's sectors the memory moves, if a second cache serves the others: a model.

Blocks that are resident at the same time have equal shares of the second cache, from which the
sectors that were used longest ago are dropped (simt_cache.h); neighbours share theirs.  A buffer of
at most half of the cache, such as the weights of a norm, stays there for all blocks.  Nothing stays
from one launch to the next.
"""

from __future__ import annotations

import math

from ..codegen import Geometry
from ..occupancy import Multiprocessor
from ..target import CudaTarget
from .counters import SECTOR_BYTES, BufferCounts, CountedLaunch

_WARP = 32


def cache_sectors(geometry: Geometry, target: CudaTarget) -> int:
    """A block's share of the second cache, if as many blocks run as threads allow."""
    has = Multiprocessor.of(target.architecture)
    warps = -(-math.prod(geometry.block) // _WARP)
    resident = target.multiprocessors * min(has.blocks, max(has.warps // warps, 1))
    return target.l2_bytes // SECTOR_BYTES // max(min(math.prod(geometry.grid), resident), 1)


def memory_sectors(launch: CountedLaunch, target: CudaTarget) -> float:
    """The sectors that move between the memory and the second cache, of all blocks."""

    def moved(buffer: BufferCounts) -> float:
        stays = buffer.bytes <= target.l2_bytes // 2
        # With those that are partly the buffer's own, at both ends.
        most = buffer.bytes // SECTOR_BYTES + 2
        return sum(
            min(launch.scale * distinct, most) if stays else launch.scale * missed
            for missed, distinct in zip(buffer.missed, buffer.distinct, strict=True)
        )

    return sum(map(moved, launch.counts.buffers))
