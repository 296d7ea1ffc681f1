"""Units: the expressions that segmentation places, and the tensors they read from each other.

A unit is one expression whose result is worth storing.  Cheap expressions aren't units: an up-cast,
a broadcast, an expand, a squeeze or a full is *free*: every segment that reads its result
recomputes it, so a half-precision tensor crosses a segment boundary in half precision, and a row as
a row.  A view or slice that only library operations read is free as well: they take it by its
strides.  The tensors that a unit reads are looked up through free expressions.  Source: nvFuser's
public source, which calls free operations privatizing ops.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from ..analysis.costs import is_cut
from ..analysis.iteration_space import Axes, IterationSpace, Signature, Step
from ..dtypes import is_complex, size_in_bytes
from ..ir.exprs import (
    VIEWS,
    BroadcastOp,
    ExpandOp,
    Expr,
    FullOp,
    IotaOp,
    LibraryOp,
    PointwiseOp,
    ScatterOp,
    SqueezeOp,
    WindowOp,
    is_shown_by_strides,
)
from ..ir.fusion import Fusion
from ..ir.vals import TensorView
from ..schedule.facts import tensor_exprs
from ..target.target import Target


@dataclass(slots=True, eq=False)
class Unit:
    """One expression to be placed.

    `reads` are the tensors that it needs from other units or from the inputs, `aligned` those of
    them that it doesn't read at computed positions. `barriers` numbers the edges that no group may
    contain. `follows` are the kinds of reductions of its own group that the unit is or follows.
    """

    expr: Expr
    position: int
    reads: list[TensorView]
    aligned: list[TensorView]
    axes: Axes
    signature: Signature | None
    steps: list[Step]
    evaluated: bool
    follows: frozenset[Signature] = frozenset()
    barriers: set[int] = field(default_factory=set)
    producers: list[Unit] = field(default_factory=list)
    consumers: list[Unit] = field(default_factory=list)

    @property
    def outputs(self) -> list[TensorView]:
        """The output tensors."""
        return self.expr.tensor_outputs


@dataclass(slots=True)
class UnitGraph:
    """The units of a fusion in topological order, and the readers of each tensor.

    `free` are the expressions that aren't units; `places` orders all expressions; `stored` are the
    tensors that no kernel may recompute; `cuts` are the barriers made by segment_sets.
    """

    fusion: Fusion
    space: IterationSpace
    units: list[Unit]
    readers: dict[TensorView, list[Unit]]
    outputs: set[TensorView]
    free: set[Expr]
    places: dict[Expr, int]
    stored: set[TensorView]
    cuts: set[int] = field(default_factory=set)


def is_free(expr: Expr, stored: set[TensorView], target: Target) -> bool:
    """True if readers in other segments recompute the expression.

    `stored` are the outputs of the fusion and the sources of reads, which have to be in memory.
    """
    if not stored.isdisjoint(expr.tensor_outputs) or target.refusal(expr) is not None:
        return False
    match expr:
        case BroadcastOp() | ExpandOp() | SqueezeOp() | FullOp():
            return True
        case IotaOp():
            return not _reaches_library(expr)
        case WindowOp() if not expr.tensor_inputs:
            return not _reaches_library(expr)
        case PointwiseOp(op="cast"):
            source, result = expr.inputs[0].dtype, expr.output.dtype
            widens = not is_complex(source) and size_in_bytes(source) < size_in_bytes(result)
            return widens and bool(expr.tensor_inputs) and not _reaches_library(expr)
        case _:
            return _is_operand(expr, stored)


def _reaches_library(expr: Expr) -> bool:
    """True if a library operation reads the result, or a view of it: a kernel computes it once."""
    return any(
        isinstance(reader, LibraryOp) or (isinstance(reader, VIEWS) and _reaches_library(reader))
        for reader in expr.output.uses_list
    )


def _is_operand(expr: Expr, stored: Collection[TensorView]) -> bool:
    """True for a view or slice that is only read by library operations, or by others of its kind.

    The library takes the memory that it shows by its strides.
    """
    if not is_shown_by_strides(expr):
        return False
    output = expr.tensor_outputs[0]
    readers = output.uses_list
    return (
        bool(readers)
        and output not in stored
        and all(isinstance(reader, LibraryOp) or _is_operand(reader, stored) for reader in readers)
    )


def anchors(tensors: list[TensorView], free: set[Expr]) -> list[TensorView]:
    """The tensors, looked up through free expressions."""
    found: dict[TensorView, None] = {}
    stack = list(reversed(tensors))
    while stack:
        tensor = stack.pop()
        if tensor.expr is not None and tensor.expr in free:
            stack += reversed(tensor.expr.tensor_inputs)
        else:
            found[tensor] = None
    return list(found)


def free_exprs(exprs: Iterable[Expr], free: set[Expr]) -> set[Expr]:
    """The free expressions that lead to the inputs of `exprs`."""
    needed: set[Expr] = set()
    stack = [tensor for expr in exprs for tensor in expr.tensor_inputs]
    while stack:
        expr = stack.pop().expr
        if expr is not None and expr in free and expr not in needed:
            needed.add(expr)
            stack += expr.tensor_inputs
    return needed


def unit_graph(fusion: Fusion, target: Target, stored: Collection[int] = ()) -> UnitGraph:
    """The units of a fusion for a target; the tensors with these names are read from memory."""
    live = tensor_exprs(fusion.live_exprs())
    outputs = {v for v in fusion.outputs if isinstance(v, TensorView)}
    kept = {t for expr in live for t in expr.tensor_outputs if t.name in stored}
    reads = [e for e in live if e.source is not None and not _is_operand(e, outputs | kept)]
    sources = {expr.source for expr in reads if expr.source is not None}
    free = {expr for expr in live if is_free(expr, outputs | sources | kept, target)}
    space = IterationSpace(live)
    units: list[Unit] = []
    readers: dict[TensorView, list[Unit]] = {}
    makers: dict[TensorView, Unit] = {}
    for position, expr in enumerate(live):
        if expr in free:
            continue
        unit = _unit(expr, position, space, free, target)
        units.append(unit)
        makers.update((tensor, unit) for tensor in unit.outputs)
        for tensor in unit.reads:
            readers.setdefault(tensor, []).append(unit)
        unit.producers = list(dict.fromkeys(makers[t] for t in unit.reads if t in makers))
        for producer in unit.producers:
            producer.consumers.append(unit)
    places = {expr: place for place, expr in enumerate(live)}
    graph = UnitGraph(fusion, space, units, readers, outputs, free, places, kept)
    _set_barriers(graph, free)
    return graph


def _unit(
    expr: Expr, position: int, space: IterationSpace, free: set[Expr], target: Target
) -> Unit:
    axes = space.touched(expr)
    reads = anchors(expr.tensor_inputs, free)
    aligned = anchors(expr.aligned_inputs, free)
    for tensor in aligned:
        axes |= space.axes(tensor)
    steps = [step for tensor in expr.tensor_outputs for step in space.steps(tensor)]
    signature = space.signature(expr.tensor_outputs[0])
    return Unit(
        expr,
        position,
        reads,
        aligned,
        axes,
        signature,
        steps,
        target.refusal(expr) is not None,
    )


def _set_barriers(graph: UnitGraph, free: set[Expr]) -> None:
    """Marks the edges after a segment_set, and those whose two sides can't share loops."""
    count = 0
    conflicts: dict[Expr, set[TensorView]] = {}
    for expr, tensor in graph.space.conflicts:
        conflicts.setdefault(expr, set()).add(tensor)
    for unit in graph.units:
        exprs = free_exprs([unit.expr], free) | {unit.expr}
        clashing = {t for e in exprs for t in conflicts.get(e, ())}
        for producer in unit.producers:
            forced = is_cut(producer.expr)
            # If one tensor is read twice along different axes, any of the producers may lead to the
            # other use: the unit is kept apart from all of them.
            if forced:
                graph.cuts.add(count)
            # A source of reads at computed positions has to be in memory before the kernel runs.
            is_source = unit.expr.source in producer.outputs
            # The result of a scatter is complete when its kernel ends.
            is_scattered = isinstance(producer.expr, ScatterOp)
            is_stored = not graph.stored.isdisjoint(producer.outputs)
            if forced or clashing or is_source or is_scattered or is_stored:
                producer.barriers.add(count)
                unit.barriers.add(count)
                count += 1
