"""CpuTarget: a processor to compile for, this one or a named one.

The code generator loads when it is first used: a process whose kernels are on disk doesn't need it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import torch

from ...ir.exprs import Expr
from ...ir.kernel import Kernel
from ...target.parameters import (
    Facts,
    InnerOuterFacts,
    InnerOuterParameters,
    PointwiseFacts,
    PointwiseParameters,
    ReductionFacts,
    ReductionParameters,
    ScanFacts,
    ScanParameters,
    ScatterFacts,
    ScatterParameters,
)
from ...target.support import unsupported
from ...target.target import PORTABLE_LIMITS, Limits, Machine, Memory, Target
from . import heuristics
from .host import host
from .kernel_code import CpuKernelCode
from .processor import Processor
from .short_rows import MOST_PLACES

# A kernel that normalises columns reads a few vectors of each row, three times: steps in memory
# that no prefetcher follows, and that fall into few sets of a cache if the rows are powers of two.
# Kernels for each pass read whole rows, on all cores.  Measured on a Granite Rapids, 512 to 65536
# rows that don't fit in the second cache: a norm by one kernel takes 1.2 to 4 times as long, a
# softmax 0.8 to 2.3 times.
_SPLIT_COLUMNS = 512
# In the second cache it is the other way round, 0.7 to 1.0 times, except for fewer groups of
# columns than cores: from so many elements on, a batch norm of 16 to 256 channels takes 1.0 to 1.6
# times as long by one kernel, and its gradient 1.2 to 2.3 times (bfloat16: 0.8 to 1.0, 0.9 to 1.4).
_LEAST_SPLIT = 1 << 17

# From so many elements of a row that an idle core could take, kernels for each pass on all cores
# are faster than one that keeps the row.  Measured on two cores of a Granite Rapids, one row: a
# softmax, a layer norm and a clipped norm take the same time at 64 Ki elements, 1.1 to 1.5 times
# as long by one kernel at 128 Ki, 1.3 to 2.3 times at 256 Ki to 1 Mi.
_LEAST_IDLE = 1 << 16


@functools.lru_cache(maxsize=16)
def _machine(processor: Processor, threads: int) -> Machine:
    features = [name for name in processor.features.split(",") if name.startswith("+")]
    facts = asdict(replace(processor, features=" ".join(features)))
    return (*facts.items(), ("threads", threads))


@dataclass(frozen=True, slots=True)
class CpuTarget(Target):
    """A processor as a target; `Target` documents the methods."""

    processor: Processor

    @property
    def name(self) -> str:
        return "cpu"

    @property
    def limits(self) -> Limits:
        """The limits of any GPU, so a schedule that runs here runs on a GPU too."""
        return PORTABLE_LIMITS

    @property
    def memory(self) -> Memory:
        return Memory(
            self.processor.cache_line_bytes,
            self.processor.l1_bytes,
            self.processor.l2_bytes,
            self.processor.l3_bytes,
        )

    @property
    def workers(self) -> int:
        return self.processor.cores

    @property
    def threads_are_hardware(self) -> bool:
        return False

    def refusal(self, expr: Expr) -> str | None:
        return unsupported(expr, "llvm")

    @property
    def launch_bytes(self) -> int:
        """Some microseconds, with the wake-up of another thread."""
        return 1 << 16

    @property
    def columns_together(self) -> int:
        """Measured on a Zen 5: 100,000 x 4, as it is and transposed, in 0.15 ms; in 0.53 as two
        kernels.
        """
        return MOST_PLACES

    @property
    def recomputation_budget(self) -> int:
        """Some 8 cycles per vector: reading it takes about as long from the last cache, and several
        times as long from memory.
        """
        return 8

    @property
    def shares_parts(self) -> bool:
        return True

    def row_refusal(self, rows: int, columns: int, bytes_each: int, is_inner: bool) -> str | None:
        # A row is read twice, and with fewer rows than cores a persistent kernel leaves cores idle.
        cores, cache = self.processor.cores, self.processor.l2_bytes
        idle = columns * (cores - rows) // cores
        if rows >= cores or (idle < _LEAST_IDLE and columns * bytes_each <= 4 * cache):
            return None
        return (
            f"{rows} rows of {columns} elements or more: fewer rows than the {cores} "
            f"workers, and too long rows for some of them, or for 4 * {cache} bytes of cache"
        )

    def nested_refusal(self, rows: int, row: int, part: int, bytes_each: int) -> str | None:
        cores, cache = self.processor.cores, self.processor.l2_bytes
        if rows < 2 * cores:
            return f"{rows} rows for {cores} workers"
        if part < heuristics.LEAST_PART:
            return f"parts of {part} elements or more are shorter than {heuristics.LEAST_PART}"
        if row * bytes_each > cache:
            return f"a row of {row} elements or more doesn't fit in {cache} bytes of cache"
        return None

    def splits_columns(self, length: int, columns: int, groups: int, bytes_each: int) -> bool:
        elements = length * columns
        is_cached = elements * bytes_each < self.processor.l2_bytes
        leaves_cores_idle = groups < self.processor.cores and elements >= _LEAST_SPLIT
        return length >= _SPLIT_COLUMNS and (leaves_cores_idle or not is_cached)

    def inner_outer_refusal(self, rows: int, columns: int, bytes_each: int) -> str | None:
        # Each task walks along its sums of columns with every row, beside the row itself.
        cache = self.processor.l2_bytes
        if columns * bytes_each > cache // 4:
            return f"a row of {columns} elements or more doesn't fit in a quarter of {cache} bytes"
        if rows < 4 * self.processor.cores:
            return f"{rows} rows for {self.processor.cores} workers"
        return None

    def may_repeat(self, elements: int, times: int, is_inner: bool, are_roots: bool) -> bool:
        # An expensive operation on one element takes as long as on a vector (some 15 ns):
        # negligible in a row of more than 128 elements, and next to a launch for fewer than 4096
        # rows. On the elements of a row it takes some 1 ns each: as long as a launch for 65536.
        # A root takes half as long.
        if is_inner:
            return elements * (times - 1) < 1 << (17 if are_roots else 16)
        if are_roots:
            return True
        return elements < 4096 or times > 128

    def pointwise(self, facts: PointwiseFacts, sizes: Mapping[str, int]) -> PointwiseParameters:
        return heuristics.pointwise(self.processor, facts, sizes)

    def reduction(self, facts: ReductionFacts, sizes: Mapping[str, int]) -> ReductionParameters:
        return heuristics.reduction(self.processor, facts, sizes)

    def inner_persistent(
        self, facts: ReductionFacts, sizes: Mapping[str, int]
    ) -> ReductionParameters:
        return heuristics.inner_persistent(self.processor, facts, sizes)

    def outer_persistent(
        self, facts: ReductionFacts, sizes: Mapping[str, int]
    ) -> ReductionParameters:
        return heuristics.outer_persistent(self.processor, facts, sizes)

    def inner_outer_persistent(
        self, facts: InnerOuterFacts, sizes: Mapping[str, int]
    ) -> InnerOuterParameters:
        return heuristics.inner_outer_persistent(self.processor, facts, sizes)

    def greedy(self, facts: ScanFacts, sizes: Mapping[str, int]) -> ScanParameters:
        return heuristics.greedy(self.processor, facts, sizes)

    def scatter(self, facts: ScatterFacts, sizes: Mapping[str, int]) -> ScatterParameters:
        return heuristics.scatter(self.processor, facts, sizes)

    def candidates(
        self, facts: Facts, chosen: object, sizes: Mapping[str, int], is_persistent: bool = False
    ) -> Sequence[object]:
        from .candidates import candidates

        threads = min(self.processor.cores, torch.get_num_threads())
        return candidates(self.processor, threads, facts, chosen, sizes, is_persistent)

    def machine(self) -> Machine:
        """The processor, and the threads of torch on which kernels run."""
        return _machine(self.processor, torch.get_num_threads())

    @property
    def keeps_code(self) -> bool:
        return True

    def generate(self, kernel: Kernel) -> CpuKernelCode:
        """LLVM IR text."""
        from .codegen import generate
        from .joint_sizes import join_sizes

        return generate(join_sizes(kernel), self.processor)

    def texts(self, code: CpuKernelCode) -> dict[str, str]:  # type: ignore[override]
        """llvm; and asm, if this LLVM has that architecture."""
        if host().architecture != self.processor.architecture:
            return {"llvm": code.text}
        from .jit import assembly

        return {"llvm": code.text, "asm": assembly(code.text, self.processor)}
