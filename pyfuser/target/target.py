"""Target: what compiling for a device needs, as an immutable, hashable value.

A target exists without the hardware: a CPU of a certain name, an NVIDIA architecture.  Every stage
from preseg to code generation takes a target and knows no device.  Each device defines a subclass
in its own folder; a subclass with a missing method can't be instantiated, and mypy reports it.
Running the compiled code is the task of a Runtime (devices/runtime.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..ir.exprs import Expr
from ..ir.kernel import Kernel, Predicate
from .parameters import (
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


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a launch.

    threads          threads in a block
    block            threads along x, y and z
    grid             blocks along x, y and z
    shared_bytes     shared memory per block
    registers        32-bit registers registers per thread
    parameter_bytes  bytes of all parameters of a kernel
    """

    threads: int
    block: tuple[int, int, int]
    grid: tuple[int, int, int]
    shared_bytes: int
    registers: int
    parameter_bytes: int


# What every GPU supports (CUDA programming guide, technical specifications by compute capability).
PORTABLE_LIMITS = Limits(
    threads=1024,
    block=(1024, 1024, 64),
    grid=(2**31 - 1, 65535, 65535),
    shared_bytes=64 << 10,
    registers=255,
    parameter_bytes=4 << 10,
)


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory hierarchy, in bytes.

    line     what one access transfers
    near     closest to a worker's registers: the first cache, or shared memory and first cache
    private  the last cache (or part of it) that a worker has to itself
    last     the last cache before memory, shared by all workers
    """

    line: int
    near: int
    private: int
    last: int


Machine = tuple[tuple[str, int | str], ...]  # facts with their names


class Code(Protocol):
    """A kernel as text."""

    @property
    def kernel(self) -> Kernel:
        """The kernel it was generated from."""

    @property
    def text(self) -> str:
        """Everything that decides the machine code."""


class Target(ABC):
    """One kind of device to compile for."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name users know: `cpu`, `sm_90`."""

    @property
    @abstractmethod
    def limits(self) -> Limits:
        """The limits of a launch."""

    @property
    @abstractmethod
    def memory(self) -> Memory:
        """The memory hierarchy."""

    @property
    @abstractmethod
    def workers(self) -> int:
        """Blocks of a grid (tasks) that run concurrently."""

    @property
    @abstractmethod
    def threads_are_hardware(self) -> bool:
        """True if block axes are threads that run concurrently, with their own registers and with
        barriers between them. Otherwise they are loops (vectorised if innermost): a tensor computed
        outside such a loop has one element per lane, and no barrier is needed.
        """

    @abstractmethod
    def refusal(self, expr: Expr) -> str | None:
        """Why no kernel of this target can compute an expression; None if one can."""

    # -- costs

    @property
    @abstractmethod
    def launch_bytes(self) -> int:
        """The cost of a launch, as the number of bytes that could be moved in the same time."""

    @property
    @abstractmethod
    def recomputation_budget(self) -> int:
        """How many additions take about as long as reading an element from the last cache."""

    @property
    @abstractmethod
    def columns_together(self) -> int:
        """Columns of known number, or fewer, that a pointwise kernel stores as fast as rows."""

    @property
    def prefers_one_pass(self) -> bool:
        """True if moments in one pass, with a division per element, take less time than a second
        pass over what is in memory.
        """
        return False

    @property
    def shares_parts(self) -> bool:
        """True if pointwise kernels compute once what the parts of a tensor have in common."""
        return False

    @abstractmethod
    def row_refusal(self, rows: int, columns: int, bytes_each: int, is_inner: bool) -> str | None:
        """Why a kernel shouldn't read rows of this many elements twice; None if it may.

        `is_inner` if the elements of a row are next to each other in memory, not those of all rows.
        """

    @abstractmethod
    def nested_refusal(self, rows: int, row: int, part: int, bytes_each: int) -> str | None:
        """Why one kernel shouldn't reduce parts of rows and then their results; None if it should.

        A row has `row` elements of `bytes_each` bytes, each of its parts `part`.
        """

    @abstractmethod
    def splits_columns(self, length: int, columns: int, groups: int, bytes_each: int) -> bool:
        """True if kernels for each pass normalise columns faster than one that reads them twice.

        The columns have `length` elements of `bytes_each` bytes, and lie side by side in `groups`.
        """

    @abstractmethod
    def inner_outer_refusal(self, rows: int, columns: int, bytes_each: int) -> str | None:
        """Why sums of the columns shouldn't be taken while rows are processed; None if they may.

        `bytes_each` is the size of an element of a row.
        """

    @abstractmethod
    def may_repeat(self, elements: int, times: int, is_inner: bool, are_roots: bool) -> bool:
        """True if expensive operations on this many elements may be computed several times.

        `is_inner`: the repeated elements lie along the innermost axis in memory, in whole vectors.
        `are_roots`: square roots are the most expensive of them.
        """

    # -- heuristics: `sizes` are keyed by the names of the symbols in the facts

    @abstractmethod
    def pointwise(self, facts: PointwiseFacts, sizes: Mapping[str, int]) -> PointwiseParameters:
        """The parameters of the pointwise scheduler."""

    @abstractmethod
    def reduction(self, facts: ReductionFacts, sizes: Mapping[str, int]) -> ReductionParameters:
        """The parameters of the reduction scheduler."""

    @abstractmethod
    def inner_persistent(
        self, facts: ReductionFacts, sizes: Mapping[str, int]
    ) -> ReductionParameters:
        """The parameters of the inner persistent scheduler."""

    @abstractmethod
    def outer_persistent(
        self, facts: ReductionFacts, sizes: Mapping[str, int]
    ) -> ReductionParameters:
        """The parameters of the outer persistent scheduler."""

    @abstractmethod
    def inner_outer_persistent(
        self, facts: InnerOuterFacts, sizes: Mapping[str, int]
    ) -> InnerOuterParameters:
        """The parameters of the inner-outer persistent scheduler."""

    @abstractmethod
    def greedy(self, facts: ScanFacts, sizes: Mapping[str, int]) -> ScanParameters:
        """The parameters of the greedy scheduler for scans."""

    @abstractmethod
    def scatter(self, facts: ScatterFacts, sizes: Mapping[str, int]) -> ScatterParameters:
        """The parameters of the greedy scheduler for scatters."""

    # -- tuning

    def candidates(
        self, facts: Facts, chosen: object, sizes: Mapping[str, int], is_persistent: bool = False
    ) -> Sequence[object]:
        """Other parameters that are worth measuring, of the heuristics' `chosen` kind.

        `is_persistent`: the facts about a reduction are those of a persistent scheduler.
        """
        return ()

    def machine(self) -> Machine:
        """The facts on which a measurement depends."""
        return (("target", repr(self)),)

    # -- code

    @abstractmethod
    def generate(self, kernel: Kernel) -> Code:
        """The text of a kernel.  UnsupportedError if the target can't compute it."""

    @property
    def keeps_code(self) -> bool:
        """True if a code may be kept on disk.

        It consists of plain data then, and its `kernel` is an outline; indices have one width.
        """
        return False

    def narrow_conditions(self, kernel: Kernel) -> Predicate | None:
        """The conditions on sizes and strides under which a kernel's indices may have 32 bits.

        None if the target doesn't distinguish widths.
        """
        return None

    @property
    def prelude(self) -> str:
        """What precedes every kernel's text; empty if a text is complete."""
        return ""

    def compiler_report(self, text: str) -> str:
        """What the compiler of a kernel's text says about it; empty if there is nothing to say."""
        return ""

    @abstractmethod
    def texts(self, code: Code) -> dict[str, str]:
        """The target's own stages by name: generated code, machine code."""
