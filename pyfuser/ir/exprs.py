"""Expressions: how a value is computed from others.

    expr ::= out = op(in, ...)                      PointwiseOp; `op` names a row of the op table
           | out = sum|prod|max|min(in)             ReductionOp; over the reduction axes of out
           | avg, m2, n = welford(in | avg, m2, n)  WelfordOp
           | out = cumsum|cumprod|cummax|cummin(in, dim)  ScanOp; `op` names a row of the scans
           | out = broadcast(in, flags) | expand(in) | squeeze(in, flags) | permute(in, dims)
           | out = reshape(in)                      root -> logical of out says how
           | out = full(value) | iota(start, step)
           | out = uniform|normal(seed, offset)        RandomOp; of the element's place in out
           | out = slice(source) | pad(source, fill)   WindowOp; its windows specify where it reads
           | out = gather(source, index)               GatherOp; the index specifies where it reads
           | out = scatter(base, index, value)         ScatterOp; the index says where it writes
           | out = write(target, index, value)         WriteOp; a scatter in a schedule
           | out, ... = op(name=in, ..., name=number)  LibraryOp; `op` names a library operation

Pointwise expressions map the logical axes of their inputs to the root axes of their output by
position; `pyfuser.analysis.mapping` defines the mapping for every kind of expression.

A *read* (WindowOp, GatherOp) reads its source at computed positions. A kernel can only do so if the
source is in memory, and the source's axes correspond to none of the output's axes.

A *scatter* gives the base with values written, or combined, at computed positions. A kernel does
this in memory that already holds the base, in loops over the values; the result is complete when
the kernel ends, and its axes correspond to none of the loops. Schedulers therefore replace a
scatter by a *write*: its target is the memory of the result, and its own axes are the values'.

A *library operation* (matmul, topk) is computed by torch as a whole: no kernel contains it, and the
axes of its operands correspond to none of the output's axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from .domains import IterDomain
from .scalars import IntExpr
from .vals import Scalar, TensorView, Val
from .windows import Window


@dataclass(slots=True, eq=False)
class Expr:
    """Base class: `inputs` in order, `outputs` in order.

    accumulates  True if a result is folded into an accumulator over the reduction axes
    """

    accumulates: ClassVar[bool] = False

    inputs: tuple[Val, ...]
    outputs: tuple[Val, ...]

    @property
    def name(self) -> str:
        """The operation's name in printed IR."""
        return "expr"

    @property
    def output(self) -> Val:
        """The first output."""
        return self.outputs[0]

    @property
    def tensor_inputs(self) -> list[TensorView]:
        return [v for v in self.inputs if isinstance(v, TensorView)]

    @property
    def tensor_outputs(self) -> list[TensorView]:
        return [v for v in self.outputs if isinstance(v, TensorView)]

    @property
    def source(self) -> TensorView | None:
        """The tensor that is read at computed positions; None for expressions other than reads."""
        return None

    @property
    def aligned_inputs(self) -> list[TensorView]:
        """The inputs whose axes correspond to the output's: all except the source."""
        return self.tensor_inputs

    def attributes(self) -> tuple[Any, ...]:
        """What identifies the computation besides its inputs, outputs and their axes."""
        return ()

    def rebuild(self, inputs: Sequence[Val], outputs: Sequence[Val]) -> Expr:
        """The same operation over other values."""
        return type(self)(tuple(inputs), tuple(outputs), *self.attributes())

    def sizes(self) -> list[IntExpr]:
        """The symbolic integers among the attributes."""
        return []

    def resized(self, size: Callable[[IntExpr], IntExpr]) -> None:
        """Replaces the symbolic integers among the attributes."""

    def __str__(self) -> str:
        outputs = ", ".join(str(v) for v in self.outputs)
        arguments = [str(v) for v in self.inputs]
        arguments += [str(a) for a in self.attributes() if a != self.name]
        return f"{outputs} = {self.name}({', '.join(arguments)})"


@dataclass(slots=True, eq=False)
class PointwiseOp(Expr):
    """Applies the table's `op` to each element, or to scalars only, then computed on the host."""

    op: str

    @property
    def name(self) -> str:
        return self.op

    def attributes(self) -> tuple[Any, ...]:
        return (self.op,)


@dataclass(slots=True, eq=False)
class ReductionOp(Expr):
    """Combines elements with `op` (sum, prod, max, min) over the output's reduction axes."""

    accumulates = True

    op: str

    @property
    def name(self) -> str:
        return self.op

    def attributes(self) -> tuple[Any, ...]:
        return (self.op,)


@dataclass(slots=True, eq=False)
class WelfordOp(Expr):
    """(avg, m2, n) of the input, or of partial (avg, m2, n) triples, over the reduction axes."""

    accumulates = True

    @property
    def name(self) -> str:
        return "welford"


