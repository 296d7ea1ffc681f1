"""How many warps of a kernel a multiprocessor has at once: resources of a block -> occupancy.

A block's warps, registers and shared memory, against those of a multiprocessor.  Everything is
allocated in units: registers for each warp, a multiple of 256 of them, by one of the four
partitions that the warp is assigned to; shared memory for each block.  The occupancy is the share
of a multiprocessor's warps that can be resident, which a GPU's profiler calls theoretical.

Source of the numbers: CUDA programming guide, technical specifications per compute capability; the
units are those of the occupancy calculator in Nsight Compute's documentation.
"""

from __future__ import annotations

from dataclasses import dataclass

_WARP = 32
_PARTITIONS = 4
_REGISTERS = 64 << 10  # of a multiprocessor, for all of these architectures
_REGISTER_UNIT = 256  # of a warp


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """What its blocks share.

    warps, blocks   the most that are resident
    shared_bytes    of all resident blocks
    shared_unit     of a block's shared memory, in bytes
    reserved_bytes  of shared memory, that a block doesn't see
    """

    warps: int
    blocks: int
    shared_bytes: int
    shared_unit: int = 128
    reserved_bytes: int = 1 << 10

    @staticmethod
    def of(architecture: str) -> Multiprocessor:
        """That of `sm_NN`; an unknown architecture has those of the closest older one."""
        number = int(architecture.removeprefix("sm_").rstrip("af"))
        older = [known for known in _MULTIPROCESSORS if known <= number]
        return _MULTIPROCESSORS[max(older, default=min(_MULTIPROCESSORS))]


_MULTIPROCESSORS = {
    70: Multiprocessor(64, 32, 96 << 10, shared_unit=256, reserved_bytes=0),
    75: Multiprocessor(32, 16, 64 << 10, shared_unit=256, reserved_bytes=0),
    80: Multiprocessor(64, 32, 164 << 10),
    86: Multiprocessor(48, 16, 100 << 10),
    87: Multiprocessor(48, 16, 164 << 10),
    89: Multiprocessor(48, 24, 100 << 10),
    90: Multiprocessor(64, 32, 228 << 10),
    100: Multiprocessor(64, 32, 228 << 10),
    110: Multiprocessor(48, 24, 228 << 10),
    120: Multiprocessor(48, 24, 100 << 10),
}


def resident_blocks(architecture: str, threads: int, registers: int, shared_bytes: int) -> int:
    """Blocks that a multiprocessor has at once; 0 if not even one fits.

    `threads` and `shared_bytes` (static and dynamic) are a block's, `registers` a thread's.
    """
    has = Multiprocessor.of(architecture)
    warps = -(-threads // _WARP)
    of_warp = _rounded_up(max(registers, 1) * _WARP, _REGISTER_UNIT)
    by_registers = _PARTITIONS * (_REGISTERS // _PARTITIONS // of_warp) // warps
    of_block = _rounded_up(shared_bytes + has.reserved_bytes, has.shared_unit)
    by_shared = has.shared_bytes // of_block if of_block else has.blocks
    return min(has.blocks, has.warps // warps, by_registers, by_shared)


def registers_of_a_block(threads: int) -> int:
    """The registers that each of so many threads can have if a block is alone."""
    warps_of_partition = -(-threads // (_PARTITIONS * _WARP))
    of_warp = _REGISTERS // _PARTITIONS // warps_of_partition
    return of_warp // _REGISTER_UNIT * _REGISTER_UNIT // _WARP


def occupancy(architecture: str, threads: int, registers: int, shared_bytes: int) -> float:
    """The share of a multiprocessor's warps that are resident; see `resident_blocks`."""
    blocks = resident_blocks(architecture, threads, registers, shared_bytes)
    return blocks * -(-threads // _WARP) / Multiprocessor.of(architecture).warps


def _rounded_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
