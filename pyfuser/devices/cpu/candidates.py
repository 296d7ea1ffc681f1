"""What a processor's heuristics could have chosen instead: candidates for measuring.

All of them are valid for all sizes, because a kernel of the CPU masks its tails.  Fields that the
scheduler doesn't use make the same code, which the tuner finds out.  The cascade of a sum follows
from the other fields: where it is cut is a decision about rounding.  No candidate has fewer tasks
than threads where the heuristics' choice has enough: on a busy machine one thread is faster than
two that wait for each other, which says nothing about the schedule.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from ...ir.scalar_queries import evaluate
from ...ir.scalars import ONE, IntExpr
from ...target.cascade import chain_levels, levels
from ...target.parameters import (
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
from ...target.varied import Values, around, varied
from .heuristics import (
    PREFETCH_BYTES,
    blocks,
    persistent_along,
)
from .processor import Processor
from .row_blocks import may_have_blocks
from .row_lanes import persistent_across, pointwise_across, reduction_across
from .tile_heuristics import Matrices, line_elements

# Vectors of twice a register's width are two registers; elements of half the width that are
# computed in float32 are then moved by whole registers.  Four hide what functions wait for.
_WIDEST = 4
_MOST_UNROLL = 8
_MOST_PARTS = 8  # for each core
_MOST_ACROSS = 64  # columns of rows that may have a lane each


def candidates(
    processor: Processor,
    threads: int,
    facts: object,
    chosen: object,
    sizes: Mapping[str, int],
    is_persistent: bool = False,
) -> Sequence[object]:
    """Neighbours of the heuristics' choice, at most MOST_CANDIDATES, for so many threads."""
    match facts, chosen:
        case PointwiseFacts(), PointwiseParameters():
            found = _pointwise(processor, facts, chosen, sizes)
            return _busy(found, facts, chosen, sizes, threads)
        case ReductionFacts(), ReductionParameters() if is_persistent:
            return _persistent(processor, facts, chosen, sizes)
        case ReductionFacts(), ReductionParameters():
            reductions = _reduction(processor, facts, chosen, sizes)
            return _busy(reductions, facts, chosen, sizes, threads)
        case InnerOuterFacts(), InnerOuterParameters():
            return _inner_outer(processor, facts, chosen, sizes)
        case ScanFacts(), ScanParameters():
            return _scan(processor, facts, chosen)
        case ScatterFacts(), ScatterParameters():
            return _scatter(processor, facts, chosen)
        case _:
            return ()


Chosen = TypeVar("Chosen", PointwiseParameters, ReductionParameters)


def _busy(
    found: Sequence[Chosen],
    facts: PointwiseFacts | ReductionFacts,
    chosen: Chosen,
    sizes: Mapping[str, int],
    threads: int,
) -> Sequence[Chosen]:
    """Those that have a task for each thread, or as many as the heuristics' choice."""
    enough = min(threads, _tasks(facts, chosen, sizes))
    return [each for each in found if _tasks(facts, each, sizes) >= enough]


