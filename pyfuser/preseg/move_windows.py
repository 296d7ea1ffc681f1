"""Move windows: slices and pads are taken of the inputs, and the computation moves after them.

A window has to read memory, so a window on a computed tensor would cut the fusion in two.  Runs
after the passes that join casts, broadcasts and permutes, because fewer of these are then left to
move through, and before common_subexpressions, for which equal windows of one input are one value.

A pad also computes values around the source, which are then replaced by the fill.  If other
expressions read the source too, only a limited cost is recomputed: windows of windows of sums, as
in a scan, would otherwise grow with every level.

Before:
    (i0 // 2) = div(i0, 2)
    T1_l_float[iS1{i0}] = neg(T0_g_float[iS0{i0}])
    T2_g_float[iS2{(i0 // 2)}] = slice(T1_l_float[iS1{i0}], ([0, (i0 // 2)) from 0 by 1,))
After:
    (i0 // 2) = div(i0, 2)
    T1_l_float[iS1{i0}] = neg(T0_g_float[iS0{i0}])
    T3_l_float[iS4{(i0 // 2)}] = slice(T0_g_float[iS0{i0}], ([0, (i0 // 2)) from 0 by 1,))
    T4_l_float[iS5{(i0 // 2)}] = neg(T3_l_float[iS4{(i0 // 2)}])
    T2_g_float[iS2{(i0 // 2)}] = set(T4_l_float[iS5{(i0 // 2)}])
"""

from __future__ import annotations

from ..analysis.costs import is_expensive
from ..dtypes import DataType
from ..ir.bounds import larger, smaller
from ..ir.domains import IterDomain
from ..ir.exprs import (
    BroadcastOp,
    ExpandOp,
    Expr,
    FullOp,
    PermuteOp,
    PointwiseOp,
    SqueezeOp,
    WindowOp,
)
from ..ir.fusion import Fusion
from ..ir.scalars import ONE, ZERO, IntExpr
from ..ir.vals import Scalar, TensorView, Val
from ..ir.windows import Window
from ..ops.checking import may_refuse
from ..ops.pointwise import cast_tensor, copy_axis, new_tensor, pointwise
from ..ops.read_builders import Windows, window
from ..ops.shape_builders import new_axis
from .read_moving import Moved, is_movable, recomputed, try_move, unexpanded
from .rewriting import Rewriter, rewrite

# A window with the size of its output axis; None for an axis that stays unchanged.
Sized = tuple[Window, IntExpr] | None
Places = tuple[Sized, ...]

# A source with other readers is recomputed for a window of it.  Up to this cost per element, this
# is cheaper than storing it: in cheap operations, with an expensive one counted as several.
_MOST_RECOMPUTED = 8
_EXPENSIVE = 4

# Operations that move no data, and those of them that leave a fill around the source unchanged.
_VIEWS = (BroadcastOp, ExpandOp, PermuteOp, SqueezeOp)
_MOVES = (PermuteOp, SqueezeOp)


def move_windows(fusion: Fusion) -> Fusion:
    """Moves every window whose source is computed from inputs element by element."""
    readers = {t: len(t.uses_list) + (t in fusion.outputs) for t in fusion.tensors}

    def rule(rewriter: Rewriter, expr: Expr) -> None:
        if not isinstance(expr, WindowOp) or expr.source is None or expr.source.expr is None:
            rewriter.emit(expr)
            return
        made = try_move(rewriter, expr, lambda: _moved(rewriter.fusion, readers, expr))
        if made is not None:
            readers[made] = readers[expr.tensor_outputs[0]]

    return rewrite(fusion, rule)


