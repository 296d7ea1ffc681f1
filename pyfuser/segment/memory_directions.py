"""Memory directions: when to keep tensors that run across each other out of one kernel.

The loops of a reduction or a norm follow the memory of its input.  A large tensor beside it whose
memory runs along another of their axes (`softmax(x, 1)` stored transposed) would be accessed an
element at a time, far apart, in loops that can't be vectorised.  A kernel of its own transposes it
in tiles.  So it is with the outputs of a pointwise kernel, which transposes only what it reads: of
two that run across each other, one would be stored an element at a time.  `groups` checks this
before it merges two groups.

Measured on a CPU, one thread: a transposed softmax of 512 x 1024 took 4.1 ms as one kernel, 0.5 ms
as two; 4096 x 64 doubled, and tripled and transposed, 1.5 ms as one, 0.2 as two.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ..analysis.costs import is_cut
from ..analysis.iteration_space import Axes, IterationSpace
from ..ir.scalars import Integer, IntExpr
from ..ir.vals import TensorView
from ..schedule.facts import Facts
from ..schedule.size_info import SizeInfo

# The axes of a tensor, and which of them is innermost in its memory.
Direction = tuple[Axes, int]

# Below this a second kernel costs more than what it saves.
_LEAST_ELEMENTS = 1 << 12


def directions(space: IterationSpace, tensors: Iterable[TensorView]) -> set[Direction]:
    """The directions of the tensors with several axes."""
    found = set()
    for tensor in tensors:
        real = [axis for axis in tensor.domain.allocated if not axis.is_broadcast]
        if len(real) > 1:
            found.add((frozenset(map(space.number, real)), space.number(real[-1])))
    return found


def has_fixed_order(tensor: TensorView) -> bool:
    """True for what is in memory in an order that no cut chooses: an input, or what is stored in a
    given order for the next kernels.
    """
    return tensor.expr is None or (is_cut(tensor.expr) and tensor.domain.allocation is not None)


def crossing(
    found: Collection[Direction], sizes: SizeInfo, extents: Sequence[IntExpr], has_rows: bool
) -> str | None:
    """Why a kernel takes too long with tensors of these directions; None if it doesn't.

    `has_rows` if it reduces or scans; a pointwise one stores a few columns together.
    """
    for axes, inner in found:
        for others, other in found:
            if inner == other or inner not in others or other not in axes:
                continue
            ends, few = (extents[inner], extents[other]), sizes.target.columns_together
            if not has_rows and any(isinstance(e, Integer) and e.value <= few for e in ends):
                continue
            elements = sizes.elements(extents[n] for n in axes & others)
            if elements is None or elements >= _LEAST_ELEMENTS:
                return "a tensor's memory runs across that of another"
    return None


def has_crossing(facts: Facts, sizes: SizeInfo) -> bool:
    """True if one kernel for everything would have such outputs, or reductions and such tensors.

    Only the fusion's inputs and outputs count: the order of others is chosen after all cuts.
    """
    fixed = [tensor for tensor in facts.outputs if tensor in tensor.fusion.outputs]
    has_rows = facts.summary.has_rows
    if has_rows:
        read = {tensor for expr in facts.exprs for tensor in expr.aligned_inputs}
        fixed += [tensor for tensor in facts.inputs if tensor in read and tensor.expr is None]
    found = directions(facts.space, fixed)
    return crossing(found, sizes, facts.space.extents, has_rows) is not None
