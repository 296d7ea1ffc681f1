"""The data flow, top to bottom: Fusion -> segments -> schedules -> kernels -> callables.

Upfront compilation (`prepare`) needs no inputs: it simplifies the definition.  Run-time compilation
(`Program`, `Part.build`) happens once the layouts of the inputs are known: the simplified fusion is
specialised for them and cut into segments.  Each segment is a part of a program (parts.py), whose
kernel is made from its schedule (kernel_builds.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from . import fallback, options
from .analysis.layouts import Layout, specialise
from .analysis.normalised import Nested, nested, normalised
from .devices.runtime import Runtime
from .fallback import Report
from .ir.exprs import ReadOp, ReshapeOp
from .ir.fusion import Fusion
from .ir.scalar_queries import evaluate
from .ir.scalars import IntExpr
from .ir.schedule import ScheduledFusion
from .ir.segmented import PartKind, Segment, SegmentedFusion
from .ir.verify import verify_segmented
from .kernel_builds import index_bits, kernel_code, lowered
from .lower.work import is_too_much
from .ops.regrouping import regrouped, regrouping
from .parts import KernelPart, Part, ScheduledPart, part_of
from .preseg.one_pass_moments import cut_apart, one_pass_moments
from .preseg.pipeline import run as simplify
from .schedule import registry
from .schedule.facts import view_source
from .schedule.size_info import SizeInfo
from .segment.drafts import cost_of
from .segment.repeated_reads import FEW_PAIRED, copy_repeated_reads, paired_sizes
from .segment.segmenter import segment as cut
from .target.target import Target
from .trace import DUMP, Texts, Trace


def prepare(fusion: Fusion, moves_reads: bool = True, trace: Trace = DUMP) -> Fusion:
    """Upfront compilation: the simplified definition; the given one stays unchanged."""
    trace.stage("fusion", fusion)
    simplified = simplify(
        fusion,
        verify=options.strict(),
        moves_reads=moves_reads,
        after=lambda name, made, _: trace.after(name, made),
    )
    trace.stage("preseg", simplified)
    return simplified


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


def rough_sizes(prepared: Fusion, sizes: Mapping[str, int], target: Target) -> SizeInfo:
    """Sizes as coarsely as segmentation needs them: below workers, short, usual, and huge; few, if
    pairs are compared along them.

    Whether normalised rows and columns are too long for one kernel, and rows of reduced parts right
    for one, is decided by the sizes themselves, and part of the answer.
    """
    short, usual, huge = 1 << 5, 1 << 10, 1 << 18
    paired = paired_sizes(prepared)

    def rough(name: str, size: int) -> int:
        if size < target.workers:
            return size
        if size <= short:
            return short
        if name in paired and size <= FEW_PAIRED:  # the comparison becomes a condition of the plan
            return FEW_PAIRED
        return usual if size < huge else 1 << size.bit_length() - 1

    known = {name: rough(name, size) for name, size in sizes.items()}
    splits_columns = splits_rows = False
    for each in normalised(prepared):
        if not _are_bound(each.count * each.length, sizes):
            continue
        count, length = evaluate(each.count, sizes), evaluate(each.length, sizes)
        if each.are_columns:
            groups = evaluate(each.groups, sizes)
            splits_columns |= target.splits_columns(length, count, groups, each.bytes_each)
        if each.are_rows:
            splits_rows |= target.row_refusal(count, length, each.bytes_each, True) is not None
    nests_rows = any(_is_one_kernel(each, sizes, target) for each in nested(prepared))
    disabled = options.disabled_schedulers(registry.NAMES)
    return SizeInfo.of(known, target, disabled, splits_columns, splits_rows, nests_rows)


def _are_bound(size: IntExpr, sizes: Mapping[str, int]) -> bool:
    return {symbol.name for symbol in size.symbols} <= sizes.keys()


def _is_one_kernel(each: Nested, sizes: Mapping[str, int], target: Target) -> bool:
    """True if the target should reduce the parts of these rows and their results together."""
    if not _are_bound(each.elements, sizes):
        return False
    rows, elements = evaluate(each.rows, sizes), evaluate(each.elements, sizes)
    length = elements // max(rows, 1)
    return target.nested_refusal(rows, length, evaluate(each.part, sizes), each.bytes_each) is None


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
    work for these sizes, the reads are not moved.  Moments whose passes are two kernels become one
    pass if the target prefers that.
    """
    found = _bounded(prepared, layouts, rough, sizes, report)
    if is_too_much(definition, found.runs, sizes):
        still = prepare(definition, moves_reads=False)
        other = _bounded(still, layouts, rough, sizes, report)
        other.moves_reads = False
        if other.runs < found.runs:
            found, prepared = other, still
    apart = cut_apart(found.segmented) if rough.target.prefers_one_pass else set()
    if apart:
        other = _bounded(one_pass_moments(prepared, apart), layouts, rough, sizes, report)
        other.moves_reads = found.moves_reads
        found = min(found, other, key=lambda each: cost_of(each.segmented, rough))
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
        stored |= _reshaped_inputs(fusion)
        found = segmented_fusion(fusion, rough, report, stored)
        if options.strict():
            verify_segmented(found)
        parts = [part_of(fusion, segment) for segment in found.segments]
        work = [part.work(sizes, rough.target) for part in parts]
        names = {excess.tensor.name for _, excess in work if excess is not None}
        if stored >= names:
            return Segmentation(found, parts, sum(runs for runs, _ in work))
        stored |= names


def _reshaped_inputs(fusion: Fusion) -> set[int]:
    """The names of reshapes that are views of inputs and are read at computed positions.

    A tensor that is read at computed positions must be in memory; a view of an input is.  An input
    that the fusion updates is read before that, which no view shows.
    """
    updated, found = set(fusion.aliases.values()), set[int]()
    for expr in fusion.exprs:
        if isinstance(expr, ReshapeOp):
            (reshaped,) = expr.tensor_outputs
            reads = [e.source for e in reshaped.uses_list if isinstance(e, ReadOp)]
            if reshaped in reads and reshaped not in fusion.outputs:
                source = view_source(reshaped, fusion.inputs, dense=True)
                if source is not None and source not in updated:
                    found.add(reshaped.name)
    return found


def segmented_fusion(
    fusion: Fusion, sizes: SizeInfo, report: Report, stored: Collection[int] = ()
) -> SegmentedFusion:
    """The segments; one evaluated segment if segmentation itself fails."""
    try:
        copy_repeated_reads(fusion, sizes)
        return cut(fusion, sizes, stored)
    except Exception as error:
        report(error, fusion)
        outputs = [t for t in fusion.outputs if t.expr is not None]
        name, kind = registry.BY_LIBRARY.name, registry.BY_LIBRARY.kind
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
    part = ScheduledPart(segment, fusion, kernel, narrow)
    part.kernel_of(64 if narrow is None else 32, runtime)
    return Program(fusion, [part], runtime)


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
    groups = regrouping(definition, sizes)
    definition = definition if groups is None else regrouped(definition, groups)
    prepared = prepare(definition)
    rough = rough_sizes(prepared, sizes, target)
    found = segmented(definition, prepared, layouts, rough, sizes)
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
    kernel = replace(kernel, index_bits=index_bits(narrow, sizes or {}))
    kernel_code(kernel, target, texts)