def _moved(fusion: Fusion, readers: dict[TensorView, int], expr: WindowOp) -> Moved:
    """The result of a window, read from inputs, or from the tensor that its source is a view of.

    Otherwise a view of a tensor computed elsewhere would be stored for the window, beside that
    tensor.
    """
    fill = expr.inputs[1] if len(expr.inputs) == 2 else None
    start = len(fusion.exprs)
    made = _Mover(fusion, readers).read(expr, fill)
    source = expr.source
    assert source is not None
    if made is not None or isinstance(fill, TensorView) or source in fusion.outputs:
        return made
    views = _VIEWS if fill is None else _MOVES
    if not isinstance(source.expr, views) or source.domain.root is not None:
        return None
    del fusion.exprs[start:]
    return _Mover(fusion, readers, only_through=views).read(expr, fill)


class _Mover:
    """The windows of one expression, moved towards the inputs.

    With `only_through`, the windows move only through these operations, and stop at others.
    """

    def __init__(
        self,
        fusion: Fusion,
        readers: dict[TensorView, int],
        only_through: tuple[type[Expr], ...] = (),
    ) -> None:
        self.fusion, self.readers, self.is_pad = fusion, readers, False
        self.only_through = only_through
        self.fill: Val | None = None
        self.is_kept = False  # everything outside the windows is the fill, and no `where` follows
        self.made: dict[tuple[TensorView, Places], Moved] = {}
        self.is_shared, self.is_broadcast, self.work = False, False, 0

    def read(self, expr: WindowOp, fill: Val | None) -> Moved:
        """The values that the expression reads, with its fill around them."""
        source = expr.source
        assert source is not None
        pairs = zip(expr.windows, expr.tensor_outputs[0].axes, strict=True)
        places: Places = tuple(None if w is None else (w, axis.size) for w, axis in pairs)
        if fill is None or self.only_through:
            self.fill, self.is_kept = fill, fill is not None
            return self.move(source, places)
        inner = source.expr
        if isinstance(inner, WindowOp) and len(inner.inputs) == 1 and _can_join(inner, places):
            joined = joined_places(inner, source, places)
            axes = [copy_axis(self.fusion, axis) for axis in expr.tensor_outputs[0].axes]
            return window(self.fusion, inner.inputs[0], _windows(joined), axes, fill)
        self.is_pad = True
        self.is_kept = isinstance(fill, Scalar) and _only_moves(source, _is_zero(fill))
        self.fill = fill if self.is_kept else constant_like(self.fusion, source.dtype, 0)
        made = self.move(source, places)
        if made is None or self.is_kept or _is_covered(expr):
            return made
        chosen = pointwise(self.fusion, "where", self.mask(places), made, fill)
        assert isinstance(chosen, TensorView)
        return (
            chosen if chosen.dtype is made.dtype else cast_tensor(self.fusion, chosen, made.dtype)
        )

    def mask(self, places: Places) -> TensorView:
        """True inside the windows; broadcast along axes without one."""
        flags = [constant_like(self.fusion, DataType.Bool, flag) for flag in (True, False)]
        axes = [
            self.fusion.ids.broadcast() if p is None else new_axis(self.fusion, p[1])
            for p in places
        ]
        return window(self.fusion, flags[0], _windows(places), axes, flags[1])

    def move(self, tensor: TensorView, places: Places) -> Moved:
        """The tensor inside the windows, any values around them; None if it can't be computed.

        Along a broadcast axis all positions have its one element, unless the fill is around that.
        """
        key = (tensor, places)
        if key not in self.made:
            free = [axis.is_broadcast and not self.is_kept for axis in tensor.axes]
            inner = tuple(None if f else p for f, p in zip(free, places, strict=True))
            moved = self._moved(tensor, inner) if any(inner) else tensor
            if moved is not None:
                flags = [f and p is not None for f, p in zip(free, places, strict=True)]
                moved = unexpanded(self.fusion, moved, flags)
            self.made[key] = moved
        return self.made[key]

    def _moved(self, tensor: TensorView, places: Places) -> Moved:
        expr = tensor.expr
        if self.only_through and not isinstance(expr, self.only_through):
            expr = None
        match expr:
            case None:
                return self._read(tensor, places)
            case PointwiseOp() if is_movable(expr):
                return self._through_pointwise(expr, tensor, places)
            case ExpandOp(inputs=(TensorView() as source,)):
                return self.move(source, places)
            case FullOp(inputs=inputs):
                axes = self._axes(tensor, places)
                output = new_tensor(self.fusion, axes, tensor.dtype)
                self.fusion.add_expr(FullOp(inputs, (output,)))
                return output
            case BroadcastOp() | SqueezeOp() | PermuteOp() if tensor.domain.root is None:
                return self._through_shape(expr, places)
            case WindowOp():
                return self._through_window(expr, tensor, places)
            case _:
                return None

    def _through_pointwise(self, expr: PointwiseOp, tensor: TensorView, places: Places) -> Moved:
        """The operation on windows; None if too much would be recomputed.

        Around a filled window it would be applied to the fill, which it may refuse.  A tensor that
        is broadcast is small: it is stored, and read through the windows.
        """
        if self.is_pad and may_refuse(expr):
            return None
        was_shared = self.is_shared
        self.is_shared = was_shared or self.readers.get(tensor, 1) > 1
        if self.is_shared:
            expensive = is_expensive(expr)
            work = self.work + (_EXPENSIVE if expensive else 1)
            if work > _MOST_RECOMPUTED or (expensive and self.is_pad):
                self.is_shared = was_shared
                return self._read(tensor, places) if self.is_broadcast else None
            self.work = work
        sizes = [axis.size for axis in self._axes(tensor, places)]
        made = recomputed(self.fusion, expr, sizes, lambda t: self.move(t, places))
        self.is_shared = was_shared
        return made

    def _read(self, tensor: TensorView, places: Places) -> TensorView:
        """The windows of a tensor in memory."""
        axes = self._axes(tensor, places)
        return window(self.fusion, tensor, _windows(places), axes, self.fill)

    def _axes(self, tensor: TensorView, places: Places) -> list[IterDomain]:
        """New axes of the sizes of a tensor's windows."""
        pairs = zip(tensor.axes, places, strict=True)
        return [
            copy_axis(self.fusion, axis) if p is None else new_axis(self.fusion, p[1])
            for axis, p in pairs
        ]

    def _through_shape(self, expr: BroadcastOp | SqueezeOp | PermuteOp, places: Places) -> Moved:
        source = expr.tensor_inputs[0]
        inner: list[Sized] = [None] * source.ndim
        match expr:
            case BroadcastOp(flags=flags):
                inner = [p for p, new in zip(places, flags, strict=True) if not new]
            case SqueezeOp(flags=flags):
                kept = iter(places)
                inner = [None if gone else next(kept) for gone in flags]
            case PermuteOp(dims=dims):
                for position, dim in enumerate(dims):
                    inner[dim] = places[position]
        was_broadcast = self.is_broadcast
        self.is_broadcast = was_broadcast or isinstance(expr, BroadcastOp)
        moved = self.move(source, tuple(inner))
        self.is_broadcast = was_broadcast
        if moved is None:
            return None
        axes = [copy_axis(self.fusion, axis) for axis in moved.axes]
        match expr:
            case BroadcastOp(flags=flags):
                rest = iter(axes)
                axes = [self.fusion.ids.broadcast() if new else next(rest) for new in flags]
            case SqueezeOp(flags=flags):
                axes = [axis for axis, gone in zip(axes, flags, strict=True) if not gone]
            case PermuteOp(dims=dims):
                axes = [axes[dim] for dim in dims]
        output = new_tensor(self.fusion, axes, moved.dtype)
        self.fusion.add_expr(expr.rebuild((moved,), (output,)))
        return output

    def _through_window(self, expr: WindowOp, tensor: TensorView, places: Places) -> Moved:
        """A window of a window is a window; of a pad, only if its elements are consecutive."""
        if not _can_join(expr, places):
            return None
        fill = expr.inputs[1] if len(expr.inputs) == 2 else self.fill
        if isinstance(fill, TensorView):
            fill = self.move(fill, places)
            if fill is None:
                return None
        axes = self._axes(tensor, places)
        joined = joined_places(expr, tensor, places)
        return window(self.fusion, expr.inputs[0], _windows(joined), axes, fill)


