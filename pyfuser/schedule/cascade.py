"""Cascade summation: cuts long chains of additions into blocks whose sums are added up.

Adding n numbers one after the other rounds n times, and always to the same side where the numbers
are much smaller than the sum: the error grows with n.  A block's sum is rounded once per addition
in the block, and so is the sum of the blocks' sums.  The schedulers of reductions split the loops
that walk along a chain by `Levels` (target/cascade.py) and rfactor the loops of a block into
partial results of their own:

    [row][serial][unroll][lanes]  ->  [row][blocks][block][unroll][lanes]
    partial sums of a block, zero at its start, are added to those of the row at its end

Eager's CPU sums are cascades too, and its batch norm adds in float64.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..dtypes import is_floating
from ..ir.domains import IterDomain, Split
from ..ir.exprs import ReductionOp
from ..ir.scalars import Integer, IntExpr, product
from ..ir.schedule import ScheduledFusion
from ..ir.vals import TensorView
from ..ops.table import REDUCTIONS
from ..target.cascade import BLOCK, LONGEST_CHAIN, Levels
from .common import Layouts, first_of_range
from .rewrite import rfactor


def chain_extents(reduced: Sequence[IterDomain], layouts: Layouts) -> tuple[IntExpr, ...]:
    """The sizes of the loops along reduced axes, given in memory order, where the axes that may be
    merged with the innermost are merged, as `merge_adjacent` leaves them.
    """
    inner = first_of_range(reduced, len(reduced) - 1, layouts)
    innermost = product(axis.extent for axis in reduced[inner:])
    return (*(axis.extent for axis in reduced[:inner]), innermost)


def split_chain(
    scheduled: ScheduledFusion, reference: TensorView, start: int, stop: int, cuts: Levels
) -> list[int]:
    """Splits the loops [start, stop) of the chain; returns the number of loops of each level,
    innermost first; the last entry counts the loops left outside all blocks.
    """
    own = scheduled[reference]
    counts = []
    end = stop
    for axis, block in cuts:
        if block:
            own.split(start + axis, block)
            end += 1
        counts.append(end - (start + axis + 1))
        end = start + axis + 1
    return [*counts, end - start]


def rfactor_blocks(
    scheduled: ScheduledFusion, tensor: TensorView, start: int, counts: Sequence[int]
) -> int:
    """Makes partial results for the blocks of a chain of loops that begins at `start`.

    `counts` has the number of loops of each level.  Returns how many loops are left to the tensor.

    Only sums that round are cut.
    """
    left = sum(counts)
    if not _rounds(tensor):
        return left
    for count in counts[:-1]:
        rfactor(scheduled, tensor, list(range(start + left - count, start + left)))
        left -= count
    return left


def split_each(scheduled: ScheduledFusion, reference: TensorView, start: int, stop: int) -> int:
    """Splits each of the loops [start, stop) that may be a long chain of its own into blocks.

    Returns how many were split.
    """
    own = scheduled[reference]
    count = 0
    for position in reversed(range(start, stop)):
        extent = own.loop[position].extent
        if not extent.is_constant or extent.value > LONGEST_CHAIN:
            own.split(position, BLOCK)
            count += 1
    return count


def rfactor_each(scheduled: ScheduledFusion, tensor: TensorView) -> None:
    """Makes partial results for the blocks along what a tensor reduces (see `split_each`)."""
    if not _rounds(tensor):
        return
    for position, axis in reversed(list(enumerate(scheduled[tensor].loop))):
        if axis.is_reduction and _is_along_block(axis):
            rfactor(scheduled, tensor, [position])


def _is_along_block(axis: IterDomain) -> bool:
    split = axis.definition
    is_inner = isinstance(split, Split) and split.inner_id is axis
    return is_inner and axis.extent is Integer.of(BLOCK)


def _rounds(tensor: TensorView) -> bool:
    expr = tensor.expr
    is_rounded = isinstance(expr, ReductionOp) and REDUCTIONS[expr.op].rounds
    return is_rounded and is_floating(tensor.dtype)
