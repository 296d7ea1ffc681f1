"""Scans along the lanes of a vector: each lane combined with those before it and the running value.

A vector of n lanes takes log2(n) steps: each combines the upper half of every 2, 4, 8, ... lanes
with the last lane of the lower half.  A vector wider than the machine's is scanned in pieces,
because a shuffle across two registers costs as much as two.  From one vector to the next only the
running value is passed on, by one operation.
"""

from __future__ import annotations

from collections.abc import Callable

from .llvm_writer import FunctionWriter, Value

Combine = Callable[[Value, Value], Value]  # (an element, what comes before it)


def scan_lanes(
    w: FunctionWriter, vector: Value, running: Value, combine: Combine, identity: Value, native: int
) -> tuple[Value, Value]:
    """(the results of all lanes, the new running value); `native` is a power of two."""
    pieces: list[Value] = []
    for piece in w.pieces(vector, native):
        piece = _prefixes(w, piece, combine, identity)
        pieces.append(combine(piece, w.splat(running, piece.type.lanes)))
        running = combine(w.extractelement(piece, piece.type.lanes - 1), running)
    return w.joined(pieces), running


def _prefixes(w: FunctionWriter, vector: Value, combine: Combine, identity: Value) -> Value:
    """Each lane combined with those before it."""
    lanes = vector.type.lanes
    nothing = w.splat(identity, lanes)
    half = 1
    while half < lanes:
        # the last lane before the half that lane i is in; a lower half has none
        last = [i // half * half - 1 if i & half else lanes for i in range(lanes)]
        vector = combine(vector, w.shufflevector(vector, nothing, last))
        half *= 2
    return vector


def scan_in_order(
    w: FunctionWriter, vector: Value, running: Value, combine: Combine
) -> tuple[Value, Value]:
    """The same, one lane after the other."""
    results = w.undefined(vector.type)
    for lane in range(vector.type.lanes):
        running = combine(w.extractelement(vector, lane), running)
        results = w.insertelement(results, running, lane)
    return results, running
