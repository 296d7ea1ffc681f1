"""The parts of a program: one segment each, which a kernel, a library or views compute.

A kernel part has one kernel for every set of heuristic parameters that its sizes need; if a kernel
can't be compiled, the fallback computes the part.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from . import fallback
from .caches.code_cache import store_code
from .decisions import Decision, decide
from .devices.runtime import LoadedKernel, Runtime
from .errors import InternalError, UnsupportedError, expected
from .fallback import Report
from .ir.fusion import Fusion
from .ir.kernel import Kernel, Predicate
from .ir.segmented import PartKind, Segment, segment_fusion
from .kernel_builds import (
    build_kernel,
    compile_ahead,
    index_bits,
    kept_code,
    kernel_code,
    lowered,
)
from .locks import ForkSafeLock
from .lower.work import Excess, excess, total_runs
from .schedule.registry import AutomaticScheduler, scheduler
from .target.parameters import without_kept_rows
from .target.target import Code, Target
from .trace import DUMP

MOST_KERNELS = 256  # per segment; heuristics round, so there are only a few


@dataclass(eq=False)
class Part:
    """One segment of a program, as a separate Fusion."""

    segment: Segment
    fusion: Fusion

    def work(self, sizes: Mapping[str, int], target: Target) -> tuple[int, Excess | None]:
        """How many statements its kernel runs for these sizes, and the excess, if any."""
        return 0, None

    def start(
        self, sizes: Mapping[str, int], runtime: Runtime, limited: Mapping[str, int] | None = None
    ) -> None:
        """Begins compiling the kernel for these sizes; `limited` as for `build`."""

    def build(
        self,
        sizes: Mapping[str, int],
        runtime: Runtime,
        report: Report = fallback.report,
        limited: Mapping[str, int] | None = None,
    ) -> LoadedKernel | None:
        """The kernel for these sizes; None if there is none.

        `limited` are the sizes and strides that must keep to the target's limits, if not `sizes`:
        the same numbers, but the comparisons with them are conditions on later sizes.
        """
        return None


@dataclass(eq=False)
class LibraryPart(Part):
    """A part that torch computes, because no kernel of the target can (plans/library_calls.py)."""


@dataclass(eq=False)
class ViewPart(Part):
    """A part whose outputs are views of inputs or have no elements: nothing is computed."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One of a part's kernels: a scheduler's parameters, and the width of indices."""

    parameters: object
    index_bits: int


