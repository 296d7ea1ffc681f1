"""Repeated reads: a small tensor that a reduction of few elements reads again and again is copied
into the order in which it does.

Distances of all pairs, `((a[:, None] - b[None]) ** 2).sum(-1)`, add k elements for each i and j.
Along k, a vector has few elements, and its lanes are combined for each result; along j, the
elements of b are k apart.  So b, which is read for each i, is copied into an order in which they
are next to each other, by a small kernel that transposes in tiles; the lanes are along j then.

Before:  T2 [i, j, k] = a [i, 1, k] - b [1, j, k];               sum over k
After:   T2 [i, j, k] = a [i, 1, k] - segment_set(b) [1, j, k],  stored as k, j

Runs on a fusion whose inputs have their layouts, before it is cut.  Hardware threads read elements
that are apart from each other at once, so nothing is copied for them.

Measured on a Granite Rapids, two threads, float32: distances of 512 x 512 points of 3 coordinates
are 3.3 times as fast, of 1024 x 1024 vectors of 16 elements 7 times.  On a Zen 5, sums of absolute
differences of 512 x 512 vectors of 48, 64 and 100 elements 2.7, 1.6 and 2.2 times, of 256 elements
0.93 times; with an exponential of each result, which is computed in lanes then, 9, 4.2, 3.5 and 1.3
times.  On a Zen 4, 32 times 100 x 20 distances of 4 coordinates 3.5 times, 100 x 9 of them 2.3
times, 64 times 64 x 7 of 8 coordinates 1.5 to 2 times.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations

from ..analysis.costs import is_cut
from ..analysis.iteration_space import IterationSpace
from ..analysis.mapping import producer_to_consumer
from ..ir.domains import TensorDomain
from ..ir.exprs import BroadcastOp, ExpandOp, Expr, PermuteOp, PointwiseOp, SqueezeOp
from ..ir.fusion import Fusion, broadcast_contiguity
from ..ir.vals import TensorView, Val
from ..ops.pointwise import copy_axis
from ..preseg.rewriting import Rewriter, rewrite
from ..schedule.size_info import SizeInfo

# A reduction of at most so many elements has its lanes along an axis that it keeps.
FEW_PAIRED = 256
# What it reads at least so many times may be copied, if that axis is longer than this.
_FEW = 4
# Below this many elements that are reduced, a second kernel costs more than what it saves.
_LEAST_ELEMENTS = 1 << 16

_Read = tuple[Expr, TensorView]  # an expression and a tensor that it reads


@lru_cache(maxsize=256)
def paired_sizes(fusion: Fusion) -> frozenset[str]:
    """The names of sizes along which pairs are compared: each of two tensors has what is reduced,
    and an axis that the other doesn't have.  Whether they are small decides (`FEW_PAIRED`).
    """
    sums = [expr for expr in fusion.live_exprs() if expr.accumulates]
    if not sums:
        return frozenset()
    space = IterationSpace.of_fusion(fusion)
    return frozenset(name for expr in sums for name in _paired_sizes(expr, space))


def _paired_sizes(reduction: Expr, space: IterationSpace) -> Iterator[str]:
    axes = reduction.tensor_outputs[0].domain.root_or_logical
    reduced = space.of(axis for axis in axes if axis.is_reduction)
    reads = [(tensor, _places((expr, tensor), space)) for expr, tensor in _leaf_reads(reduction)]
    pairs = [each.keys() - reduced for _, each in reads if reduced and reduced <= each.keys()]
    if any(a - b and b - a for a, b in combinations(pairs, 2)):
        names = {symbol.name for axis in axes if axis.is_reduction for symbol in axis.size.symbols}
        for tensor, places in reads:
            own = (tensor.axes[places[number]] for number in reduced & places.keys())
            names |= {symbol.name for axis in own for symbol in axis.size.symbols}
        yield from names


def copy_repeated_reads(fusion: Fusion, sizes: SizeInfo) -> None:
    """Makes the reductions of a fusion read copies of small tensors whose order isn't theirs."""
    if sizes.target.threads_are_hardware:
        return
    few = [expr for expr in fusion.live_exprs() if _reduces_few(expr, sizes)]
    if not few:
        return
    space = IterationSpace.of_fusion(fusion)
    copied: dict[_Read, int] = {}
    for expr in few:
        copied |= _reads_to_copy(expr, space, sizes)
    if copied:
        _copy(fusion, copied)


