"""Inputs and outputs as copies between memory and a thread's registers, a vector at a time.

On hardware threads, a thread has a few elements that are next to each other in memory.  It reads
them by one instruction, before anything is computed from them, and writes its results by another:

    T0 in memory -> copy [vectorize] -> ... [elements: unroll] -> copy -> T1 in memory [vectorize]

The loop over the vector is the innermost of all tensors.  A read at a computed position (a slice, a
pad, a gather) that runs along its source's memory is such a copy itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from ..analysis.mapping import upstream
from ..dtypes import size_in_bytes
from ..ir.domains import IterDomain, ParallelType
from ..ir.exprs import Expr, ReshapeOp, WindowOp
from ..ir.fusion import Fusion
from ..ir.scalars import IntExpr
from ..ir.schedule import ScheduledFusion
from ..ir.vals import TensorView
from .common import (
    Layouts,
    ReadLeaf,
    fork_outputs,
    is_reduction,
    leaves,
    private_inputs,
    reductions,
)
from .inlining import inline_most
from .rewrite import cache_after, cache_before


@dataclass(slots=True)
class Copies:
    """The copies in registers of the tensors that are read, and of those that are stored.

    `is_vector` if they move more than an element at once; outputs are copied only then.  `apart`
    are the inputs' copies that have one reader, which they are inlined into.  `limits` are the
    positions past which other tensors aren't inlined.
    """

    inputs: list[TensorView] = field(default_factory=list)
    outputs: list[TensorView] = field(default_factory=list)
    is_vector: bool = False
    apart: set[TensorView] = field(default_factory=set)
    limits: dict[TensorView, int] = field(default_factory=dict)

    @staticmethod
    def of(
        scheduled: ScheduledFusion,
        vector: int,
        after: AbstractSet[TensorView] = frozenset(),
        apart: AbstractSet[TensorView] = frozenset(),
    ) -> Copies:
        """Copies all inputs and outputs, to move vectors of this many elements.

        The tensors computed `after` these loops, in loops of their own, don't read the copies.
        The readers of a tensor in `apart` have copies of their own, of just the vector they need.
        A tensor whose copy would have other loops than its readers is not copied: one that is read
        along two axes, or whose elements a reshape repeats.
        """
        fusion = scheduled.fusion
        unlike = private_inputs(fusion) | _repeated(fusion)
        fork_outputs(scheduled)
        copies = Copies(is_vector=vector > 1)
        for tensor in leaves(fusion):
            if tensor.expr is None:
                readers = [
                    e for e in tensor.uses_list if is_reduction(e) or after.isdisjoint(e.outputs)
                ]
                is_source = all(e.source is tensor for e in readers)
                if not tensor.axes or tensor in unlike or is_source:
                    continue
                if tensor in apart:
                    own = [cache_after(scheduled, tensor, each) for each in _separate(readers)]
                    copies.inputs += own
                    copies.apart |= set(own)
                else:
                    copies.inputs.append(cache_after(scheduled, tensor, readers))
            elif copies.is_vector and not tensor.has_expanded_axis:
                source = _stored_from(tensor)
                if source is None:
                    source = cache_before(scheduled, tensor)
                if source not in copies.inputs:
                    copies.outputs.append(source)
        return copies

    def inline(
        self,
        scheduled: ScheduledFusion,
        layouts: Layouts,
        axis: IterDomain,
        loops: int,
        most: int,
        by: Callable[..., None] = inline_most,
    ) -> None:
        """Inlines copies of inputs at position `most` or before, those of outputs outside the last
        of `loops` loops, and all others as far as possible, `by` a function of `inlining`.

        The last loop of the copies of tensors that are contiguous along `axis` is a vector.  So is
        that of reads along it; of a reduction, which has a long part of a row or column in
        registers anyway, only those that several passes need are there too.
        """
        limits = dict.fromkeys(self.outputs, loops - 1) | dict.fromkeys(self.inputs, most)
        limits |= dict.fromkeys(self.apart, loops - 1)
        if self.is_vector:
            inner = layouts.number(axis)
            for leaf in layouts.leaves:
                if inner is not None and leaf.own.runs_along(inner):
                    for tensor in self.movers(leaf.tensor):
                        make_vector(scheduled, tensor, loops - 1)
            for read in layouts.reads:
                if inner is not None and read.own.runs_along(inner):
                    limits |= self._vector_read(scheduled, read, loops - 1, most)
        by(scheduled, most=limits | self.limits)

    def _vector_read(
        self, scheduled: ScheduledFusion, read: ReadLeaf, position: int, most: int
    ) -> dict[TensorView, int]:
        """Makes a loop of a read a vector; returns how far it, and what it needs, may be inlined.

        What is computed for a read, such as what fills a pad, exists before its vector is read.
        """
        (tensor,) = read.expr.tensor_outputs
        make_vector(scheduled, tensor, position)
        computed = [
            operand
            for operand in read.expr.aligned_inputs
            if operand.expr is not None and operand not in self.inputs
        ]
        is_early = not computed and not reductions(scheduled.fusion)
        return {**dict.fromkeys(computed, position), tensor: most if is_early else position}

    def movers(self, tensor: TensorView) -> list[TensorView]:
        """What moves an input or output: the copy, or the output itself."""
        if tensor.expr is not None:
            return [tensor]
        return [t for e in tensor.uses_list for t in e.tensor_outputs if t in self.inputs]


def _repeated(fusion: Fusion) -> set[TensorView]:
    """What reshapes of expanded tensors are computed from."""
    reshaped = (e.tensor_inputs[0] for e in fusion.exprs if isinstance(e, ReshapeOp))
    return upstream([tensor for tensor in reshaped if tensor.has_expanded_axis])


def _separate(readers: Sequence[Expr]) -> list[list[Expr]]:
    """A group for each reader; what adds it up joins the first, whose loops it would not share."""
    sums = [each for each in readers if is_reduction(each)]
    others = [each for each in readers if not is_reduction(each)]
    if not others:
        return [sums]
    return [[others[0], *sums], *([each] for each in others[1:])]


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


def vector_bytes(
    layouts: Layouts, axes: Sequence[IterDomain], without: Collection[TensorView] = ()
) -> int:
    """Bytes of the widest element that is moved in vectors along the last of the axes, which are
    the reference's in memory order; 0 if an input or output can't be, those `without` excepted.

    A tensor that the axis doesn't belong to has the same element for the whole vector, unless a
    reshape makes the one of the other.
    """
    inner = layouts.number(axes[-1]) if axes else None
    if inner is None:
        return 0
    numbers = layouts.space.of(axes)
    unknown = layouts.space.related(frozenset((inner,))) - numbers
    widest = 0
    for read in layouts.reads:
        if read.own.has(inner):
            if not read.own.runs_along(inner):
                return 0
            widest = max(widest, size_in_bytes(read.tensor.dtype))
    for leaf in layouts.leaves:
        if leaf.tensor in without:
            continue
        if not unknown.isdisjoint(leaf.own.axes) or leaf.tensor.has_expanded_axis:
            return 0
        if leaf.own.has(inner):
            if not leaf.own.runs_along(inner):
                return 0
            widest = max(widest, size_in_bytes(leaf.tensor.dtype))
    return widest


def vector_steps(layouts: Layouts, axes: Sequence[IterDomain]) -> tuple[IntExpr, ...]:
    """The numbers that are multiples of a vector if the reads along the last of the axes are
    aligned and no vector is partly filled: bounds and offsets of windows, lengths of rows.
    """
    inner = layouts.number(axes[-1]) if axes else None
    found: list[IntExpr] = []
    for read in layouts.reads:
        if inner is None or not read.own.runs_along(inner):
            continue
        if len(read.own.axes) > 1:
            found.append(read.tensor.domain.allocated[-1].size)
        if isinstance(read.expr, WindowOp):
            roots = read.expr.tensor_outputs[0].domain.root_or_logical
            for axis, window in zip(roots, read.expr.windows, strict=True):
                if window is not None and layouts.number(axis) == inner:
                    found += [window.left, window.offset]
                    found += [] if window.covers(axis.size) else [window.stop]
    return tuple(dict.fromkeys(found))