def _can_join(expr: WindowOp, places: Places) -> bool:
    """True if `places` of a window's result are a window on its source."""
    for axis, inner, outer in zip(expr.tensor_outputs[0].axes, expr.windows, places, strict=True):
        if inner is None or outer is None or inner.covers(axis.size):
            continue
        if inner.every is not ONE or outer[0].every is not ONE or outer[0].step is not ONE:
            return False
    return True


def _windows(places: Places) -> Windows:
    return tuple(None if place is None else place[0] for place in places)


def joined_places(expr: WindowOp, tensor: TensorView, places: Places) -> Places:
    """The windows on a source that equal `places` of `tensor`, a window on the source."""
    joined: list[Sized] = []
    for axis, inner, outer in zip(tensor.axes, expr.windows, places, strict=True):
        if inner is None or outer is None:
            joined.append(outer if inner is None else (inner, axis.size))
        else:
            whole = inner.covers(axis.size)
            joined.append((composed(inner, outer[0], whole), outer[1]))
    return tuple(joined)


def composed(inner: Window, outer: Window, is_whole: bool) -> Window:
    """The composition: `outer` applied to the result of `inner` on a source."""
    offset = inner.offset + inner.step * outer.offset
    step = inner.step * outer.step
    if is_whole:
        return Window(outer.left, outer.stop, offset, step, outer.every)
    left = larger(outer.left, inner.left - outer.offset)
    stop = smaller(outer.stop, inner.stop - outer.offset)
    return Window(left, stop, offset, step)


