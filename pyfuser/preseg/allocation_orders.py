"""The memory order that outputs inherit: channels-last inputs give channels-last outputs.

An output whose order the definition leaves open is stored in the order of the input with most axes,
so that both are read and written along their memory.  Inputs with equally many axes must agree, and
the output's axes must all be axes of that input.  Row-major inputs change nothing, and neither does
an order that the definition states (`stride_order`).

    Before:  T0[n, c, h, w] stored as n, h, w, c;  output T1[n, c, h, w] = exp(T0), row-major
    After:   output T1[n, c, h, w] = exp(T0), stored as n, h, w, c

It runs when a definition is given to the engine, before anything else: whoever computes the fusion,
kernels or torch, the outputs have these strides.  A graph of torch.compile states all orders.
"""

from __future__ import annotations

from ..analysis.iteration_space import IterationSpace
from ..ir.domains import IterDomain
from ..ir.exprs import LibraryOp
from ..ir.fusion import Fusion
from ..ir.vals import TensorView, Val
from ..ops.shape_builders import stride_order


def with_inherited_orders(fusion: Fusion) -> Fusion:
    """The fusion, or a copy whose outputs have the orders that they inherit."""
    if all(tensor.domain.allocation is None for tensor in fusion.input_tensors):
        return fusion
    copy, _ = fusion.clone()
    space = IterationSpace.of_fusion(copy)
    order = _order(space, copy)
    stored: dict[Val, TensorView] = {}
    for output in dict.fromkeys(copy.outputs):
        if isinstance(output, TensorView) and _is_open(copy, output):
            places = [-1 if a.is_broadcast else _place(space, a, order) for a in output.axes]
            outermost_first = sorted(range(output.ndim), key=lambda dim: places[dim] or 0)
            if None not in places and outermost_first != list(range(output.ndim)):
                positions = [output.ndim - 1 - outermost_first.index(d) for d in range(output.ndim)]
                stored[output] = stride_order(copy, output, positions)
    copy.outputs = [stored.get(output, output) for output in copy.outputs]
    return copy if stored else fusion


def _order(space: IterationSpace, fusion: Fusion) -> list[int]:
    """The numbers of the axes of the largest inputs, outermost in memory first.

    Empty if the inputs with most axes differ.
    """
    read = {t for e in fusion.exprs for t in e.aligned_inputs}
    orders = [
        [space.number(axis) for axis in tensor.domain.allocated if not axis.is_broadcast]
        for tensor in fusion.input_tensors
        if tensor in read
    ]
    most = max(map(len, orders), default=0)
    first, *others = [order for order in orders if len(order) == most] or [[]]
    return first if all(other == first for other in others) else []


def _is_open(fusion: Fusion, output: TensorView) -> bool:
    """True for a computed output whose order nothing states."""
    if output.expr is None or isinstance(output.expr, LibraryOp) or output in fusion.aliases:
        return False
    return output.domain.allocation is None and not output.has_expanded_axis


def _place(space: IterationSpace, axis: IterDomain, order: list[int]) -> int | None:
    """Where an axis is in an order; None if it isn't."""
    number = space.number(axis)
    return order.index(number) if number in order else None
