"""Move gathers: an index reads the inputs, and the computation moves after it, to what it read.

Runs after move_windows, and for the same reason: a gather has to read memory.  If an operand
broadcasts along the indexed axis, it needs no gather, so in a log-softmax only the input is
gathered.  If the gather may have more elements than its source, only few operations are moved after
it, and no expensive ones.

Before:
    T2_l_float[iS2{i0}] = neg(T0_g_float[iS0{i0}])
    T3_g_float[iS3{i1}] = gather(T2_l_float[iS2{i0}], T1_g_int64_t[iS1{i1}], (None,), (0,))
After:
    T2_l_float[iS2{i0}] = neg(T0_g_float[iS0{i0}])
    T4_l_float[iS4{i1}] = gather(T0_g_float[iS0{i0}], T1_g_int64_t[iS1{i1}], (None,), (0,))
    T5_l_float[iS5{i1}] = neg(T4_l_float[iS4{i1}])
    T3_g_float[iS3{i1}] = set(T5_l_float[iS5{i1}])
"""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.costs import is_copy, recomputation_cost
from ..ir.bounds import proves_at_most
from ..ir.domains import IterDomain
from ..ir.exprs import (
    BroadcastOp,
    ExpandOp,
    Expr,
    GatherOp,
    PermuteOp,
    PointwiseOp,
    SqueezeOp,
)
from ..ir.fusion import Fusion
from ..ir.scalars import ONE, product
from ..ir.vals import TensorView
from ..ops.pointwise import copy_axis, new_tensor
from .read_moving import Moved, is_movable, recomputed, try_move, unexpanded
from .rewriting import Rewriter, rewrite

# After a gather that may have more elements than its source, this cost per element is allowed.
_MOST_RECOMPUTED = 3

# For each axis: the axis of the output that it becomes, or None for the indexed axis.
Places = tuple[int | None, ...]


def move_gathers(fusion: Fusion) -> Fusion:
    """Moves every gather whose source is computed from inputs element by element."""
    return rewrite(fusion, _rule)


def _rule(rewriter: Rewriter, expr: Expr) -> None:
    if not isinstance(expr, GatherOp) or expr.source is None or expr.source.expr is None:
        rewriter.emit(expr)
        return
    source = expr.source
    mover = _Mover(rewriter.fusion, expr)
    try_move(rewriter, expr, lambda: mover.moved(source))


