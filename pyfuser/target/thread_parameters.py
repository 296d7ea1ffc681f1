"""The schedulers' parameters for a target whose block axes are hardware threads.

They extend those of target/parameters.py by what only such a schedule has: vectors of a thread
beside the lanes, which are its neighbours, and tiles in the shared memory of a block.
"""

from __future__ import annotations

from dataclasses import dataclass

from .parameters import PointwiseParameters


@dataclass(frozen=True, slots=True)
class ThreadedPointwise(PointwiseParameters):
    """lanes    threads side by side in memory: block_x
    unroll   with a tile: rows of it that each thread reads before the barrier
    chunk    with a tile: its columns
    lines    rows of a tile that the threads of a block read at once: block_y
    padding  elements that are left free after each row of a tile, so that the elements of a column
             are in different banks
    """

    lines: int = 1
    padding: int = 0