def _is_covered(expr: WindowOp) -> bool:
    """True if others overwrite everything that is filled: the first of tensors side by side.

    Its only reader is the next one's fill, and so on to the end of the axis.
    """
    output = expr.tensor_outputs[0]
    dims = [d for d, w in enumerate(expr.windows) if w is not None]
    if len(dims) != 1:
        return False
    (dim,) = dims
    end: IntExpr = ZERO
    value, current = output, expr
    while (own := current.windows[dim]) and own.left is end and own.every is ONE:
        end = own.stop
        if end is output.axes[dim].size:
            return True
        if len(value.uses_list) != 1 or value in value.fusion.outputs:
            return False
        reader = value.uses_list[0]
        is_fill = isinstance(reader, WindowOp) and reader.inputs[1:] == (value,)
        if not is_fill or reader.source is value:
            return False
        assert isinstance(reader, WindowOp)
        if [d for d, w in enumerate(reader.windows) if w is not None] != dims:
            return False
        value, current = reader.tensor_outputs[0], reader
    return False


def _is_zero(value: Scalar) -> bool:
    return value.constant == 0 and not str(value).startswith("-")


def constant_like(fusion: Fusion, dtype: DataType, value: float) -> Val:
    """A constant of a tensor's dtype."""
    return fusion.new_scalar(dtype, constant=bool(value) if dtype is DataType.Bool else value)


def _only_moves(tensor: TensorView, is_zero: bool) -> bool:
    """True if elements are only moved, from an input on, so that a fill stays the same value.

    A zero is zero in every dtype.
    """
    expr = tensor.expr
    match expr:
        case None:
            return True
        case SqueezeOp() | PermuteOp() | PointwiseOp(op="set"):
            return _only_moves(expr.tensor_inputs[0], is_zero)
        case PointwiseOp(op="cast") if is_zero:
            return bool(expr.tensor_inputs) and _only_moves(expr.tensor_inputs[0], is_zero)
        case _:
            return False
