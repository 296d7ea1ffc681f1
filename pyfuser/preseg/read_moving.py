"""The common part of the passes that move reads: axes and shapes of recomputed tensors.

A read of a computation becomes the same computation over reads of its operands.  If an operand
broadcasts, the new values broadcast too, and only the last gets the shape of the read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..analysis.costs import is_copy, is_cut
from ..ir.domains import IterDomain, IterType
from ..ir.exprs import BroadcastOp, ExpandOp, Expr, IndexedWrite, PointwiseOp, SqueezeOp
from ..ir.fusion import Fusion
from ..ir.scalars import ONE, IntExpr
from ..ir.vals import TensorView, Val
from ..ops.pointwise import copy_axis, new_tensor
from .rewriting import Rewriter

Moved = TensorView | None


def is_movable(expr: Expr) -> bool:
    """True for pointwise operations on elements; a segment_set keeps its place."""
    return isinstance(expr, PointwiseOp) and not is_cut(expr)


def joined_axes(
    fusion: Fusion, operands: Sequence[TensorView], sizes: Sequence[IntExpr]
) -> list[IterDomain]:
    """Axes of these sizes, broadcast where all operands are."""
    columns = zip(*(operand.axes for operand in operands), strict=True)
    return [
        fusion.ids.broadcast()
        if all(axis.is_broadcast for axis in column)
        else fusion.ids.new(size)
        for size, column in zip(sizes, columns, strict=True)
    ]


def recomputed(
    fusion: Fusion,
    expr: PointwiseOp,
    sizes: Sequence[IntExpr],
    move: Callable[[TensorView], Moved],
) -> Moved:
    """A pointwise operation over moved operands; None if one can't be moved."""
    operands: list[Val] = []
    for value in expr.inputs:
        moved = move(value) if isinstance(value, TensorView) else value
        if moved is None:
            return None
        operands.append(moved)
    tensors = [v for v in operands if isinstance(v, TensorView)]
    if is_copy(expr):
        return tensors[0]
    output = new_tensor(fusion, joined_axes(fusion, tensors, sizes), expr.output.dtype)
    fusion.add_expr(expr.rebuild(operands, (output,)))
    return output


def unexpanded(fusion: Fusion, tensor: TensorView, flags: Sequence[bool]) -> TensorView:
    """The tensor with one element along the flagged axes, all of which broadcast.

    An expanded axis has the size that its readers saw; a read may have another size.
    """
    if not _is_expanded(tensor, flags):
        return tensor
    while isinstance(tensor.expr, ExpandOp):
        tensor = tensor.expr.tensor_inputs[0]
    if not _is_expanded(tensor, flags):
        return tensor
    marked = list(zip(tensor.axes, flags, strict=True))
    flags = tuple(flags)
    kept = [copy_axis(fusion, axis) for axis, flag in marked if not flag]
    squeezed = new_tensor(fusion, kept, tensor.dtype)
    fusion.add_expr(SqueezeOp((tensor,), (squeezed,), flags))
    axes = [fusion.ids.broadcast() if flag else copy_axis(fusion, axis) for axis, flag in marked]
    output = new_tensor(fusion, axes, tensor.dtype)
    fusion.add_expr(BroadcastOp((squeezed,), (output,), flags))
    return output


def _is_expanded(tensor: TensorView, flags: Sequence[bool]) -> bool:
    pairs = zip(tensor.axes, flags, strict=True)
    return any(flag and axis.is_expanded for axis, flag in pairs)


def shaped(fusion: Fusion, made: TensorView, wanted: TensorView) -> TensorView:
    """The tensor, expanded to the sizes of the read where it broadcasts."""
    pairs = list(zip(made.axes, wanted.axes, strict=True))
    if all(
        have.is_broadcast == want.is_broadcast and have.size is want.size for have, want in pairs
    ):
        return made
    axes = [
        fusion.ids.new(ONE, IterType.BROADCAST, want.size)
        if have.is_broadcast and want.size is not ONE
        else copy_axis(fusion, have)
        for have, want in pairs
    ]
    output = new_tensor(fusion, axes, made.dtype)
    fusion.add_expr(ExpandOp((made,), (output,)))
    return output


def try_move(rewriter: Rewriter, expr: Expr, move: Callable[[], Moved]) -> Moved:
    """Replaces a read by the result of `move`; keeps the read if there is none."""
    fusion = rewriter.fusion
    start = len(fusion.exprs)
    made = move()
    if made is not None:
        made = shaped(fusion, made, expr.tensor_outputs[0])
        is_written = any(isinstance(reader, IndexedWrite) for reader in expr.output.uses_list)
        if is_written and made.has_expanded_axis:  # a write takes its values element by element
            made = None
    new = fusion.exprs[start:]
    del fusion.exprs[start:]
    if made is None:
        rewriter.emit(expr)
        return None
    for one in new:
        rewriter.emit(one)
    rewriter.replace(expr.output, made)
    return made
