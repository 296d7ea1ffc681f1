"""Parameters of a generated matrix product, as users of the interface set them.

Matrix products are library calls here, so no scheduler reads these values; programs that build,
print, compare or hash them run.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from .enums import (
    MatmulBufferingLoopLevel,
    MatmulCircularBufferingStrategy,
    MatmulTileRasterizationOrder,
    MatmulTilingStrategy,
    MmaMacroArch,
    SchedulerType,
)
from .params import HeuristicParams

_BITS = 16  # of each field of an encoded macro
_MASK = (1 << _BITS) - 1


@dataclass(slots=True)
class GemmTile:
    """The extents of a tile of a matrix product [m, k] @ [k, n]."""

    m: int = 128
    n: int = 128
    k: int = 32


@dataclass(slots=True)
class MatMulTileOptions:
    """The tile of a block, and the part of it that each warp computes."""

    cta_tile: GemmTile = field(default_factory=GemmTile)
    warp_tile: GemmTile = field(default_factory=lambda: GemmTile(64, 64, 32))


@dataclass(slots=True)
class CircularBufferOptions:
    """Which buffers are circular, with how many stages."""

    circular_buffer_smem_write: bool = False
    circular_buffer_smem_read: bool = False
    smem_circular_buffer_stage: int = 2
    smem_circular_buffer_prefetch_gap: int = 1


@dataclass(slots=True)
class SupportedVectorization:
    """Elements that one instruction loads or stores, for each operand and the result."""

    a: int = 1
    b: int = 1
    epilogue: int = 1


@dataclass(slots=True)
class ClusterDims:
    """The blocks of a cluster."""

    m: int = 1
    n: int = 1


@dataclass(frozen=True)
class MmaMacroEncode:
    """A matrix instruction: its architecture, and the extents of what it multiplies."""

    arch: MmaMacroArch = MmaMacroArch.no_mma
    m: int = 0
    n: int = 0
    k: int = 0

    def mma_macro(self) -> MmaMacro:
        """The member of MmaMacro.  ValueError if there is no such instruction."""
        return MmaMacro(_encoded(self.arch, self.m, self.n, self.k))

    @staticmethod
    def of(macro: MmaMacro) -> MmaMacroEncode:
        """The architecture and extents of a member of MmaMacro."""
        arch, m, n, k = (macro.value >> _BITS * place & _MASK for place in (3, 2, 1, 0))
        return MmaMacroEncode(MmaMacroArch(arch), m, n, k)


def _encoded(arch: MmaMacroArch, m: int, n: int, k: int) -> int:
    value = arch.value
    for extent in (m, n, k):
        value = value << _BITS | extent
    return value


def _instructions() -> dict[str, int]:
    """Every name with its code: the shapes of `mma`, `wgmma` and `tcgen05.mma` for 16-bit
    operands (PTX ISA, warp-level, asynchronous warpgroup-level and tcgen05 matrix instructions).
    """
    arch = MmaMacroArch
    columns = range(8, 257, 8)
    shapes: list[tuple[str, MmaMacroArch, int, int, int]] = [
        ("Volta", arch.volta, 16, 16, 4),
        *(("Turing", arch.turing, 16, n, k) for n, k in ((8, 8), (8, 16), (16, 16))),
        *(("Ampere", arch.ampere, 16, n, k) for n, k in ((8, 8), (8, 16), (16, 16))),
        *(("Hopper", arch.hopper, 64, n, 16) for n in columns),
        *(("Blackwell1CTA", arch.blackwell_1cta, 64, n, 16) for n in columns),
        *(("Blackwell1CTA", arch.blackwell_1cta, 128, n, 16) for n in columns if n % 16 == 0),
        *(("Blackwell2CTA", arch.blackwell_2cta, 128, n, 16) for n in columns if n % 16 == 0),
        *(("Blackwell2CTA", arch.blackwell_2cta, 256, n, 16) for n in columns if n % 16 == 0),
    ]
    found = {"NoMMA": 0}
    for name, which, m, n, k in shapes:
        found[f"{name}_{m}_{n}_{k}"] = _encoded(which, m, n, k)
    return found


MmaMacro = enum.Enum("MmaMacro", _instructions())  # type: ignore[misc]
MmaMacro.__doc__ = "The matrix instructions; `MmaMacroEncode.of` decodes one."


@dataclass(slots=True)
class MatmulParams(HeuristicParams):
    """Decisions for a matrix product."""

    scheduler_type: SchedulerType = SchedulerType.matmul
    tile_sizes: MatMulTileOptions = field(default_factory=MatMulTileOptions)
    circular_buffer_options: CircularBufferOptions = field(default_factory=CircularBufferOptions)
    supported_vec_size: SupportedVectorization = field(default_factory=SupportedVectorization)
    async_gmem_load_operands: bool = False
    grid_traversal_factor: tuple[int, int] = (1, 1)
    use_smem_epilogue: bool = False
    use_ldst_matrix: bool = False
    promote_prologue_smem_reuse: bool = False
    splitk_factor: int = 1
    tiling_strategy: MatmulTilingStrategy = MatmulTilingStrategy.one_tile_per_cta
    buffering_loop_level: MatmulBufferingLoopLevel = MatmulBufferingLoopLevel.cta_tiles
    circular_buffering_strategy: MatmulCircularBufferingStrategy = (
        MatmulCircularBufferingStrategy.pipelined
    )
    cta_order: MatmulTileRasterizationOrder = MatmulTileRasterizationOrder.row_major
    cluster_dims: ClusterDims = field(default_factory=ClusterDims)
    mma_macro: MmaMacro = MmaMacro.NoMMA  # type: ignore[attr-defined]
