"""The data flow, top to bottom: Fusion -> segments -> schedules -> kernels -> callables.

Upfront compilation (`prepare`) needs no inputs: it simplifies the definition.  Run-time compilation
(`Program`, `Part.build`) happens once the layouts of the inputs are known: the simplified fusion is
specialised for them and cut into segments.  Each segment is a part of a program, of one of three
kinds: a kernel, library calls, views.  A kernel part has one kernel for every set of heuristic
parameters that its sizes need; if a kernel can't be compiled, the fallback computes the part.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from . import fallback, options
from .analysis.layouts import Layout, specialise
from .decisions import Decision, decide
from .devices.runtime import LoadedKernel, Runtime
from .disk_cache import DiskCache, disk_cache
from .errors import InternalError, UnsupportedError, expected
from .fallback import Report
from .ir.fusion import Fusion
from .ir.kernel import Kernel, Predicate, all_hold
from .ir.schedule import ScheduledFusion
from .ir.segmented import PartKind, Segment, SegmentedFusion, segment_fusion
from .ir.verify import verify_segmented
from .kernel_cache import KernelCache
from .lower.lowering import lower
from .lower.work import Excess, excess, is_too_much, total_runs
from .preseg.pipeline import run as simplify
from .schedule.acceptance import SizeInfo
from .schedule.registry import BY_LIBRARY, AutomaticScheduler, scheduler
from .segment.segmenter import segment as cut
from .target.parameters import without_kept_rows
from .target.target import Code, Target
from .trace import DUMP, Texts, Trace

_binaries: KernelCache[tuple[Runtime, str], Any] = KernelCache()
_connected: dict[Runtime, DiskCache | None] = {}

MOST_KERNELS = 256  # per segment; heuristics round, so there are only a few

TEXTS = ("llvm", "asm", "cuda", "ptx")  # the stages that belong to targets


def prepare(fusion: Fusion, moves_reads: bool = True, trace: Trace = DUMP) -> Fusion:
    """Upfront compilation: the simplified definition; the given one stays unchanged."""
    trace.stage("fusion", fusion)
    simplified = simplify(
        fusion,
        verify=options.strict(),
        moves_reads=moves_reads,
        trace=lambda name, after, _: trace.after(name, after),
    )
    trace.stage("preseg", simplified)
    return simplified


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
    """A part that torch computes, because no kernel of the target can (library_calls.py)."""


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
    that were started: lowered, or available as text and being compiled to machine code.  Parameters
    with narrow and with wide indices are two kernels; `narrow` are the conditions for the former.
    """

    scheduler: AutomaticScheduler
    kernels: dict[Variant, LoadedKernel | None] = field(default_factory=dict)
    lowered: dict[object, Kernel] = field(default_factory=dict)
    codes: dict[Variant, Code] = field(default_factory=dict)
    narrow: dict[object, Predicate | None] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def work(self, sizes: Mapping[str, int], target: Target) -> tuple[int, Excess | None]:
        """How many statements the kernel for these sizes runs, and the excess if they are too many.

        The lowered kernel is kept for `start` and `build`.
        """
        with self.lock, contextlib.suppress(Exception):  # `build` will raise it again
            kernel = self._lower(self.decide(sizes, target).parameters, target)
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
                _share_objects(runtime)
                if (runtime, code.text) not in _binaries:
                    runtime.compile_ahead(code)

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
            found = excess(self.fusion, self._lower(parameters, runtime.target), sizes)
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
                kernel = self._lower(parameters, target)
                self.narrow[parameters] = target.narrow_conditions(kernel)
        return Variant(parameters, _index_bits(self.narrow[parameters], sizes))

    def _lower(self, parameters: Any, target: Target) -> Kernel:
        found = self.lowered.get(parameters)
        if found is None:
            scheduled = self.scheduler.schedule(self.fusion, parameters)
            _make_room(self.lowered)
            found = self.lowered[parameters] = lowered(scheduled, target)
        return found

    def _generate(self, variant: Variant, target: Target) -> Code:
        kernel = self._lower(variant.parameters, target)
        del self.lowered[variant.parameters]
        return kernel_code(replace(kernel, index_bits=variant.index_bits), target)