@dataclass(slots=True, eq=False)
class ScanOp(Expr):
    """Combines each element with those before it along output axis `dim`; `op` names the scan.

    If it `is_reversed`, each element is combined with those after it.
    """

    op: str
    dim: int
    is_reversed: bool = False

    @property
    def name(self) -> str:
        return self.op

    @property
    def scanned(self) -> IterDomain:
        """The root axis of the output along which elements are combined."""
        return self.tensor_outputs[0].domain.root_or_logical[self.dim]

    def attributes(self) -> tuple[Any, ...]:
        return (self.op, self.dim, self.is_reversed)


@dataclass(slots=True, eq=False)
class BroadcastOp(Expr):
    """Adds broadcast axes where `flags` (one per output axis) are True."""

    flags: tuple[bool, ...]

    @property
    def name(self) -> str:
        return "broadcast"

    def attributes(self) -> tuple[Any, ...]:
        return (self.flags,)


@dataclass(slots=True, eq=False)
class SqueezeOp(Expr):
    """Drops the input axes whose `flags` are True; they must be broadcast."""

    flags: tuple[bool, ...]

    @property
    def name(self) -> str:
        return "squeeze"

    def attributes(self) -> tuple[Any, ...]:
        return (self.flags,)


@dataclass(slots=True, eq=False)
class ExpandOp(Expr):
    """Expands broadcast axes to the expanded extents of the output's axes."""

    @property
    def name(self) -> str:
        return "expand"


@dataclass(slots=True, eq=False)
class PermuteOp(Expr):
    """Output axis i is input axis dims[i]."""

    dims: tuple[int, ...]

    @property
    def name(self) -> str:
        return "permute"

    def attributes(self) -> tuple[Any, ...]:
        return (self.dims,)


@dataclass(slots=True, eq=False)
class ReshapeOp(Expr):
    """The output's root axes are the input's; splits and merges turn them into its logical axes."""

    @property
    def name(self) -> str:
        return "reshape"


@dataclass(slots=True, eq=False)
class FullOp(Expr):
    """A tensor filled with one scalar, its only input."""

    @property
    def name(self) -> str:
        return "full"


@dataclass(slots=True, eq=False)
class IotaOp(Expr):
    """start + step * i; inputs are (start, step)."""

    @property
    def name(self) -> str:
        return "iota"


@dataclass(slots=True, eq=False)
class RandomOp(Expr):
    """Random numbers of a `distribution`; inputs are (seed, offset), both integers.

    Each element is a function of the seed, the offset and its place in the output, counted row by
    row: computing it again gives the same number.
    """

    distribution: str

    @property
    def name(self) -> str:
        return self.distribution

    def attributes(self) -> tuple[Any, ...]:
        return (self.distribution,)


def is_seed(value: Scalar) -> bool:
    """True for the seed that a call gets from a generator: nothing else is computed from it."""
    is_given = value.constant is None and value.expr is None and value.extent is None
    uses = value.uses_list
    return is_given and bool(uses) and all(_has_seed(expr, value) for expr in uses)


def _has_seed(expr: Expr, value: Scalar) -> bool:
    return isinstance(expr, RandomOp) and expr.inputs[0] is value is not expr.inputs[1]


@dataclass(slots=True, eq=False)
class ReadOp(Expr):
    """Base class of the reads: the first input is the source."""

    @property
    def source(self) -> TensorView | None:
        first = self.inputs[0]
        return first if isinstance(first, TensorView) else None

    @property
    def aligned_inputs(self) -> list[TensorView]:
        return [v for v in self.inputs[1:] if isinstance(v, TensorView)]


@dataclass(slots=True, eq=False)
class WindowOp(ReadOp):
    """A slice of the source, or the padded source: inputs are (source,) or (source, fill).

    There is one window per axis, or None for an axis that is read unchanged.  Outside the windows
    the output is `fill`, a scalar or a tensor of the output's shape.  The source may also be a
    scalar: the output then has that value inside the windows.
    """

    windows: tuple[Window | None, ...]

    @property
    def name(self) -> str:
        return "slice" if len(self.inputs) == 1 else "pad"

    def attributes(self) -> tuple[Any, ...]:
        return (self.windows,)

    def sizes(self) -> list[IntExpr]:
        return [n for w in self.windows if w is not None for n in (w.left, w.stop, w.offset)]

    def resized(self, size: Callable[[IntExpr], IntExpr]) -> None:
        self.windows = tuple(
            w and Window(*map(size, (w.left, w.stop, w.offset, w.step, w.every)))
            for w in self.windows
        )