@dataclass(eq=False)
class KernelPart(Part):
    """A part that one kernel computes, and its kernels by heuristic parameters.

    A kernel that can't be made (None) runs through the fallback.  `lowered` and `codes` are kernels
    that were started: lowered, or available as text and being compiled to machine code.  `kept` are
    those that an earlier process made, which are neither scheduled nor lowered.  Parameters with
    narrow and with wide indices are two kernels; `narrow` are the conditions for the former.
    """

    scheduler: AutomaticScheduler
    kernels: dict[Variant, LoadedKernel | None] = field(default_factory=dict)
    lowered: dict[object, Kernel] = field(default_factory=dict)
    kept: dict[object, Code | None] = field(default_factory=dict)
    codes: dict[Variant, Code] = field(default_factory=dict)
    narrow: dict[object, Predicate | None] = field(default_factory=dict)
    lock: ForkSafeLock = field(default_factory=ForkSafeLock)

    def work(self, sizes: Mapping[str, int], target: Target) -> tuple[int, Excess | None]:
        """How many statements the kernel for these sizes runs, and the excess if they are too many.

        The lowered kernel is kept for `start` and `build`.
        """
        with self.lock, contextlib.suppress(Exception):  # `build` will raise it again
            kernel = self._outline(self.decide(sizes, target).parameters, target)
            return total_runs(kernel, sizes), excess(self.fusion, kernel, sizes)
        return 0, None

    def start(
        self, sizes: Mapping[str, int], runtime: Runtime, limited: Mapping[str, int] | None = None
    ) -> None:
        """Makes the text of the kernel for these sizes and lets the runtime begin compiling it.

        `build` continues from there; the compiler works in the meantime.
        """
        with self.lock, contextlib.suppress(Exception):  # `build` will raise it again
            parameters = self.decide(sizes, runtime.target).parameters
            variant = self._variant(parameters, limited or sizes, runtime.target)
            if variant not in self.kernels and variant not in self.codes:
                _make_room(self.codes)
                self.codes[variant] = code = self._generate(variant, runtime.target)
                compile_ahead(code, runtime)

    def build(
        self,
        sizes: Mapping[str, int],
        runtime: Runtime,
        report: Report = fallback.report,
        limited: Mapping[str, int] | None = None,
    ) -> LoadedKernel | None:
        """The kernel for these sizes; compiled if the parameters are new.

        `report` is called with a failure, and may raise it.
        """
        limited = limited or sizes
        with self.lock:
            try:
                decision = self.decide(sizes, runtime.target)
                if all(each.parameters != decision.parameters for each in self.kernels):
                    DUMP.stage("parameters", decision)
                if decision.result is not None:
                    with contextlib.suppress(Exception):  # then it is what the heuristics choose
                        return self._usable(decision.parameters, limited, runtime)
                return self._usable(decision.heuristic, limited, runtime, report)
            except Exception as error:  # nothing that torch can run may fail here
                report(error, self.fusion)
                return None

    def decide(self, sizes: Mapping[str, int], target: Target) -> Decision:
        """The parameters of the kernel for these sizes."""
        return decide(self.scheduler, self.fusion, sizes, target)

    def measurable(
        self, parameters: Any, sizes: Mapping[str, int], runtime: Runtime
    ) -> LoadedKernel:
        """The kernel with these parameters, for the tuner.  Raises if it can't be made, isn't valid
        for these sizes and strides, or does too much work.
        """
        with self.lock:
            found = excess(self.fusion, self._outline(parameters, runtime.target), sizes)
            if found is not None:
                raise UnsupportedError(expected("tuning", "a kernel with less work", found.reason))
            built = self._usable(parameters, sizes, runtime)
            assert built is not None
            return built

    def _usable(
        self,
        parameters: Any,
        limited: Mapping[str, int],
        runtime: Runtime,
        report: Report = fallback.reraise,
    ) -> LoadedKernel | None:
        """The kernel with these parameters; raises if it isn't valid for these sizes, strides."""
        built = self._kernel(parameters, limited, runtime, report)
        has_room = _has_room(built, limited, runtime.target)
        frugal = None if has_room else without_kept_rows(parameters)
        if frugal is not None:
            built = self._kernel(frugal, limited, runtime, report)
            has_room = _has_room(built, limited, runtime.target)
        if built is not None and not built.kernel.is_for(limited):
            conditions = " and ".join(map(str, built.kernel.conditions))
            raise InternalError(expected("heuristics", conditions, limited))
        if not has_room:
            what = f"at most {runtime.target.limits.shared_bytes} bytes a block"
            raise UnsupportedError(expected("shared memory", what, "more"))
        return built

    def _kernel(
        self, parameters: Any, sizes: Mapping[str, int], runtime: Runtime, report: Report
    ) -> LoadedKernel | None:
        """The kernel with these parameters for sizes, from `kernels` if it has been made."""
        variant = self._variant(parameters, sizes, runtime.target)
        if variant not in self.kernels:
            made = self._compile(variant, runtime, report)
            _make_room(self.kernels)
            self.kernels[variant] = made
        return self.kernels[variant]

    def _compile(self, variant: Variant, runtime: Runtime, report: Report) -> LoadedKernel | None:
        try:
            code = self.codes.pop(variant, None)
            if code is None:
                code = self._generate(variant, runtime.target)
            return build_kernel(code, runtime)
        except Exception as error:
            report(error, self.fusion)
            return None

    def _variant(self, parameters: Any, sizes: Mapping[str, int], target: Target) -> Variant:
        """The parameters, with the width of indices that the sizes and strides need."""
        if parameters not in self.narrow:
            _make_room(self.narrow)
            self.narrow[parameters] = None
            with contextlib.suppress(Exception):  # `_compile` will raise it again
                if self._kept(parameters, target) is None:
                    kernel = self._lower(parameters, target)
                    self.narrow[parameters] = target.narrow_conditions(kernel)
        return Variant(parameters, index_bits(self.narrow[parameters], sizes))

    def _kept(self, parameters: Any, target: Target) -> Code | None:
        """The code that an earlier process made with these parameters; looked up once."""
        if parameters not in self.kept:
            _make_room(self.kept)
            self.kept[parameters] = kept_code(self.fusion, self.scheduler.name, parameters, target)
        return self.kept[parameters]

    def _outline(self, parameters: Any, target: Target) -> Kernel:
        """The kernel with these parameters, maybe without its statements."""
        found = self._kept(parameters, target)
        return self._lower(parameters, target) if found is None else found.kernel

    def _lower(self, parameters: Any, target: Target) -> Kernel:
        found = self.lowered.get(parameters)
        if found is None:
            scheduled = self.scheduler.schedule(self.fusion, parameters)
            _make_room(self.lowered)
            found = self.lowered[parameters] = lowered(scheduled, target)
        return found

    def _generate(self, variant: Variant, target: Target) -> Code:
        parameters = variant.parameters
        code = self._kept(parameters, target)
        if code is None:
            kernel = self._lower(parameters, target)
            del self.lowered[parameters]
            code = kernel_code(replace(kernel, index_bits=variant.index_bits), target)
            store_code(code, self.fusion, self.scheduler.name, parameters, target)
        return code


@dataclass(eq=False)
class ScheduledPart(Part):
    """A part whose kernel is given; it is made once for each width of indices that is needed.

    `narrow` are the conditions under which they have 32 bits.
    """

    kernel: Kernel
    narrow: Predicate | None
    built: dict[int, LoadedKernel] = field(default_factory=dict)

    def kernel_of(self, index_bits: int, runtime: Runtime) -> LoadedKernel:
        """The kernel with indices of this width."""
        if index_bits not in self.built:
            code = kernel_code(replace(self.kernel, index_bits=index_bits), runtime.target)
            self.built[index_bits] = build_kernel(code, runtime)
        return self.built[index_bits]

    def build(
        self,
        sizes: Mapping[str, int],
        runtime: Runtime,
        report: Report = fallback.report,
        limited: Mapping[str, int] | None = None,
    ) -> LoadedKernel:
        return self.kernel_of(index_bits(self.narrow, limited or sizes), runtime)


def _has_room(built: LoadedKernel | None, sizes: Mapping[str, int], target: Target) -> bool:
    """False if a block needs more shared memory than it can have."""
    return built is None or built.shared_bytes(sizes) <= target.limits.shared_bytes


def part_of(fusion: Fusion, segment: Segment) -> Part:
    """The part of a program that a segment of a fusion becomes."""
    own, _ = segment_fusion(fusion, segment)
    match segment.kind:
        case PartKind.kernel:
            return KernelPart(segment, own, scheduler(segment.scheduler))
        case PartKind.library:
            return LibraryPart(segment, own)
        case PartKind.view:
            return ViewPart(segment, own)


def _make_room(kernels: dict[Any, Any]) -> None:
    """Drops the oldest kernel if there are too many; plans that run it keep it."""
    while len(kernels) >= MOST_KERNELS:
        del kernels[next(iter(kernels))]