def _index_bits(narrow: Predicate | None, sizes: Mapping[str, int]) -> int:
    """The width of indices, for the conditions under which they may be narrow."""
    return 64 if narrow is None or not all_hold(narrow, sizes) else 32


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


def lowered(scheduled: ScheduledFusion, target: Target, trace: Trace = DUMP) -> Kernel:
    """The kernel of a schedule."""
    trace.stage("scheduled", scheduled)
    kernel = lower(scheduled, target, trace=trace.after, verify=options.strict())
    trace.stage("kernel", kernel)
    return kernel


def kernel_code(kernel: Kernel, target: Target, trace: Trace = DUMP) -> Code:
    """The text of a kernel."""
    code = target.generate(kernel)
    if trace.wants(*TEXTS):
        for stage, text in target.texts(code).items():
            trace.stage(stage, text)
    return code


def build_kernel(code: Code, runtime: Runtime) -> LoadedKernel:
    """A kernel that can be launched; equal texts share their machine code."""
    _share_objects(runtime)
    binary = _binaries.get_or_create((runtime, code.text), lambda: runtime.compile(code))
    return runtime.load(code, binary)


def compiled_kernel_count() -> int:
    """Kernels that were compiled, or loaded from the disk cache, in this process so far.

    Failed compilations don't count.
    """
    return _binaries.created


def _share_objects(runtime: Runtime) -> None:
    """Connects a runtime with the disk cache that the options select now."""
    cache = disk_cache()
    if runtime not in _connected or _connected[runtime] is not cache:
        runtime.keep_objects_in(cache)
        _connected[runtime] = cache  # only now: a failure is tried again


@dataclass(eq=False)
class Program:
    """A fusion specialised for the layouts of its inputs, cut into parts."""

    fusion: Fusion
    parts: list[Part]
    runtime: Runtime


@dataclass(eq=False)
class Segmentation:
    """The parts into which a definition is cut for a target, and how many statements they run.

    `moves_reads` says how the definition was simplified (see `prepare`).
    """

    segmented: SegmentedFusion
    parts: list[Part]
    runs: int
    moves_reads: bool = True


def rough_sizes(sizes: Mapping[str, int], target: Target) -> SizeInfo:
    """Sizes as coarsely as segmentation needs them: below workers, short, usual, and huge."""
    short, usual, huge = 1 << 5, 1 << 10, 1 << 18

    def rough(size: int) -> int:
        if size < target.workers:
            return size
        if size < huge:
            return short if size <= short else usual
        return 1 << size.bit_length() - 1

    known = {name: rough(size) for name, size in sizes.items()}
    return SizeInfo.of(known, target, options.disabled_schedulers())


def compile_program(
    definition: Fusion,
    prepared: Fusion,
    layouts: Sequence[Layout],
    rough: SizeInfo,
    runtime: Runtime,
    sizes: Mapping[str, int],
    report: Report = fallback.report,
) -> Program:
    """Specialises and segments; kernels are built part by part when sizes are known."""
    found = segmented(definition, prepared, layouts, rough, sizes, report)
    DUMP.stage("segments", found.segmented)
    return Program(found.segmented.fusion, found.parts, runtime)


def segmented(
    definition: Fusion,
    prepared: Fusion,
    layouts: Sequence[Layout],
    rough: SizeInfo,
    sizes: Mapping[str, int],
    report: Report = fallback.report,
) -> Segmentation:
    """The parts for these layouts and sizes.

    `prepared` is the simplified definition.  If moving its reads would make the kernels do too much
    work for these sizes, the reads are not moved.
    """
    found = _bounded(prepared, layouts, rough, sizes, report)
    if is_too_much(definition, found.runs, sizes):
        still = prepare(definition, moves_reads=False)
        other = _bounded(still, layouts, rough, sizes, report)
        other.moves_reads = False
        found = other if other.runs < found.runs else found
    return found


