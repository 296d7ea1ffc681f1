"""Target: what compiling for a device needs, as an immutable, hashable value.

A target exists without the hardware: a CPU of a certain name, an NVIDIA architecture.  Everything
from preseg to code generation is given one and knows no device.  A device is a subclass in its own
folder; a subclass that misses something can't be made, and mypy says so.  Running what was compiled
is a Runtime's business (devices/runtime.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ..ir.exprs import Expr
from ..ir.kernel import Kernel
from .parameters import (
    PointwiseFacts,
    PointwiseParameters,
    ReductionFacts,
    ReductionParameters,
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a launch may ask for.

    threads          of a block
    block            threads along x, y and z
    grid             blocks along x, y and z
    shared_bytes     shared memory of a block
    registers        32-bit registers of a thread
    parameter_bytes  of a kernel's parameters together
    """

    threads: int
    block: tuple[int, int, int]
    grid: tuple[int, int, int]
    shared_bytes: int
    registers: int
    parameter_bytes: int


# What every GPU has (CUDA programming guide, technical specifications by compute capability).
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

    line     what one access brings
    near     of a worker, next to its registers: the first cache, or shared memory and first cache
    private  the last cache (or part of it) that a worker has to itself
    last     the last cache before memory, of all workers
    """

    line: int
    near: int
    private: int
    last: int


class Code(Protocol):
    """A kernel as text."""

    @property
    def kernel(self) -> Kernel:
        """What it was made from."""

    @property
    def text(self) -> str:
        """Everything that decides the machine code."""


class Target(ABC):
    """One kind of device to compile for."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What users call it: `cpu`, `sm_90`."""

    @property
    @abstractmethod
    def limits(self) -> Limits:
        """What a launch may ask for."""

    @property
    @abstractmethod
    def memory(self) -> Memory:
        """The memory hierarchy."""

    @property
    @abstractmethod
    def workers(self) -> int:
        """Blocks of a grid (tasks) that run side by side."""

    @property
    @abstractmethod
    def threads_are_hardware(self) -> bool:
        """True where block axes are threads that run at once, with registers of their own and
        barriers between them; otherwise they are loops (vectorised where innermost), a tensor
        computed outside of such a loop has one element a lane, and no barrier is needed."""

    @abstractmethod
    def refusal(self, expr: Expr) -> str | None:
        """Why no kernel of this target can compute an expression; None where one can."""

    # -- costs

    @property
    @abstractmethod
    def launch_bytes(self) -> int:
        """What a launch costs: as much as to move about so many bytes."""

    @property
    @abstractmethod
    def recomputation_budget(self) -> int:
        """Additions an element that take about as long as reading it from the last cache."""

    @abstractmethod
    def row_refusal(self, rows: int, columns: int, bytes_each: int) -> str | None:
        """Why a kernel shouldn't go through rows of so many elements twice; None when it may."""

    @abstractmethod
    def may_repeat(self, elements: int, times: int, is_inner: bool) -> bool:
        """True where expensive operations on so many elements may be computed several times.

        `is_inner`: what is repeated lies along the innermost axis in memory, in whole vectors.
        """

    # -- heuristics: `sizes` are by the names of the symbols in the facts

    @abstractmethod
    def pointwise(self, facts: PointwiseFacts, sizes: Mapping[str, int]) -> PointwiseParameters:
        """Of the pointwise scheduler."""

    @abstractmethod
    def reduction(self, facts: ReductionFacts, sizes: Mapping[str, int]) -> ReductionParameters:
        """Of the reduction scheduler."""

    @abstractmethod
    def inner_persistent(
        self, facts: ReductionFacts, sizes: Mapping[str, int]
    ) -> ReductionParameters:
        """Of the inner persistent scheduler."""

    @abstractmethod
    def outer_persistent(
        self, facts: ReductionFacts, sizes: Mapping[str, int]
    ) -> ReductionParameters:
        """Of the outer persistent scheduler."""

    # -- code

    @abstractmethod
    def generate(self, kernel: Kernel) -> Code:
        """The text of a kernel.  UnsupportedError for what the target can't compute."""

    @abstractmethod
    def texts(self, code: Code) -> dict[str, str]:
        """The target's own stages by name: generated code, machine code."""
