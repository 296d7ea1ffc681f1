"""Processor: the facts about a CPU that the code generator and the heuristics read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Processor:
    """One processor: instruction set, cores and caches (sizes in bytes, per core for L1 and L2).

    `features` is LLVM's text (`+avx2,-avx512f,...`). With `cpu_name` it decides which machine code
    runs here, so both belong in the key of every cached object.
    """

    cpu_name: str
    features: str
    architecture: str
    vector_bits: int
    has_fma: bool
    cores: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    cache_line_bytes: int

    def has(self, feature: str) -> bool:
        """True if LLVM lists `feature` (in LLVM's spelling, e.g. `avx512bw`) as present."""
        return f"+{feature}" in self.features.split(",")

    def lanes(self, element_bytes: int) -> int:
        """Elements of `element_bytes` bytes in one full vector register."""
        return max(1, self.vector_bits // (8 * element_bytes))

    def vectors_of_line(self, lanes: int, element_bytes: int) -> int:
        """How many vectors of so many elements share a cache line."""
        return max(1, self.cache_line_bytes // (lanes * element_bytes))

    @property
    def stores_lines_apart(self) -> bool:
        """True if whole cache lines are stored past the caches as fast far apart as side by side.

        Measured on a Zen 4 and a Zen 5, where transpositions that store 16 lines of 16 rows take
        0.5 to 1.1 times as long as those that put a row together first; on a Granite Rapids they
        take longer.
        """
        return self.cpu_name in ("znver4", "znver5")

    @property
    def vector_registers(self) -> int:
        """How many vector registers the instruction set has."""
        is_x86 = self.architecture in ("x86_64", "amd64", "i386", "i686")
        return 16 if is_x86 and self.vector_bits < 512 else 32
