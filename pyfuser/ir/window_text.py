"""Text of windows: a WindowOp as the slices, flips and pads that make it, or several as one cat.

WindowText(size, shape).call(expr, arguments, output)    `slice(tv0, ...)`, `pad(...)`
Joined.at(expr)                                          the tensors that a chain of pads joins
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..errors import UnsupportedError, expected
from .bounds import larger, proves_at_most
from .exprs import Expr, WindowOp
from .scalars import ONE, ZERO, IntExpr, Min, ceil_div
from .vals import Scalar, TensorView
from .windows import Window


@dataclass(frozen=True)
class Joined:
    """The tensors that a chain of pads writes side by side along `dim`, and the pads but the last.

    Each pad has the one before it as its fill; the first is filled with 0.
    """

    tensors: list[TensorView]
    dim: int
    inner: list[Expr]

    @classmethod
    def at(cls, last: Expr) -> Joined | None:
        """The chain that ends with this expression; None if it isn't what `cat` builds."""
        dim, end = _appended(last)
        if dim is None or end is not last.tensor_outputs[0].axes[dim].size:
            return None
        chain, start = [last], _start(last, dim)
        while start is not ZERO:
            fill = chain[0].inputs[1]
            if fill.expr is None or _appended(fill.expr) != (dim, start):
                return None
            if len(fill.uses_list) != 1 or fill in fill.fusion.outputs:
                return None
            chain.insert(0, fill.expr)
            start = _start(fill.expr, dim)
        fill = chain[0].inputs[1]
        if len(chain) == 1 or not isinstance(fill, Scalar) or fill.constant != 0:
            return None
        return cls([tensor for pad in chain if (tensor := pad.source) is not None], dim, chain[:-1])


def _appended(expr: Expr) -> tuple[int | None, IntExpr]:
    """The one dimension along which a pad writes all of a tensor, and where that ends."""
    if isinstance(expr, WindowOp) and len(expr.inputs) == 2 and expr.source is not None:
        windows = [(dim, window) for dim, window in enumerate(expr.windows) if window is not None]
        if len(windows) == 1:
            ((dim, window),) = windows
            end = window.left + expr.source.axes[dim].size
            if window == Window(window.left, end, window.left * -1, ONE):
                return dim, end
    return None, ZERO


def _start(expr: Expr, dim: int) -> IntExpr:
    assert isinstance(expr, WindowOp)
    window = expr.windows[dim]
    assert window is not None
    return window.left


