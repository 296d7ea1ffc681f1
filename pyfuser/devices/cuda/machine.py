"""Facts about a GPU that the heuristics of the schedulers read, by the names of the CPU's.

The schedulers ask for lanes (what runs side by side in the innermost loop), cores and caches; on a
GPU these are the threads of a block, multiprocessors, and shared memory.  Without a GPU the facts
are those of a common one, so that kernels can be looked at on any machine.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CudaMachine:
    """One GPU: its multiprocessors, and sizes in bytes.

    `cores`     blocks that run side by side, one a multiprocessor
    `threads`   threads of a block: four warps, one for each scheduler of a multiprocessor
    `l1_bytes`  of a multiprocessor, what its shared memory can be made of
    """

    cores: int
    threads: int
    l1_bytes: int
    l2_bytes: int
    cache_line_bytes: int = 128

    @property
    def l3_bytes(self) -> int:
        """The last cache, which is the second level."""
        return self.l2_bytes

    def lanes(self, element_bytes: int) -> int:
        """Threads of a block, whatever the size of an element: they read side by side."""
        del element_bytes
        return self.threads


# An A100: NVIDIA A100 Tensor Core GPU architecture, tables 4 and 5.
COMMON = CudaMachine(cores=108, threads=128, l1_bytes=192 << 10, l2_bytes=40 << 20)
