"""CudaTarget: an NVIDIA architecture to compile for, from sm_75 on.

Kernel -> CUDA C++ -> (NVRTC) -> cubin or PTX, none of which needs a GPU. Unless a GPU says
otherwise, the number of multiprocessors and the cache sizes are those of a common one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...errors import UnsupportedError, expected
from ...ir.exprs import Expr
from ...ir.kernel import Kernel, Predicate
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
from ...target.target import Limits, Memory, Target
from . import pointwise_heuristics, reduction_heuristics, scan_heuristics
from .candidates import candidates
from .codegen import CudaSource, generate
from .device_helpers import device_helpers, with_device_helpers
from .index_width import narrow_conditions
from .nvrtc import compile_to_ptx, compile_with_report

# Shared memory that a block can opt in to, by compute capability (CUDA programming guide, technical
# specifications); for an architecture that isn't listed, the smallest value.
_SHARED_KIB = {75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99}


@dataclass(frozen=True, slots=True)
class CudaTarget(Target):
    """One architecture; sizes in bytes.

    multiprocessors    of the GPU: blocks that run concurrently, one on each
    threads            of a block: four warps, one for each scheduler of a multiprocessor
    l1_bytes           of a multiprocessor, which its shared memory is taken from
    most_shared_bytes  of a block; 0 for as much as GPUs of the architecture have
    is_deterministic   results don't depend on the order in which threads run

    The defaults are an A100's: NVIDIA A100 Tensor Core GPU architecture, tables 4 and 5.
    """

    architecture: str = "sm_75"
    multiprocessors: int = 108
    threads: int = 128
    l1_bytes: int = 192 << 10
    l2_bytes: int = 40 << 20
    most_shared_bytes: int = 0
    is_deterministic: bool = False

    @staticmethod
    def of(architecture: str) -> CudaTarget:
        """The target of `sm_NN`.  UnsupportedError for any other name."""
        number = architecture.removeprefix("sm_").rstrip("af")
        if not number.isdigit() or int(number) < min(_SHARED_KIB):
            what = f"an architecture from sm_{min(_SHARED_KIB)} on"
            raise UnsupportedError(expected("CUDA", what, architecture))
        return CudaTarget(architecture)

    # -- see Target

    @property
    def name(self) -> str:
        return self.architecture

    @property
    def limits(self) -> Limits:
        number = int(self.architecture.removeprefix("sm_").rstrip("af"))
        shared = _SHARED_KIB.get(number, min(_SHARED_KIB.values())) << 10
        parameters = 4 << 10 if number < 90 else 32764
        return Limits(
            threads=1024,
            block=(1024, 1024, 64),
            grid=(2**31 - 1, 65535, 65535),
            shared_bytes=self.most_shared_bytes or shared,
            registers=255,
            parameter_bytes=parameters,
        )

    @property
    def memory(self) -> Memory:
        return Memory(128, self.l1_bytes, self.l1_bytes, self.l2_bytes)

    @property
    def workers(self) -> int:
        return self.multiprocessors

    @property
    def threads_are_hardware(self) -> bool:
        return True

    def made_deterministic(self, is_demanded: bool) -> CudaTarget:
        """The target whose results don't depend on the order of threads, if that is demanded."""
        is_same = self.is_deterministic is is_demanded
        return self if is_same else replace(self, is_deterministic=is_demanded)

    def refusal(self, expr: Expr) -> str | None:
        return unsupported(expr, "cuda")

    @property
    def launch_bytes(self) -> int:
        """4 us at 1.5 TB/s."""
        return 6 << 20

    @property
    def columns_together(self) -> int:
        """The caches keep the rest of their sectors, as for inputs that no tile transposes."""
        return pointwise_heuristics.WORTH_A_TILE

    @property
    def recomputation_budget(self) -> int:
        """Reading four bytes of memory takes as long as some twenty operations."""
        return 16

    @property
    def prefers_one_pass(self) -> bool:
        return True

    def row_refusal(self, rows: int, columns: int, bytes_each: int, is_inner: bool) -> str | None:
        if not is_inner:
            return self._column_refusal(rows, columns, bytes_each)
        if rows >= self.multiprocessors or columns * bytes_each <= 4 * self.l1_bytes:
            return None
        return (
            f"{rows} rows of {columns} elements or more: fewer rows than the "
            f"{self.multiprocessors} multiprocessors, and a row doesn't fit in "
            f"4 * {self.l1_bytes} bytes of cache"
        )

    def _column_refusal(self, columns: int, length: int, bytes_each: int) -> str | None:
        """Why a kernel shouldn't read columns twice, of which a block has a sector of each row.

        A multiprocessor reads some 25 bytes a ns.  A block that reads 256 KiB takes as long as the
        launches that more kernels need, which have work for all multiprocessors.
        """
        sector = reduction_heuristics.SECTOR_BYTES
        blocks = -(-columns * bytes_each // sector)
        if blocks >= self.multiprocessors or length * sector <= self.l1_bytes:
            return None
        return (
            f"{columns} columns of {length} elements or more: fewer blocks than the "
            f"{self.multiprocessors} multiprocessors, and one doesn't fit in {self.l1_bytes} bytes"
        )

    def nested_refusal(self, rows: int, row: int, part: int, bytes_each: int) -> str | None:
        return "no schedule for threads reduces parts of rows and then their results"

    def splits_columns(self, length: int, columns: int, groups: int, bytes_each: int) -> bool:
        return self._column_refusal(columns, length, bytes_each) is not None

    def inner_outer_refusal(self, rows: int, columns: int, bytes_each: int) -> str | None:
        # Each block walks along its sums of columns with every row, beside the row itself.
        if columns * bytes_each > self.limits.shared_bytes // 4:
            return f"a row of {columns} elements or more doesn't fit in a quarter of shared memory"
        if rows < 4 * self.multiprocessors:
            return f"{rows} rows for {self.multiprocessors} multiprocessors"
        return None

    def may_repeat(self, elements: int, times: int, is_inner: bool, are_roots: bool) -> bool:
        # Next to the memory traffic of the same elements, operations cost almost nothing.
        return are_roots or elements * (times - 1) < 1 << 20

    def pointwise(self, facts: PointwiseFacts, sizes: Mapping[str, int]) -> PointwiseParameters:
        return pointwise_heuristics.pointwise(self, facts, sizes)

    def reduction(self, facts: ReductionFacts, sizes: Mapping[str, int]) -> ReductionParameters:
        return reduction_heuristics.reduction(self, facts, sizes)

    def inner_persistent(
        self, facts: ReductionFacts, sizes: Mapping[str, int]
    ) -> ReductionParameters:
        return reduction_heuristics.inner_persistent(self, facts, sizes)

    def outer_persistent(
        self, facts: ReductionFacts, sizes: Mapping[str, int]
    ) -> ReductionParameters:
        return reduction_heuristics.outer_persistent(self, facts, sizes)

    def inner_outer_persistent(
        self, facts: InnerOuterFacts, sizes: Mapping[str, int]
    ) -> InnerOuterParameters:
        return reduction_heuristics.inner_outer_persistent(self, facts, sizes)

    def greedy(self, facts: ScanFacts, sizes: Mapping[str, int]) -> ScanParameters:
        return scan_heuristics.greedy(self, facts, sizes)

    def scatter(self, facts: ScatterFacts, sizes: Mapping[str, int]) -> ScatterParameters:
        return scan_heuristics.scatter(self, facts, sizes)

    def candidates(
        self, facts: Facts, chosen: object, sizes: Mapping[str, int], is_persistent: bool = False
    ) -> Sequence[object]:
        return candidates(facts, chosen, sizes)

    def narrow_conditions(self, kernel: Kernel) -> Predicate:
        return narrow_conditions(kernel)

    def generate(self, kernel: Kernel) -> CudaSource:
        """CUDA C++."""
        return generate(kernel)

    @property
    def prelude(self) -> str:
        return device_helpers()

    def compiler_report(self, text: str) -> str:
        """ptxas' registers, shared memory and spills, or the reason why there are none."""
        try:
            return compile_with_report(with_device_helpers(text), self.architecture)[1]
        except UnsupportedError as error:
            return f"{error}\n"

    def texts(self, code: CudaSource) -> dict[str, str]:  # type: ignore[override]
        """cuda and ptx, or the reason why there is no PTX."""
        try:
            ptx = compile_to_ptx(with_device_helpers(code.text), self.architecture)
        except UnsupportedError as error:
            ptx = f"// {error}\n"
        return {"cuda": code.text, "ptx": ptx}