class WindowText:
    """Writes windows as calls, with the names that `size` and `shape` give to sizes."""

    def __init__(
        self,
        size: Callable[[IntExpr], str],
        shape: Callable[[Sequence[IntExpr]], str],
    ) -> None:
        self.size, self.shape = size, shape

    def call(self, expr: WindowOp, arguments: list[str], output: TensorView) -> str:
        """A slice, a pad, or a padded slice; slice_scatter where the source is spread."""
        source, axes = expr.source, output.axes
        pairs = list(zip(axes, expr.windows, strict=True))
        if source is None:
            sizes = [a.size if w is None else _shown(w) for a, w in pairs]
            inner = f"full(shape={self.shape(sizes)}, fill_value={arguments[0]}, "
            inner += f"dtype={output.dtype})"
        else:
            inner = self._slice(source, expr.windows, arguments[0])
        if len(arguments) == 1:
            return inner or f"cast({arguments[0]}, dtype={output.dtype})"
        padded = f"fd.ops.{inner}" if inner else arguments[0]
        if any(window is not None and window.every is not ONE for window in expr.windows):
            return self._spread(expr, padded, arguments[1], output)
        widths: list[str] = []
        for axis, window in reversed(pairs):
            ends = () if window is None else (window.left, axis.size - window.stop)
            widths += [self.size(width) for width in ends] or ["0", "0"]
        while widths[-2:] == ["0", "0"]:
            del widths[-2:]
        return f"pad({padded}, [{', '.join(widths)}], {arguments[1]})"

    def _spread(self, expr: WindowOp, padded: str, fill: str, output: TensorView) -> str:
        """The source written to every n-th element of one axis."""
        dims = [dim for dim, window in enumerate(expr.windows) if window is not None]
        window = expr.windows[dims[0]]
        if len(dims) != 1 or window is None:
            raise UnsupportedError(expected("translate", "a tensor spread along one axis", expr))
        if not isinstance(expr.inputs[1], TensorView):
            shape = self.shape([axis.size for axis in output.axes])
            fill = f"fd.ops.full(shape={shape}, fill_value={fill}, dtype={output.dtype})"
        bounds = f"{self.size(window.left)}, {self.size(window.stop)}, {window.every}"
        return f"slice_scatter({fill}, {padded}, {dims[0]}, {bounds})"

    def _slice(self, source: TensorView, windows: Sequence[Window | None], argument: str) -> str:
        """A slice of the part of a source that the windows show; none if they show all of it."""
        single = [
            w is not None
            and axis.size is not ONE
            and (w.left, w.stop, w.every) == (ZERO, ONE, ONE)
            and not proves_at_most(w.offset + 1, axis.size)  # else a slice can't be empty
            for axis, w in zip(source.axes, windows, strict=True)
        ]
        if any(single):
            return self._selected(source, windows, argument, single)
        bounds: list[tuple[IntExpr, IntExpr, IntExpr]] = []
        flipped: list[int] = []
        for dim, (axis, window) in enumerate(zip(source.axes, windows, strict=True)):
            first: IntExpr = ZERO
            end, step = axis.size, window.step if window is not None else ONE
            if window is not None:
                first = window.offset
                if window.every is ONE:
                    first += step * window.left
                end = first + step * _shown(window)
            if window is not None and window.is_backward:
                flipped.append(dim)
                first, end, step = end - step, first + 1, step * -1
            bounds.append((first, end, step))
        sliced = self._bounded(source, bounds, argument)
        if not flipped:
            return sliced
        return f"flip({f'fd.ops.{sliced}' if sliced else argument}, dims={flipped})"

    def _bounded(
        self,
        source: TensorView,
        bounds: Sequence[tuple[IntExpr, IntExpr, IntExpr]],
        argument: str,
    ) -> str:
        """The slice between these bounds, (first, end, step) for each axis; none if it is all."""
        if list(bounds) == [(ZERO, axis.size, ONE) for axis in source.axes]:
            return ""
        starts, ends, steps = (
            f"[{', '.join(map(self.size, sizes))}]" for sizes in zip(*bounds, strict=True)
        )
        stepped = "" if all(step is ONE for *_, step in bounds) else f", strides={steps}"
        bounds_text = f"start_indices={starts}, end_indices={ends}{stepped}"
        return f"slice({argument}, {bounds_text}, manual_normalization=True)"

    def _selected(
        self,
        source: TensorView,
        windows: Sequence[Window | None],
        argument: str,
        single: Sequence[bool],
    ) -> str:
        """A slice of a source with one element along the `single` axes."""
        rest = [None if one else window for window, one in zip(windows, single, strict=True)]
        inner = self._slice(source, rest, argument)
        made = f"fd.ops.{inner}" if inner else argument
        for dim in reversed(range(len(windows))):
            window = windows[dim]
            if window is not None and single[dim]:
                index = _index_of(window, source.axes[dim].size)
                made = f"fd.ops.select({made}, {self.size(index)}, dim={dim})"
        return f"broadcast({made}, is_broadcast_dim={list(single)})"


def _index_of(window: Window, size: IntExpr) -> IntExpr:
    """The index that `select` was given: an index that isn't inside is clamped, and refused."""
    last = larger(size - ONE, ZERO)
    match window.offset:
        case Min(a=index, b=other) | Min(b=index, a=other) if other is last:
            return index
        case offset:
            return offset


def _shown(window: Window) -> IntExpr:
    """How many elements of the source a window shows."""
    return ceil_div(window.stop - window.left, window.every)