def _reduces_few(expr: Expr, sizes: SizeInfo) -> bool:
    """True for a reduction of few elements to each of many results of at least two axes."""
    if not expr.accumulates:
        return False
    axes = [axis for axis in expr.tensor_outputs[0].domain.root_or_logical if not axis.is_broadcast]
    reduced = sizes.elements(axis.extent for axis in axes if axis.is_reduction)
    total = sizes.elements(axis.extent for axis in axes)
    if reduced is None or total is None or reduced > FEW_PAIRED or total < _LEAST_ELEMENTS:
        return False
    return sum(not axis.is_reduction for axis in axes) >= 2


def _reads_to_copy(reduction: Expr, space: IterationSpace, sizes: SizeInfo) -> dict[_Read, int]:
    """The reads of tensors that a reduction needs in another order, with the position of the axis
    that is innermost there; none if one of them is too large to copy.
    """
    result = reduction.tensor_outputs[0]
    kept = [axis for axis in result.axes if not axis.is_broadcast]
    lanes = space.number(kept[-1])
    extents = space.extents
    along = sizes.elements([extents[lanes]])
    if along is None or along <= _FEW:
        return {}
    all_axes = space.of(result.domain.root_or_logical)
    found: dict[_Read, int] = {}
    for read in _leaf_reads(reduction):
        places = _places(read, space)
        if lanes not in places or [*places][-1] == lanes:
            continue
        times = sizes.elements(extents[n] for n in all_axes.difference(places))
        if times is None or times < _FEW:
            return {}
        found[read] = places[lanes]
    return found


def _leaf_reads(reduction: Expr) -> Iterator[_Read]:
    """Where a reduction's operand is read, through operations on elements and shapes, from tensors
    that are made in another way.
    """
    waiting, seen = [reduction], {reduction}
    while waiting:
        expr = waiting.pop()
        for tensor in dict.fromkeys(expr.aligned_inputs):
            maker = tensor.expr
            if maker is None or not _is_followed(maker):
                yield expr, tensor
            elif maker not in seen:
                seen.add(maker)
                waiting.append(maker)


def _is_followed(expr: Expr) -> bool:
    """True for operations that read elements in the order of their results."""
    if isinstance(expr, PointwiseOp):
        return not is_cut(expr)
    return isinstance(expr, BroadcastOp | ExpandOp | PermuteOp | SqueezeOp)


def _places(read: _Read, space: IterationSpace) -> dict[int, int]:
    """The positions of the axes of a tensor that is read, by the numbers of their loops, outermost
    in memory first.
    """
    expr, tensor = read
    partners = producer_to_consumer(expr, tensor, expr.tensor_outputs[0])
    return {
        space.number(partners[axis]): tensor.axes.index(axis)
        for axis in tensor.domain.allocated
        if not axis.is_broadcast and axis in partners
    }


def _copy(fusion: Fusion, copied: dict[_Read, int]) -> None:
    """Makes reads read a copy with the given axis innermost; equal reads read the same."""
    made: dict[tuple[TensorView, int], TensorView] = {}

    def rule(rewriter: Rewriter, expr: Expr) -> None:
        operands: dict[Val, Val] = {}
        for tensor in dict.fromkeys(expr.tensor_inputs):
            place = copied.get((expr, tensor))
            if place is None:
                continue
            if (tensor, place) not in made:
                made[tensor, place] = _stored(rewriter, tensor, place)
            operands[tensor] = made[tensor, place]
        expr.inputs = tuple(operands.get(value, value) for value in expr.inputs)
        rewriter.emit(expr)

    rewrite(fusion, rule)


def _stored(rewriter: Rewriter, tensor: TensorView, innermost: int) -> TensorView:
    """A copy of a tensor in memory, with one axis innermost and the others in its order."""
    fusion = rewriter.fusion
    axes = [copy_axis(fusion, axis) for axis in tensor.axes]
    order = [axes[tensor.axes.index(axis)] for axis in tensor.domain.allocated]
    order.remove(axes[innermost])
    order.append(axes[innermost])
    domain = TensorDomain(axes, broadcast_contiguity(order), allocation=order)
    copy = fusion.new_tensor(domain, tensor.dtype)
    rewriter.emit(PointwiseOp((tensor,), (copy,), "segment_set"))
    return copy
