"""What a GPU's heuristics could have chosen instead: candidates for measuring.

Other blocks (threads along a row, rows of a block), more or fewer vectors under way in a thread,
narrower vectors, other parts of a grid.  A kernel that is for rows of a limited length keeps to it:
its unrolling follows from its threads.  The cascade of a sum follows from the other fields: where
it is cut is a decision about rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...ir.scalar_queries import evaluate
from ...target.cascade import chain_levels
from ...target.parameters import (
    InnerOuterFacts,
    InnerOuterParameters,
    PointwiseFacts,
    ReductionFacts,
    ReductionParameters,
    ScanFacts,
    ScanParameters,
    ScatterFacts,
    ScatterParameters,
)
from ...target.thread_parameters import WARP, ThreadedPointwise, ThreadedReduction
from ...target.varied import Values, around, varied

_MOST_THREADS = 1024
_LEAST_THREADS = 32
_MOST_UNROLL = 16
_MOST_REPEATS = 16
_MOST_PARTS = 1024


def candidates(facts: object, chosen: object, sizes: Mapping[str, int]) -> Sequence[object]:
    """Neighbours of the heuristics' choice, at most MOST_CANDIDATES."""
    match facts, chosen:
        case PointwiseFacts(), ThreadedPointwise():
            return _tiles(chosen) if chosen.tile else _pointwise(chosen)
        case ReductionFacts(), ThreadedReduction():
            return _whole(facts, chosen, sizes) if chosen.is_whole else _long(facts, chosen, sizes)
        case InnerOuterFacts(), InnerOuterParameters():
            return _inner_outer(facts, chosen, sizes)
        case ScanFacts(), ScanParameters():
            threads = around(chosen.lanes, WARP, _MOST_THREADS // 2, (1, 2))
            made = varied(chosen, {"lanes": threads})
            return made if chosen.inner else [replace(e, block=e.lanes) for e in made]
        case ScatterFacts(), ScatterParameters(is_concurrent=True):
            blocks = around(chosen.block, WARP, _MOST_THREADS, (1, 2))
            unrolls = around(chosen.unroll, 1, 8) if chosen.has_rows else []
            return varied(chosen, {"block": blocks, "unroll": unrolls})
        case _:
            return ()


def _narrower(vector: int) -> list[int]:
    return [vector >> step for step in (1, 2) if vector >> step]


def _has_threads(made: ThreadedPointwise | ThreadedReduction) -> bool:
    return _LEAST_THREADS <= made.lanes * made.lines <= _MOST_THREADS


def _pointwise(chosen: ThreadedPointwise) -> Sequence[object]:
    values: Values = {
        "lanes": around(chosen.lanes, 1, 512, (1, 2)),
        "lines": around(chosen.lines, 1, 64, (1, 2)),
        "unroll": around(chosen.unroll, 1, 8, (1, 2)),
        "vector": _narrower(chosen.vector),
    }
    pairs = [("lanes", "lines"), ("lanes", "unroll")]
    return varied(chosen, values, pairs, is_valid=_has_threads)


def _tiles(chosen: ThreadedPointwise) -> Sequence[object]:
    """Tiles read by more or fewer threads, others of single elements; and none at all."""
    if chosen.squares:
        lines = [each for each in (8, 16, 32) if each != chosen.lines and each <= chosen.tile]
        squares = [replace(chosen, lines=each, unroll=chosen.tile // each) for each in lines]
        elements = ThreadedPointwise.tiles()
        untiled = ThreadedPointwise(elements.lanes, 1, 0, lines=elements.lines)
        return [*squares, elements, untiled]
    tiles = [
        replace(chosen, lines=lines, unroll=chosen.tile // lines)
        for lines in around(chosen.lines, 1, chosen.tile, (1, 2))
    ]
    untiled = ThreadedPointwise(chosen.lanes, 1, 0, lines=chosen.lines)
    return [*tiles, replace(chosen, padding=0), untiled]


def _whole(
    facts: ReductionFacts, chosen: ThreadedReduction, sizes: Mapping[str, int]
) -> Sequence[ThreadedReduction]:
    """Rows or columns in the registers of their threads."""
    reduced = evaluate(facts.reduced, sizes)
    values: Values = {
        "lanes": around(chosen.lanes, 1, 512, (1, 2)),
        "lines": around(chosen.lines, 1, 512, (1, 2)),
        "vector": _narrower(chosen.vector),
        "repeats": around(chosen.repeats, 1, _MOST_REPEATS) if facts.weights else [],
    }

    def completed(made: ThreadedReduction) -> ThreadedReduction:
        step = made.lanes * made.vector if made.inner else made.lines
        unroll = -(-reduced // step)
        is_full = made.inner and reduced == unroll * step
        return replace(made, unroll=unroll, is_full=is_full)

    def is_valid(made: ThreadedReduction) -> bool:
        return _has_threads(made) and made.unroll <= _MOST_UNROLL

    pairs = [("lanes", "lines"), ("lanes", "repeats")]
    return varied(chosen, values, pairs, completed, is_valid)


def _long(
    facts: ReductionFacts, chosen: ThreadedReduction, sizes: Mapping[str, int]
) -> Sequence[ThreadedReduction]:
    """Rows or columns in parts, or read in each pass."""
    values: Values = {
        "lanes": around(chosen.lanes, WARP, _MOST_THREADS, (1, 2)),
        "lines": [] if chosen.inner else around(chosen.lines, 1, _MOST_THREADS, (1, 2)),
        "unroll": around(chosen.unroll, 1, _MOST_UNROLL, (1, 2)),
        "vector": _narrower(chosen.vector),
        "parts": around(chosen.parts, 1, _MOST_PARTS) if chosen.parts > 1 else [],
        "copies": [not chosen.copies],
    }

    def completed(made: ThreadedReduction) -> ThreadedReduction:
        threads = made.lanes * made.vector if made.inner else made.lines
        step = threads * made.unroll
        keeps = made.keeps or made.copies
        cascade = (
            chain_levels(facts.chain, sizes, step, made.parts)
            if made.outermost
            else chain_levels(facts.chain, sizes, step * made.parts)
        )
        return replace(made, keeps=keeps, cascade=cascade)

    pairs = [("lanes", "lines"), ("lanes", "unroll")]
    return varied(chosen, values, pairs, completed, _has_threads)


def _inner_outer(
    facts: InnerOuterFacts, chosen: InnerOuterParameters, sizes: Mapping[str, int]
) -> Sequence[object]:
    rows = chosen.rows
    parts = around(rows.parts, 1, _MOST_PARTS, (1, 2))
    found: list[object] = [replace(chosen, rows=replace(rows, parts=each)) for each in parts]
    if isinstance(rows, ThreadedReduction) and rows.is_whole:
        others = _whole(replace(facts.rows, weights=0), rows, sizes)
        return [*found, *(replace(chosen, rows=each) for each in others)]
    step = rows.unroll * rows.lanes
    for lanes in around(rows.lanes, WARP, _MOST_THREADS):
        cascade = chain_levels(facts.rows.chain, sizes, step // rows.lanes * lanes)
        made: ReductionParameters = replace(rows, lanes=lanes, cascade=cascade)
        found.append(replace(chosen, rows=made))
    return found