def _bounded(
    prepared: Fusion,
    layouts: Sequence[Layout],
    rough: SizeInfo,
    sizes: Mapping[str, int],
    report: Report,
) -> Segmentation:
    """Parts none of which does too much work.

    A part that would is cut after the tensor that it would recompute so often.
    """
    stored: set[int] = set()
    while True:
        fusion = specialise(prepared, layouts)
        found = segmented_fusion(fusion, rough, report, stored)
        if options.strict():
            verify_segmented(found)
        parts = [part_of(fusion, segment) for segment in found.segments]
        work = [part.work(sizes, rough.target) for part in parts]
        names = {excess.tensor.name for _, excess in work if excess is not None}
        if stored >= names:
            return Segmentation(found, parts, sum(runs for runs, _ in work))
        stored |= names


def segmented_fusion(
    fusion: Fusion, sizes: SizeInfo, report: Report, stored: Collection[int] = ()
) -> SegmentedFusion:
    """The segments; one evaluated segment if segmentation itself fails."""
    try:
        return cut(fusion, sizes, stored)
    except Exception as error:
        report(error, fusion)
        outputs = [t for t in fusion.outputs if t.expr is not None]
        name, kind = BY_LIBRARY.name, BY_LIBRARY.kind
        whole = Segment(fusion.live_exprs(), list(fusion.inputs), outputs, name, kind)  # type: ignore[arg-type]
        return SegmentedFusion(fusion, [whole])


def compile_scheduled_program(scheduled: ScheduledFusion, runtime: Runtime) -> Program:
    """A program of one kernel, scheduled by its user.  Errors are raised to the user."""
    kernel = lowered(scheduled, runtime.target)
    narrow = runtime.target.narrow_conditions(kernel)
    fusion = scheduled.fusion
    outputs = [t for t in dict.fromkeys(fusion.outputs) if t.expr is not None]
    exprs, kind = fusion.live_exprs(), PartKind.kernel
    segment = Segment(exprs, list(fusion.inputs), outputs, "user", kind)  # type: ignore[arg-type]
    part = _ScheduledPart(segment, fusion, kernel, narrow)
    part.kernel_of(64 if narrow is None else 32, runtime)
    return Program(fusion, [part], runtime)


@dataclass(eq=False)
class _ScheduledPart(Part):
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
        return self.kernel_of(_index_bits(self.narrow, limited or sizes), runtime)


def stages(
    definition: Fusion,
    sizes: Mapping[str, int],
    layouts: Sequence[Layout],
    target: Target,
    texts: Texts | None = None,
) -> dict[str, str]:
    """Every stage as text, by the names that PYFUSER_DUMP and `show` use.

    The stages are those of a call with these sizes, and with strides for which indices are narrow.
    """
    texts = texts or Texts()
    rough = rough_sizes(sizes, target)
    found = segmented(definition, prepare(definition), layouts, rough, sizes)
    prepare(definition, found.moves_reads, texts)
    texts.stage("segments", found.segmented)
    for part in found.parts:
        if isinstance(part, KernelPart):
            decision = part.decide(sizes, target)
            texts.stage("parameters", decision)
            scheduled = part.scheduler.schedule(part.fusion, decision.parameters)
            scheduled_stages(scheduled, target, texts, sizes)
    return texts.stages


def scheduled_stages(
    scheduled: ScheduledFusion,
    target: Target,
    texts: Texts,
    sizes: Mapping[str, int] | None = None,
) -> None:
    """The stages from a schedule on; sizes and strides that aren't given are small."""
    kernel = lowered(scheduled, target, texts)
    narrow = target.narrow_conditions(kernel)
    if narrow is not None:
        known = (sizes or {}).keys()
        narrow = tuple(c for c in narrow if known >= {s.name for s in c.a.symbols})
    kernel = replace(kernel, index_bits=_index_bits(narrow, sizes or {}))
    kernel_code(kernel, target, texts)
