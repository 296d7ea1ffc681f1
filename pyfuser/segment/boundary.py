"""Boundaries: the inputs and outputs of a segment, as values of the whole fusion.

Tensors come first, in the order in which they are read.  Each segment that needs a computed scalar
computes it again, on the host.  A size that no input tensor of the segment has becomes a scalar
input, so a segment can be compiled and run without knowledge of the others.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..analysis.iteration_space import IterationSpace
from ..dtypes import DataType
from ..ir.domains import IterDomain, Split, history
from ..ir.exprs import Expr
from ..ir.fusion import Fusion
from ..ir.scalars import Symbol
from ..ir.segmented import PartKind, Segment
from ..ir.vals import Scalar, TensorView, Val
from ..schedule.registry import AutomaticScheduler


def make_segment(
    fusion: Fusion,
    exprs: Iterable[Expr],
    outputs: list[TensorView],
    scheduler: AutomaticScheduler,
    space: IterationSpace,
    reason: str = "",
) -> Segment:
    """A segment of these expressions (in topological order), with the inputs it needs.

    `space` has the axes of its tensors.
    """
    body = [expr for expr in exprs if expr.tensor_outputs]
    made = {tensor for expr in body for tensor in expr.tensor_outputs}
    read = dict.fromkeys(t for e in body for t in e.tensor_inputs if t not in made)
    outer = dict.fromkeys(t for t in outputs if t not in made)
    tensors = list(read | outer)
    host = _host_exprs(body)
    scalars = _scalar_inputs(fusion, host + body)
    sizes = _hidden_sizes(fusion, tensors, host + body, scalars)
    apart = _read_apart(fusion, body, space) if scheduler.kind is PartKind.kernel else []
    inputs = [*tensors, *scalars, *sizes, *(tensor for tensor, _ in apart)]
    return Segment(host + body, inputs, outputs, scheduler.name, scheduler.kind, reason, apart)


def _read_apart(
    fusion: Fusion, body: list[Expr], space: IterationSpace
) -> list[tuple[TensorView, list[Expr]]]:
    """The inputs that are read along two axes of the loops, with the readers of each way but the
    first.

    As inputs of their own they have loops, and can be copied, moved in vectors and transposed.
    """
    apart: list[tuple[TensorView, list[Expr]]] = []
    for tensor in sorted(space.private, key=lambda each: each.name):
        if tensor in fusion.overwritten or tensor in fusion.aliases.values():
            continue
        ways: dict[tuple[int, ...], list[Expr]] = {}
        for expr in body:
            if tensor in expr.aligned_inputs:
                ways.setdefault(space.read_along(expr, tensor), []).append(expr)
        apart += [(tensor, readers) for readers in list(ways.values())[1:]]
    return apart


def _host_exprs(body: list[Expr]) -> list[Expr]:
    """The expressions over scalars that the body's scalar operands need, in order."""
    needed: dict[Expr, None] = {}

    def visit(value: Val) -> None:
        expr = value.expr
        if isinstance(value, Scalar) and expr is not None and expr not in needed:
            for operand in expr.inputs:
                visit(operand)
            needed[expr] = None

    for expr in body:
        for value in expr.inputs:
            visit(value)
    return list(needed)


def _scalar_inputs(fusion: Fusion, exprs: list[Expr]) -> list[Scalar]:
    read = dict.fromkeys(v for e in exprs for v in e.inputs if isinstance(v, Scalar))
    given = set(fusion.inputs)
    return [value for value in read if value in given]


def _axes_of(tensor: TensorView) -> list[IterDomain]:
    return [*tensor.domain.root_and_logical, *(tensor.domain.allocation or ())]


def _symbols(exprs: list[Expr], tensors: list[TensorView]) -> dict[Symbol, None]:
    """Every size that the expressions' axes, reshapes and scalars mention, in a stable order."""
    extents = []
    for tensor in [*tensors, *(t for e in exprs for t in e.tensor_outputs)]:
        for axis in _axes_of(tensor):
            extents += [axis.extent, axis.size]
        for step in history(tensor.domain.logical, tensor.domain.root_or_logical):
            extents += [step.factor] if isinstance(step, Split) else []
    for expr in exprs:
        extents += expr.sizes()
        for value in expr.inputs:
            # A computed scalar gets its size from its expression.
            if isinstance(value, Scalar) and value.expr is None and value.extent is not None:
                extents.append(value.extent)
    distinct = dict.fromkeys(extents)
    return dict.fromkeys(s for e in distinct for s in sorted(e.symbols, key=lambda s: s.name))


def _hidden_sizes(
    fusion: Fusion, tensors: list[TensorView], exprs: list[Expr], scalars: list[Scalar]
) -> list[Scalar]:
    """Scalars for the sizes that the tensor inputs don't have."""
    shown = {scalar.extent for scalar in scalars}
    for tensor in tensors:
        is_input = tensor.expr is None
        for axis in tensor.axes:
            # A tensor stored by another segment has one element along a broadcast axis.
            shown.add(axis.size if is_input else axis.extent)
    hidden = [symbol for symbol in _symbols(exprs, tensors) if symbol not in shown]
    given = {v.extent: v for v in fusion.inputs if isinstance(v, Scalar) and v.extent is not None}
    return [
        given.get(symbol) or fusion.new_scalar(DataType.Int, extent=symbol) for symbol in hidden
    ]
