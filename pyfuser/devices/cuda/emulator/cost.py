"""How long a launch takes on a GPU, predicted from its counts: to rank schedules, not to time them.

The sum of what the launch itself costs, the sectors at the bandwidth that its threads can use, and
the cycles of bank conflicts and barriers.  No cache is modelled, and no arithmetic: what pyfuser
generates is bound by memory.
"""

from __future__ import annotations

import math

from ..target import CudaTarget
from .counters import SECTOR_BYTES, CountedLaunch

# An A100: NVIDIA A100 Tensor Core GPU architecture, table 4.
_BYTES_PER_SECOND = 1.5e12
_CYCLES_PER_SECOND = 1.4e9
# Threads of a multiprocessor with which reads use the memory's bandwidth: those of the heuristics.
_BUSY_THREADS = 256
# A block waits at a barrier for about the latency of shared memory; other blocks hide most of it.
_BARRIER_CYCLES = 10


def seconds(launch: CountedLaunch, target: CudaTarget) -> float:
    """The predicted time of a launch."""
    counts, blocks = launch.counts, math.prod(launch.geometry.grid)
    threads = blocks * math.prod(launch.geometry.block)
    share = min(1.0, threads / (target.multiprocessors * _BUSY_THREADS))
    memory = SECTOR_BYTES * counts.sectors * launch.scale / (_BYTES_PER_SECOND * share)
    busy = min(blocks, target.multiprocessors)
    cycles = (counts.bank_conflicts + _BARRIER_CYCLES * counts.barriers) * launch.scale / busy
    started = target.launch_bytes / _BYTES_PER_SECOND
    return started + memory + cycles / _CYCLES_PER_SECOND
