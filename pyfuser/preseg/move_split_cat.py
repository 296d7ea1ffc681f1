"""Move split and cat: operations on the parts of a tensor that a cat joins again are done on the
whole tensor.

The parts have to be slices of one tensor side by side, in the order of the cat, and the operations
on each part the same.  The slices and the cat then disappear, or leave one slice.  Runs right
before move_windows, which would compute every part at the size of the whole, and after the passes
that join casts, broadcasts and permutes, because these would make equal operations look different.

A part that other expressions read too stays, because its operations would be computed twice.

Before:
    T1_l_float[iS1{3}] = slice(T0_g_float[iS0{8}], ([0, 3) from 0 by 1,))
    T2_l_float[iS2{5}] = slice(T0_g_float[iS0{8}], ([0, 5) from 3 by 1,))
    T3_l_float[iS3{3}] = exp(T1_l_float[iS1{3}])
    T4_l_float[iS4{5}] = exp(T2_l_float[iS2{5}])
    T5_l_float[iS6{8}] = pad(T3_l_float[iS3{3}], 0.0, ([0, 3) from 0 by 1,))
    T6_g_float[iS9{8}] = pad(T4_l_float[iS4{5}], T5_l_float[iS6{8}], ([3, 8) from -3 by 1,))
After:
    T7_l_float[iS10{8}] = exp(T0_g_float[iS0{8}])
    T6_g_float[iS9{8}] = set(T7_l_float[iS10{8}])
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.exprs import Expr, PermuteOp, PointwiseOp, WindowOp
from ..ir.fusion import Fusion
from ..ir.scalars import ONE, ZERO, IntExpr
from ..ir.vals import Scalar, TensorView, Val
from ..ir.windows import Window
from ..ops.read_builders import sliced
from ..ops.shape_builders import permute
from .cats import Column, parts_of
from .dead_code import dead_code
from .read_moving import Moved, is_movable, recomputed, try_move
from .rewriting import Rewriter, rewrite


def move_split_cat(fusion: Fusion) -> Fusion:
    """Cancels slices and the cat that joins them again, and drops what is no longer read."""
    readers = {t: len(t.uses_list) + (t in fusion.outputs) for t in fusion.tensors}

    def rule(rewriter: Rewriter, expr: Expr) -> None:
        parts = parts_of(expr)
        if parts is None:
            rewriter.emit(expr)
            return
        zipper = _Zipper(rewriter.fusion, readers)
        try_move(rewriter, expr, lambda: zipper.joined(parts.tensors, parts.dim))

    return dead_code(rewrite(fusion, rule))


class _Zipper:
    """The whole tensors of which columns of values are the parts."""

    def __init__(self, fusion: Fusion, readers: dict[TensorView, int]) -> None:
        self.fusion, self.readers = fusion, readers
        self.made: dict[tuple[Column, int], Moved] = {}

    def joined(self, column: Column, dim: int) -> Moved:
        """The tensor that has these parts side by side along `dim`; None if there is none."""
        key = (column, dim)
        if key not in self.made:
            self.made[key] = self._joined(column, dim)
        return self.made[key]

    def _joined(self, column: Column, dim: int) -> Moved:
        tensors = [value for value in column if isinstance(value, TensorView)]
        exprs = [value.expr for value in tensors if value.expr is not None]
        first, lead = column[0], column[0].expr
        if not isinstance(first, TensorView) or len(tensors) != len(column):
            return None
        if all(value is first for value in column):
            return first if first.axes[dim].is_broadcast and first.axes[dim].size is ONE else None
        if lead is None or len(exprs) != len(column):
            return None
        slices = [expr for expr in exprs if isinstance(expr, WindowOp)]
        if len(slices) == len(exprs):
            return self._unsliced(slices, dim)
        if any(self.readers.get(tensor, 0) > 1 for tensor in tensors):
            return None
        kinds = {(type(e), repr(e.attributes()), e.output.dtype) for e in exprs}
        if len(kinds) > 1 or any(len(e.tensor_outputs) > 1 for e in exprs):
            return None
        operands = [tuple(expr.inputs[i] for expr in exprs) for i in range(len(lead.inputs))]
        if isinstance(lead, PermuteOp):
            whole = self.joined(operands[0], lead.dims[dim])
            return None if whole is None else permute(self.fusion, whole, lead.dims)
        if isinstance(lead, PointwiseOp) and is_movable(lead):
            sizes = [axis.size for axis in first.axes]
            sizes[dim] = sum((tensor.axes[dim].size for tensor in tensors), start=ZERO)
            return self._recomputed(lead, operands, sizes, dim)
        return None

    def _recomputed(
        self, lead: PointwiseOp, operands: Sequence[Column], sizes: Sequence[IntExpr], dim: int
    ) -> Moved:
        """The operation of the first part, on whole operands."""
        columns: dict[Val, Column] = {}
        for operand in operands:
            if columns.setdefault(operand[0], operand) != operand:
                return None
            if isinstance(operand[0], Scalar) and not all(_is_same(operand[0], v) for v in operand):
                return None
        return recomputed(self.fusion, lead, sizes, lambda t: self.joined(columns[t], dim))

    def _unsliced(self, slices: Sequence[WindowOp], dim: int) -> Moved:
        """The source of slices side by side, or the part of it that they show."""
        source = slices[0].source
        start = end = None
        for each in slices:
            window = each.windows[dim]
            others = [w for d, w in enumerate(each.windows) if d != dim]
            is_plain = window is not None and window.step is ONE and window.every is ONE
            if each.source is not source or len(each.inputs) != 1 or any(others) or not is_plain:
                return None
            assert window is not None
            if end is not None and window.offset is not end:
                return None
            start = window.offset if start is None else start
            end = window.offset + window.stop
        if source is None or start is None or end is None or source.axes[dim].is_broadcast:
            return None
        if start is ZERO and end is source.axes[dim].size:
            return source
        shown = Window(ZERO, end - start, start, ONE)
        return sliced(self.fusion, source, tuple(shown if d == dim else None
                                                 for d in range(source.ndim)))  # fmt: skip


def _is_same(a: Val, b: Val) -> bool:
    if a is b:
        return True
    if not isinstance(a, Scalar) or not isinstance(b, Scalar) or a.dtype is not b.dtype:
        return False
    return a.constant is not None and repr(a.constant) == repr(b.constant)