class _Mover:
    """One gather, moved towards the inputs."""

    def __init__(self, fusion: Fusion, expr: GatherOp) -> None:
        self.fusion, self.expr, self.output = fusion, expr, expr.tensor_outputs[0]
        self.index = expr.tensor_inputs[1]
        self.is_less, self.work = _is_less(expr, self.index), 0
        self.made: dict[tuple[TensorView, Places], Moved] = {}

    def moved(self, source: TensorView) -> Moved:
        """The new source of the gather; None if the index would then never be read.

        It still has to be checked.
        """
        start = len(self.fusion.exprs)
        made = self.move(source, self.expr.source_axes)
        is_checked = any(isinstance(new, GatherOp) for new in self.fusion.exprs[start:])
        return made if is_checked else None

    def move(self, tensor: TensorView, places: Places) -> Moved:
        """The tensor gathered in place of the source; None if that can't be computed."""
        key = (tensor, places)
        if key not in self.made:
            self.made[key] = self._moved(tensor, places)
        return self.made[key]

    def _moved(self, tensor: TensorView, places: Places) -> Moved:
        expr = tensor.expr
        indexed = [a for a, p in zip(tensor.axes, places, strict=True) if p is None]
        if all(axis.is_broadcast for axis in indexed):
            return self._spread(tensor, places)
        match expr:
            case None:
                return self._leaf(tensor, places)
            case PointwiseOp() if is_movable(expr) and self._may_compute(expr):
                sizes = [axis.size for axis in self.output.axes]
                return recomputed(self.fusion, expr, sizes, lambda t: self.move(t, places))
            case ExpandOp(inputs=(TensorView() as source,)):
                return self.move(source, places)
            case BroadcastOp(inputs=(TensorView() as source,), flags=flags):
                return self.move(
                    source, tuple(p for p, new in zip(places, flags, strict=True) if not new)
                )
            case PermuteOp(inputs=(TensorView() as source,), dims=dims) if (
                tensor.domain.root is None
            ):
                inner = {dim: places[position] for position, dim in enumerate(dims)}
                return self.move(source, tuple(inner[d] for d in range(len(dims))))
            case _:
                return None

    def _may_compute(self, expr: PointwiseOp) -> bool:
        """True if applying an operation to each gathered element isn't much more work."""
        if self.is_less:
            return True
        cost = recomputation_cost(expr)
        if cost is None or (self.work + cost > _MOST_RECOMPUTED and not is_copy(expr)):
            return False
        self.work += 0 if is_copy(expr) else cost
        return True

    def _leaf(self, tensor: TensorView, places: Places) -> TensorView:
        """The gather itself, of an input; an axis that neither operand has is added after it."""
        along = dict(zip(self.expr.index_axes, self.index.axes, strict=True))
        beside = {p: a for a, p in zip(tensor.axes, places, strict=True) if p is not None}
        axes: list[IterDomain] = []
        kept: dict[int, int] = {}
        for position, wanted in enumerate(self.output.axes):
            own = [a for a in (along.get(position), beside.get(position)) if a is not None]
            if not own:
                continue
            kept[position] = len(kept)
            is_broadcast = wanted.size is ONE or all(axis.is_broadcast for axis in own)
            axes.append(
                self.fusion.ids.broadcast() if is_broadcast else self.fusion.ids.new(wanted.size)
            )
        output = new_tensor(self.fusion, axes, tensor.dtype)
        source_axes = tuple(None if place is None else kept[place] for place in places)
        index_axes = tuple(kept[position] for position in self.expr.index_axes)
        attributes = (source_axes, index_axes, self.expr.op)
        self.fusion.add_expr(GatherOp((tensor, self.index), (output,), *attributes))
        if len(kept) == self.output.ndim:
            return output
        flags = tuple(position not in kept for position in range(self.output.ndim))
        rest = iter(axes)
        all_axes = [self.fusion.ids.broadcast() if new else next(rest) for new in flags]
        return self._shape(BroadcastOp, output, flags, all_axes)

    def _spread(self, tensor: TensorView, places: Places) -> Moved:
        """A tensor that broadcasts along the indexed axis, with the axes of the output.

        None if the gather reads only the first elements along another axis.
        """
        for axis, place in zip(tensor.axes, places, strict=True):
            wanted = None if place is None else self.output.axes[place].size
            if wanted is not None and not axis.is_broadcast and axis.size is not wanted:
                return None
        tensor = unexpanded(self.fusion, tensor, [axis.is_broadcast for axis in tensor.axes])
        if self.expr.is_aligned and places == self.expr.source_axes:
            return tensor
        if None in places:
            flags = tuple(place is None for place in places)
            tensor = self._shape(SqueezeOp, tensor, flags, _kept(tensor.axes, flags))
            places = tuple(place for place in places if place is not None)
        order = sorted(range(len(places)), key=lambda d: places[d] or 0)
        if order != list(range(len(places))):
            tensor = self._shape(PermuteOp, tensor, tuple(order), [tensor.axes[d] for d in order])
        flags = tuple(position not in places for position in range(self.output.ndim))
        rest = iter(tensor.axes)
        axes = [self.fusion.ids.broadcast() if new else next(rest) for new in flags]
        return self._shape(BroadcastOp, tensor, flags, axes) if any(flags) else tensor

    def _shape(
        self,
        kind: type[SqueezeOp] | type[PermuteOp] | type[BroadcastOp],
        tensor: TensorView,
        attribute: tuple[int, ...],
        axes: Sequence[IterDomain],
    ) -> TensorView:
        copies = [copy_axis(self.fusion, axis) for axis in axes]
        output = new_tensor(self.fusion, copies, tensor.dtype)
        self.fusion.add_expr(kind((tensor,), (output,), attribute))  # type: ignore[arg-type]
        return output


def _kept(axes: Sequence[IterDomain], flags: Sequence[bool]) -> list[IterDomain]:
    return [axis for axis, gone in zip(axes, flags, strict=True) if not gone]


def _is_less(expr: GatherOp, index: TensorView) -> bool:
    """True if a gather has provably no more elements than its source; one element along an axis is
    not more, since along an empty axis no index is valid.
    """
    source, output = expr.source, expr.tensor_outputs[0]
    assert source is not None
    if expr.is_aligned:
        pairs = zip(output.axes, source.axes, strict=True)
        return all(a.size is ONE or proves_at_most(a.size, b.size) for a, b in pairs)
    return proves_at_most(product(axis.size for axis in index.axes), source.axes[expr.dim].size)