@dataclass(slots=True, eq=False)
class GatherOp(ReadOp):
    """The source read at the elements of an integer tensor; inputs are (source, index).

    `source_axes` has, for each source axis, the output axis that runs along it, or None for the one
    axis that the index selects from.  `index_axes` has the output axis along each index axis.  `op`
    is the builder's name: it decides what an index out of range raises; for `index`, a negative
    index counts from the end.
    """

    source_axes: tuple[int | None, ...]
    index_axes: tuple[int, ...]
    op: str

    @property
    def name(self) -> str:
        return "gather"

    @property
    def dim(self) -> int:
        """The source axis that the index selects from."""
        return self.source_axes.index(None)

    @property
    def is_aligned(self) -> bool:
        """True if source, index and output have the same axes (torch's gather)."""
        ranks = all(axis in (None, d) for d, axis in enumerate(self.source_axes))
        return ranks and self.index_axes == tuple(range(len(self.source_axes)))

    @property
    def wraps(self) -> bool:
        """True if a negative index counts from the end."""
        return self.op == "index"

    def attributes(self) -> tuple[Any, ...]:
        return (self.source_axes, self.index_axes, self.op)


@dataclass(slots=True, eq=False)
class IndexedWrite(Expr):
    """Base class of scatter and write: inputs are (base or target, index, value).

    `base_axes` has, for each axis of the base, the axis of the value that runs along it, or None
    for the one that the index selects from. `index_axes` has the value's axis along each index
    axis.  `how` is "set", or the reduction by which a value is combined with what is there. If
    several values go to one element, they do so in the order of the value's elements. `op` is the
    builder's name: it decides what an index out of range raises; for `index_put`, a negative index
    counts from the end.
    """

    base_axes: tuple[int | None, ...]
    index_axes: tuple[int, ...]
    how: str
    op: str

    @property
    def index(self) -> TensorView:
        """The index, which has an integer dtype."""
        assert isinstance(self.inputs[1], TensorView)
        return self.inputs[1]

    @property
    def value(self) -> TensorView:
        """The values, one for each write."""
        assert isinstance(self.inputs[2], TensorView)
        return self.inputs[2]

    @property
    def aligned_inputs(self) -> list[TensorView]:
        return [self.index, self.value]

    @property
    def dim(self) -> int:
        """The base's axis that the index selects from."""
        return self.base_axes.index(None)

    @property
    def scattered(self) -> list[int]:
        """The value's axes whose elements may go to the same place."""
        return [axis for axis in range(len(self.value.axes)) if axis not in self.base_axes]

    @property
    def wraps(self) -> bool:
        """True if a negative index counts from the end."""
        return self.op == "index_put"

    def attributes(self) -> tuple[Any, ...]:
        return (self.base_axes, self.index_axes, self.how, self.op)


@dataclass(slots=True, eq=False)
class ScatterOp(IndexedWrite):
    """The base with values written, or combined, where the index says."""

    @property
    def name(self) -> str:
        return "scatter"

    @property
    def source(self) -> TensorView | None:
        return self.base

    @property
    def base(self) -> TensorView:
        """The tensor whose elements the result has where nothing is written."""
        assert isinstance(self.inputs[0], TensorView)
        return self.inputs[0]


@dataclass(slots=True, eq=False)
class WriteOp(IndexedWrite):
    """The values, which are also written or combined in the memory of the target.

    The target is an input that holds the base when the kernel starts, and the scatter's result when
    it ends. The output has no memory: it stands for the loops.
    """

    @property
    def name(self) -> str:
        return "write"

    @property
    def target(self) -> TensorView:
        """The tensor whose memory is written."""
        assert isinstance(self.inputs[0], TensorView)
        return self.inputs[0]


Option = bool | int | float | str | None


@dataclass(slots=True, eq=False)
class LibraryOp(Expr):
    """An operation that torch computes as a whole; `op` names a row of the library operations.

    `names` has the argument that each input is (a tensor or a scalar), `options` the arguments that
    are known when it is defined.
    """

    op: str
    names: tuple[str, ...]
    options: tuple[tuple[str, Option], ...] = ()

    @property
    def name(self) -> str:
        return self.op

    @property
    def aligned_inputs(self) -> list[TensorView]:
        return []

    def argument(self, name: str) -> Val | None:
        """The input that is this argument; None if there is none."""
        return dict(zip(self.names, self.inputs, strict=True)).get(name)

    def attributes(self) -> tuple[Any, ...]:
        return (self.op, self.names, self.options)

    def __str__(self) -> str:
        outputs = ", ".join(str(v) for v in self.outputs)
        arguments = [f"{n}={v}" for n, v in zip(self.names, self.inputs, strict=True)]
        arguments += [f"{name}={option!r}" for name, option in self.options]
        return f"{outputs} = {self.op}({', '.join(arguments)})"


# These move no data: torch computes them as views if the strides allow it.
VIEWS = (BroadcastOp, ExpandOp, PermuteOp, ReshapeOp, SqueezeOp)


def is_shown_by_strides(expr: Expr | None) -> bool:
    """True for a view, and for a slice, whose evenly spaced elements torch shows by strides.

    Torch has no negative strides.
    """
    if not isinstance(expr, WindowOp):
        return isinstance(expr, VIEWS)
    is_slice = len(expr.inputs) == 1 and bool(expr.tensor_inputs)
    return is_slice and not any(w is not None and w.is_backward for w in expr.windows)
