"""The schedulers' parameters for a target whose block axes are hardware threads.

They extend those of target/parameters.py by what only such a schedule has: vectors of a thread
beside the lanes, which are its neighbours, and tiles in the shared memory of a block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .parameters import PointwiseParameters, ReductionParameters

WARP = 32  # threads that run together


@dataclass(frozen=True, slots=True)
class ThreadedPointwise(PointwiseParameters):
    """lanes    threads side by side in memory: block_x
    unroll   vectors, or rows if there are several, that a thread reads before it computes
    chunk    columns of a tile; a task without one is a block's lines and lanes, unrolled
    lines    rows that the threads of a block read at once: block_y
    vector   elements of a thread that are next to each other in memory, moved at once
    is_even  True if rows are known to have whole vectors
    padding  4-byte words, or elements if they are wider, that are left free after each row of a
             tile, so that the elements of a column are in different banks
    squares  True if a tile is of whole vectors, along rows and columns, which are known to be
             multiples of one: it is as many vectors wide as there are lanes
    resident how many blocks a multiprocessor has registers for, at least
    """

    lines: int = 1
    vector: int = 1
    is_even: bool = False
    padding: int = 0
    squares: bool = False
    resident: int = 1

    @staticmethod
    def tiles(lines: int = 4) -> ThreadedPointwise:
        """Tiles of a warp's width, with a thread for each element of a row.

        Their rows are padded by a word.  An odd number of words if an element has up to 4 bytes:
        the elements of a column are in 32 banks.  If they are larger, the requests are as few as
        possible too.
        """
        return ThreadedPointwise(WARP, WARP // lines, WARP, WARP, lines=lines, padding=1)


@dataclass(frozen=True, slots=True)
class ThreadedReduction(ReductionParameters):
    """lanes     threads side by side in memory: block_x
    unroll    vectors that a thread reads before it computes
    lines     rows of a block: block_y; of an outer reduction, the threads that share a column; of a
              long row, how many places of the axis around its innermost one a block reads at once
    vector    elements of a thread that are next to each other in memory, moved at once; rows are
              known to have whole vectors
    repeats   how many rows a line processes one after the other (inner, whole): it reads weights,
              which are inputs without rows, once for all of them
    is_whole  True if a row, or the part of a column that a block reduces, is known to be no longer
              than lanes, vectors and unrolling (or lines): a thread's part is in registers.  A row
              is also known to have whole vectors
    is_full   True if a row that `is_whole` is known to be just as long as that
    copies    True if inputs are copied, and so kept if several passes read them
    together  True if rows that read the same elements of an input are neighbours (inner): the
              second cache still has them, though not the whole input
    rereads   True if inputs are read where they are used, again from a cache: a thread has no
              registers for its part of the row
    resident  how many blocks a multiprocessor has registers for, at least
    """

    lines: int = 1
    vector: int = 1
    repeats: int = 1
    is_whole: bool = False
    is_full: bool = False
    copies: bool = True
    together: bool = False
    rereads: bool = False
    resident: int = 1

    @property
    def keeps_reads(self) -> bool:
        """True if a thread has registers for its part of a row."""
        return self.is_whole and not self.rereads

    def recomputing(self) -> ThreadedReduction:
        """The same parameters, but no row is kept; one in registers needs no shared memory."""
        return replace(self, keeps=False, copies=self.is_whole)
