"""Passes over a row that read it as one range of memory, though other passes can't.

The weights of a group norm differ from channel to channel, so the pass that computes its result
walks along the channels and, in each, along the image.  Its sums read the input alone, in which a
group is one range:

    for the result:  [row][channel][range: image]
    for the sums:    [row][range: channel * image]

A pass qualifies if what it computes is read by no other pass.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.disjoint_sets import DisjointSets
from ..ir.domains import IterDomain
from ..ir.fusion import Fusion
from ..ir.vals import TensorView
from .common import Layouts, first_of_range, is_reduction
from .reduced_axes import split_axes


def whole_ranges(
    fusion: Fusion, reference: TensorView, layouts: Layouts
) -> list[tuple[TensorView, list[TensorView]]]:
    """(a reduction, all tensors of its pass) for the passes that have one range instead of several.

    `reference` is any of the reductions, whose axes all others have.
    """
    axes, _ = split_axes(reference, layouts)
    reduced = [axis for axis in axes if axis.is_reduction]
    if first_of_range(reduced, len(reduced) - 1, layouts) <= 0:
        return []
    found = []
    for tensors in _passes(fusion, reduced, layouts):
        sums = [tensor for tensor in tensors if is_reduction(tensor.expr)]
        if not sums or any(tensor.domain.root is not None for tensor in tensors):
            continue
        if len(sums[0].axes) != len(reference.axes):
            continue  # without an axis of size 1 that the loops of the others have
        in_pass = [expr for expr in fusion.exprs if not set(tensors).isdisjoint(expr.outputs)]
        own = corresponding(sums[0], reduced, layouts)
        if first_of_range(own, len(own) - 1, layouts.among(fusion, in_pass)) == 0:
            found.append((sums[0], tensors))
    return found


def corresponding(
    tensor: TensorView, axes: Sequence[IterDomain], layouts: Layouts
) -> list[IterDomain]:
    """A tensor's axes that correspond to another's, in their order."""
    own = {layouts.number(axis): axis for axis in tensor.domain.logical if not axis.is_broadcast}
    return [own[layouts.number(axis)] for axis in axes if not axis.is_broadcast]


def _passes(
    fusion: Fusion, reduced: Sequence[IterDomain], layouts: Layouts
) -> list[list[TensorView]]:
    """The tensors with axes of the row, by passes: in different ones, none is read by another.

    Only the result of a reduction, of which there is one for the row, is read by later passes.
    """
    space = layouts.space
    row = space.related(space.of(reduced))
    passes: DisjointSets[TensorView] = DisjointSets()
    tensors: list[TensorView] = []

    def in_row(tensor: TensorView) -> bool:
        return tensor.expr is not None and not row.isdisjoint(space.axes(tensor))

    for expr in fusion.exprs:
        computed = [t for t in expr.tensor_outputs if is_reduction(expr) or in_row(t)]
        read = [t for t in expr.tensor_inputs if in_row(t) and not is_reduction(t.expr)]
        tensors += computed
        for tensor in (*computed[1:], *read):
            if computed:
                passes.join(computed[0], tensor)
    found: dict[TensorView, list[TensorView]] = {}
    for tensor in tensors:
        found.setdefault(passes.find(tensor), []).append(tensor)
    return list(found.values())
