"""Enumerations of choices in the interface: schedulers, copies, caching, mappings.

`DataType`, `ParallelType` and `MemoryType` are nouns of the IR and are defined there.  Members
print as `SchedulerType.pointwise`, and a class lists them in `__entries` like the interface's
enums.
"""

from __future__ import annotations

import enum

from ..dtypes import DataType
from ..ir.domains import ParallelType
from ..ir.schedule import MemoryType


class SchedulerType(enum.Enum):
    """Which scheduler makes the schedule of a kernel."""

    none = 0
    no_op = 1
    pointwise = 2
    matmul = 3
    reduction = 4
    inner_persistent = 5
    inner_outer_persistent = 6
    outer_persistent = 7
    transpose = 8
    expr_eval = 9
    resize = 10
    greedy = 11


class LoadStoreOpType(enum.Enum):
    """How a copy between memories is done."""

    set = 0
    load_matrix = 1
    cp_async = 2
    tma = 3


class CacheOp(enum.Enum):
    """How a load uses the caches."""

    unspecified = 0
    all_levels = 1
    streaming = 2
    global_ = 3


setattr(CacheOp, "global", CacheOp.global_)  # the interface's name is a Python keyword


class IdMappingMode(enum.Enum):
    """Which axes count as the same."""

    exact = 0
    almost_exact = 1
    broadcast = 2
    permissive = 3
    loop = 4


class CommunicatorBackend(enum.Enum):
    """Which library moves data between devices."""

    nccl = 0
    ucc = 1
    cuda = 2


class MatmulTilingStrategy(enum.Enum):
    """How the tiles of a matrix product are distributed over the multiprocessors."""

    one_tile_per_cta = 0
    distribute_tiles_across_sms = 1
    distribute_stages_across_sms = 2


class MatmulBufferingLoopLevel(enum.Enum):
    """Which loop of a matrix product is buffered."""

    cta_tiles = 0
    warp_tiles = 1


class MatmulCircularBufferingStrategy(enum.Enum):
    """Who loads a matrix product's buffers."""

    pipelined = 0
    warp_specialized = 1


class MatmulTileRasterizationOrder(enum.Enum):
    """In which order blocks take the tiles of a matrix product."""

    column_major = 0
    row_major = 1


class MmaMacroArch(enum.Enum):
    """The architecture of a matrix instruction."""

    no_mma = 0
    volta = 1
    turing = 2
    ampere = 3
    hopper = 4
    blackwell_1cta = 5
    blackwell_2cta = 6


def _publish_entries(*kinds: type[enum.Enum]) -> None:
    for kind in kinds:
        # A member that would be a keyword in Python has an underscore after its name.
        members = kind.__members__.items()
        entries = {name.removesuffix("_"): (member, None) for name, member in members}
        setattr(kind, "__entries", entries)


_publish_entries(
    DataType, ParallelType, MemoryType,
    SchedulerType, LoadStoreOpType, CacheOp, IdMappingMode, CommunicatorBackend,
    MatmulTilingStrategy, MatmulBufferingLoopLevel, MatmulCircularBufferingStrategy,
    MatmulTileRasterizationOrder, MmaMacroArch,
)  # fmt: skip