def _tasks(
    facts: PointwiseFacts | ReductionFacts,
    made: PointwiseParameters | ReductionParameters,
    sizes: Mapping[str, int],
) -> int:
    """The tasks of a kernel, at least."""
    match facts, made:
        case PointwiseFacts(), PointwiseParameters(across=True, tile=0):
            across = max(evaluate(facts.across, sizes), 1)
            return evaluate(facts.rows, sizes) // across * -(-across // made.chunk)
        case PointwiseFacts(), PointwiseParameters(tile=0):
            is_grouped = made.rows and facts.groups is not None
            outer = facts.groups if is_grouped and facts.groups is not None else facts.rows
            columns = evaluate(facts.columns, sizes)
            return evaluate(outer, sizes) * (-(-columns // made.chunk) if made.chunk else 1)
        case PointwiseFacts(), PointwiseParameters():
            rows = evaluate((facts.staged if made.staged else facts.transposed) or ONE, sizes)
            return Matrices.of(facts, rows, sizes).tasks(made.tile, made.chunk)
        case ReductionFacts(), ReductionParameters():
            kept = evaluate(facts.kept, sizes)
            columns = evaluate(facts.across if facts.inner else facts.range, sizes)
            return made.parts * (blocks(kept, columns, made.block) if made.block else kept)
        case _:
            return 1


def _may_lie_across(columns: IntExpr, rows: IntExpr, lanes: int, sizes: Mapping[str, int]) -> bool:
    """True if lanes along rows of so many columns are worth trying."""
    return 1 < evaluate(columns, sizes) <= _MOST_ACROSS and evaluate(rows, sizes) >= lanes


def _lanes(processor: Processor, bytes_each: int, lanes: int) -> list[int]:
    full = processor.lanes(bytes_each)
    return around(lanes, max(full // 2, 1), _WIDEST * full)


def _prefetch(prefetch: int) -> list[int]:
    return [0 if prefetch else PREFETCH_BYTES]


def _pointwise(
    processor: Processor,
    facts: PointwiseFacts,
    chosen: PointwiseParameters,
    sizes: Mapping[str, int],
) -> Sequence[PointwiseParameters]:
    lanes = processor.lanes(facts.bytes)
    if chosen.across:
        near = {
            "lanes": _lanes(processor, facts.bytes, chosen.lanes),
            "chunk": around(chosen.chunk, 4 * lanes, 8192, (1, 2)),
        }
        return [PointwiseParameters(lanes, 1, 0), *varied(chosen, near)]
    if chosen.tile:
        line = line_elements(processor, facts)
        lines = ((4, 8, 16, 32), (4, 8, 16)) if chosen.staged else ((1, 2, 4, 8), (8, 1, 64))
        tiled = [
            replace(chosen, tile=rows * line, unroll=line // lanes, chunk=chunk * line)
            for rows, chunk in itertools.product(*lines)
        ]
        others = [PointwiseParameters(lanes, 1, 0)]
        if chosen.staged:  # which of the two is faster depends on the processor
            squares = replace(chosen, unroll=line // lanes, staged=False)
            sides = ((1, 1), (16, 4), (16, 16))
            others += [replace(squares, tile=a * line, chunk=b * line) for a, b in sides]
        else:
            others.append(replace(chosen, rows=not chosen.rows))
        return [each for each in dict.fromkeys((*tiled, *others)) if each != chosen]
    first_cache = processor.l1_bytes // facts.bytes
    chunks = {0, first_cache // 4, first_cache // 2, first_cache, 4 * first_cache} - {chosen.chunk}
    values: Values = {
        "lanes": _lanes(processor, facts.bytes, chosen.lanes),
        "unroll": around(chosen.unroll, 1, _MOST_UNROLL, (1, 2)),
        "chunk": sorted(chunks),
        "prefetch": _prefetch(chosen.prefetch),
        "rows": [] if facts.groups is None else [not chosen.rows],
    }
    pairs = [("lanes", "unroll"), ("rows", "unroll")]
    # A task takes rows, or a part of one.
    found = varied(chosen, values, pairs, is_valid=lambda made: not (made.rows and made.chunk))
    is_across = _may_lie_across(facts.columns, facts.across, lanes, sizes)
    return [pointwise_across(lanes), *found] if is_across else found


def _reduction(
    processor: Processor,
    facts: ReductionFacts,
    chosen: ReductionParameters,
    sizes: Mapping[str, int],
) -> Sequence[ReductionParameters]:
    most_parts = _MOST_PARTS * processor.cores
    parts = [1] if chosen.parts > 1 else [processor.cores, 2 * processor.cores]
    values = {
        "lanes": _lanes(processor, facts.bytes, chosen.lanes),
        "unroll": around(chosen.unroll, 1, 2 * _MOST_UNROLL, (1, 2)),
        "block": _blocks(processor, facts, chosen),
        "parts": [p for p in {*parts, *around(chosen.parts, 1, most_parts)} if p != chosen.parts],
        "prefetch": _prefetch(chosen.prefetch),
    }
    pairs = [("lanes", "unroll"), ("block", "unroll")]

    def completed(made: ReductionParameters) -> ReductionParameters:
        step = made.unroll * made.parts * (made.lanes if made.inner else 1)
        is_valid = made.parts == 1 if made.inner else made.block >= made.lanes
        block = made.block
        if block and not is_valid:
            block = 0 if made.inner else made.lanes
        return replace(made, block=block, cascade=chain_levels(facts.chain, sizes, step))

    found = varied(chosen, values, pairs, completed)
    lanes = processor.lanes(facts.bytes)
    is_across = facts.inner and _may_lie_across(facts.reduced, facts.across, lanes, sizes)
    return [reduction_across(lanes), *found] if is_across and chosen.inner else found


def _blocks(
    processor: Processor, facts: ReductionFacts, chosen: ReductionParameters
) -> Sequence[int]:
    """Other blocks of columns, or of rows: one has as many as lanes, or a row is by itself."""
    if not chosen.inner:
        return around(chosen.block, chosen.lanes, 8192, (1, 2)) if chosen.block else []
    if chosen.block:
        return [0]
    has_blocks = may_have_blocks(facts) and chosen.parts == 1 and chosen.whole is None
    return [processor.lanes(facts.bytes)] if has_blocks else []


def _persistent(
    processor: Processor,
    facts: ReductionFacts,
    chosen: ReductionParameters,
    sizes: Mapping[str, int],
) -> Sequence[object]:
    values: Values = {
        "lanes": _lanes(processor, facts.bytes, chosen.lanes),
        "unroll": around(chosen.unroll, 1, _MOST_UNROLL, (1, 2)),
        "keeps": [not chosen.keeps],
        "block": _blocks(processor, facts, chosen) if chosen.inner else [],
    }

    def completed(made: ReductionParameters) -> ReductionParameters:
        step = made.unroll * made.lanes if made.inner else 1
        return replace(made, cascade=chain_levels(facts.chain, sizes, step))

    found = varied(chosen, values, [("lanes", "unroll"), ("keeps", "unroll")], completed)
    lanes = processor.lanes(facts.bytes)
    if not facts.inner or not _may_lie_across(facts.reduced, facts.across, lanes, sizes):
        return found
    if chosen.inner:
        return [persistent_across(lanes), *found]
    return [persistent_along(processor, facts, sizes), *found]


def _inner_outer(
    processor: Processor,
    facts: InnerOuterFacts,
    chosen: InnerOuterParameters,
    sizes: Mapping[str, int],
) -> Sequence[object]:
    kept = evaluate(facts.rows.kept, sizes)
    found = [
        replace(chosen, rows=replace(rows, parts=chosen.rows.parts))
        for rows in _persistent(processor, facts.rows, chosen.rows, sizes)
        if isinstance(rows, ReductionParameters) and rows.inner
    ]
    for parts in around(chosen.rows.parts, 1, _MOST_PARTS * processor.cores, (1, 2)):
        cut = levels([-(-kept // parts)])
        found.append(InnerOuterParameters(replace(chosen.rows, parts=parts), cut))
    return found


def _scan(processor: Processor, facts: ScanFacts, chosen: ScanParameters) -> Sequence[object]:
    values = {
        "lanes": around(chosen.lanes, 2, _WIDEST * processor.lanes(facts.bytes)),
        "unroll": around(chosen.unroll, 1, _MOST_UNROLL, (1, 2)),
        "block": around(chosen.block, chosen.lanes, 8192, (1, 2)) if chosen.block else [],
        "prefetch": _prefetch(chosen.prefetch),
    }
    return varied(
        chosen,
        values,
        [("lanes", "unroll")],
        is_valid=lambda made: not made.block or made.block >= made.lanes,
    )


def _scatter(
    processor: Processor, facts: ScatterFacts, chosen: ScatterParameters
) -> Sequence[object]:
    if facts.columns is None:
        return varied(chosen, {"unroll": around(chosen.unroll, 1, _MOST_UNROLL, (1, 2))})
    values = {
        "lanes": around(chosen.lanes, 2, _WIDEST * processor.lanes(facts.bytes)),
        "unroll": around(chosen.unroll, 1, _MOST_UNROLL, (1, 2)),
        "block": around(chosen.block, chosen.lanes, 8192, (1, 2)),
        "prefetch": _prefetch(chosen.prefetch),
    }
    return varied(
        chosen, values, [("lanes", "unroll")], is_valid=lambda made: made.block >= made.lanes
    )
