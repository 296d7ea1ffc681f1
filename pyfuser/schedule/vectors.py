"""Inputs and outputs as copies between memory and a thread's registers, a vector at a time.

On hardware threads, a thread has a few elements that are next to each other in memory.  It reads
them by one instruction, before anything is computed from them, and writes its results by another:

    T0 in memory -> copy [vectorize] -> ... [elements: unroll] -> copy -> T1 in memory [vectorize]

The loop over the vector is the innermost of all tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from ..dtypes import size_in_bytes
from ..ir.domains import IterDomain, ParallelType
from ..ir.schedule import ScheduledFusion
from ..ir.vals import TensorView
from .common import Layouts, fork_outputs, is_reduction, leaves
from .inlining import inline_most
from .rewrite import cache_after, cache_before


@dataclass(slots=True)
class Copies:
    """The copies in registers of the tensors that are read, and of those that are stored.

    `is_vector` if they move more than an element at once; outputs are copied only then.  `limits`
    are the positions past which other tensors aren't inlined.
    """

    inputs: list[TensorView] = field(default_factory=list)
    outputs: list[TensorView] = field(default_factory=list)
    is_vector: bool = False
    limits: dict[TensorView, int] = field(default_factory=dict)

    @staticmethod
    def of(
        scheduled: ScheduledFusion, vector: int, after: AbstractSet[TensorView] = frozenset()
    ) -> Copies:
        """Copies all inputs and outputs, to move vectors of this many elements.

        The tensors computed `after` these loops, in loops of their own, don't read the copies.
        """
        fusion = scheduled.fusion
        fork_outputs(scheduled)
        copies = Copies(is_vector=vector > 1)
        for tensor in leaves(fusion):
            if tensor.expr is None:
                readers = [
                    e for e in tensor.uses_list if is_reduction(e) or after.isdisjoint(e.outputs)
                ]
                if tensor.axes and any(e.source is not tensor for e in readers):
                    copies.inputs.append(cache_after(scheduled, tensor, readers))
            elif copies.is_vector and not tensor.has_expanded_axis:
                source = _stored_from(tensor)
                if source is None:
                    source = cache_before(scheduled, tensor)
                if source not in copies.inputs:
                    copies.outputs.append(source)
        return copies

    def inline(
        self, scheduled: ScheduledFusion, layouts: Layouts, axis: IterDomain, loops: int, most: int
    ) -> None:
        """Inlines copies of inputs at position `most` or before, those of outputs outside the last
        of `loops` loops, and all others as far as possible.

        The last loop of the copies of tensors that are contiguous along `axis` is a vector.
        """
        if self.is_vector:
            inner = layouts.number(axis)
            for leaf in layouts.leaves:
                if leaf.order and leaf.order[-1] == inner and leaf.contiguous[inner]:
                    for tensor in self.movers(leaf.tensor):
                        make_vector(scheduled, tensor, loops - 1)
        limits = dict.fromkeys(self.outputs, loops - 1) | dict.fromkeys(self.inputs, most)
        inline_most(scheduled, most=limits | self.limits)

    def movers(self, tensor: TensorView) -> list[TensorView]:
        """What moves an input or output: the copy, or the output itself."""
        if tensor.expr is not None:
            return [tensor]
        return [t for e in tensor.uses_list for t in e.tensor_outputs if t in self.inputs]


def make_vector(scheduled: ScheduledFusion, tensor: TensorView, position: int) -> None:
    """Makes the loop at a position a vector, if the tensor has the loops of the others."""
    loop = scheduled[tensor].loop
    if position < len(loop) and loop[position].parallel_type is ParallelType.unroll:
        scheduled[tensor].parallelize(position, ParallelType.vectorize)


def _stored_from(output: TensorView) -> TensorView | None:
    """The computed tensor that an output is a copy of, if it is one."""
    expr = output.expr
    if expr is None or expr.name != "set":
        return None
    (source,) = expr.tensor_inputs
    return source if source.expr is not None else None


def vector_bytes(layouts: Layouts, axes: Sequence[IterDomain]) -> int:
    """Bytes of the widest element that is moved in vectors along the last of the axes, which are
    the reference's in memory order; 0 if an input or output can't be.

    A tensor that the axis doesn't belong to has the same element for the whole vector.
    """
    numbers = {layouts.number(axis) for axis in axes}
    inner = layouts.number(axes[-1]) if axes else None
    if inner is None or any(inner in read.contiguous for read in layouts.reads):
        return 0
    widest = 0
    for leaf in layouts.leaves:
        if not numbers.issuperset(leaf.order) or leaf.tensor.has_expanded_axis:
            return 0
        if inner in leaf.contiguous:
            if leaf.order[-1] != inner or not leaf.contiguous[inner]:
                return 0
            widest = max(widest, size_in_bytes(leaf.tensor.dtype))
    return widest
