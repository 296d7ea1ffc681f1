"""Text: a Fusion as the Python that rebuilds it, and as the interface's `print_math`.

The Python is a function of a FusionDefinition: inputs in order, operations in the order in which
the outputs need them, outputs.  Implicit operations (casts, broadcasts) are written out, so running
it gives an equal definition; keys.py defines "equal".  Sizes are taken from tensors that are
already defined (`fd.ops.size`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from ..dtypes import DataType
from ..errors import UnsupportedError, expected
from .domains import IterDomain
from .exprs import (
    BroadcastOp,
    ExpandOp,
    Expr,
    FullOp,
    GatherOp,
    IndexedWrite,
    IotaOp,
    LibraryOp,
    PermuteOp,
    PointwiseOp,
    RandomOp,
    ReductionOp,
    ReshapeOp,
    ScanOp,
    SqueezeOp,
    WelfordOp,
    WindowOp,
)
from .fusion import Fusion
from .scalars import (
    Binary,
    CeilDiv,
    FloorDiv,
    Integer,
    IntExpr,
    Max,
    Min,
    Mod,
    Sum,
    Symbol,
)
from .vals import PythonNumber, Scalar, TensorView, Val
from .window_text import Joined, WindowText

_INLINED = (
    DataType.Bool,
    DataType.Int,
    DataType.Index,
    DataType.Double,
    DataType.ComplexDouble,
)
_HEADER = "def nvfuser_fusion(fd : FusionDefinition) -> None :"


def translate(fusion: Fusion, canonical: bool = False) -> str:
    """The fusion as the Python that defines it; `canonical` numbers values in order of use."""
    return _Translator(fusion, canonical).text()


def number_text(value: PythonNumber) -> str:
    """A constant as Python; a float has six digits if these are exact."""
    if isinstance(value, complex):
        return repr(value)
    if not isinstance(value, float):
        return str(value)
    if not math.isfinite(value):
        return f'float("{value}")'
    short = f"{value:#.6g}"
    return short if float(short) == value else repr(value)


def needed_exprs(fusion: Fusion) -> list[Expr]:
    """The expressions the outputs need, producers first: depth first, in output order."""
    ordered: list[Expr] = []
    seen: set[int] = set()
    for output in fusion.outputs:
        pending: list[tuple[Expr, Iterator[Val]]] = []
        if output.expr is not None and id(output.expr) not in seen:
            seen.add(id(output.expr))
            pending.append((output.expr, iter(output.expr.inputs)))
        while pending:
            expr, operands = pending[-1]
            operand = next(operands, None)
            if operand is None:
                ordered.append(expr)
                pending.pop()
            elif operand.expr is not None and id(operand.expr) not in seen:
                seen.add(id(operand.expr))
                pending.append((operand.expr, iter(operand.expr.inputs)))
    return ordered


class _Translator:
    """The state of one translation: the lines so far, and the names of the values they define."""

    def __init__(self, fusion: Fusion, canonical: bool) -> None:
        self.fusion, self.canonical = fusion, canonical
        self.lines: list[str] = []
        self.names: dict[Val, str] = {}
        self.sizes: dict[IntExpr, str] = {}  # as a Python expression
        self.size_names: dict[IntExpr, str] = {}  # as a name that a line defines
        self.defining: dict[IntExpr, Scalar] = {}
        self.state: set[Val] = set(fusion.random_state)
        self.windows = WindowText(self.size, self.shape)
        self.joined: dict[Expr, Joined] = {}
        self.counters = {"tv": 0, "c": 0 if canonical else fusion._scalar_count}

    def text(self) -> str:
        """The whole function."""
        exprs = needed_exprs(self.fusion)
        for value in self.fusion.given_inputs:
            self.input(value)
        for expr in self.fusion.exprs:  # bounds of reads are sizes, not the scalars they came from
            output = expr.output
            if isinstance(output, Scalar) and isinstance(output.extent, Symbol):
                if any(isinstance(v, Scalar) and v.extent is output.extent for v in expr.inputs):
                    continue  # n - 0 is n, which its operand defines
                self.defining.setdefault(output.extent, output)
        self.joined = {expr: found for expr in exprs if (found := Joined.at(expr)) is not None}
        inner = {pad for joined in self.joined.values() for pad in joined.inner}
        for expr in exprs:
            if expr in inner:
                continue  # part of a cat
            if self.state.isdisjoint(expr.inputs) or isinstance(expr, RandomOp):
                self.expr(expr)
        for position, value in enumerate(self.fusion.outputs):
            alias = self.fusion.aliases.get(value)
            if alias is not None and value not in self.fusion.outputs[:position]:
                self.lines.append(f"fd.add_output({self.value(value)}, {self.value(alias)})")
            if value not in self.fusion.hidden_outputs:
                self.lines.append(f"fd.add_output({self.value(value)})")
        body = "".join(f"    {line}\n" for line in self.lines or ["pass"])
        return f"{_HEADER}\n{body}"

    # -- names

    def fresh(self, kind: str) -> str:
        """A new name, `tv3` or `c3`."""
        self.counters[kind] += 1
        return f"{kind}{self.counters[kind] - 1}"

    def define(self, value: Val) -> str:
        """Names a value that the next line defines."""
        kind = "tv" if isinstance(value, TensorView) else "c"
        name = self.fresh(kind) if self.canonical else f"{kind}{value.name}"
        self.names[value] = name
        if isinstance(value, TensorView):
            for dim, axis in enumerate(value.axes):
                self.sizes.setdefault(axis.size, f"fd.ops.size({name}, dim={dim})")
        elif isinstance(value, Scalar) and value.extent is not None:
            self.size_names.setdefault(value.extent, name)
        return name

    def value(self, value: Val) -> str:
        """A value as an argument, after the lines needed to define it."""
        found = self.names.get(value)
        if found is not None:
            return found
        if not isinstance(value, Scalar):
            if value.expr is None:
                what = "every tensor to be an input or computed"
                raise UnsupportedError(expected("translate", what, str(value)))
            self.expr(value.expr)
            return self.names[value]
        if value.constant is not None:
            if value.dtype in _INLINED and value.dtype is not DataType.Index:
                return number_text(value.constant)
            name = self.define(value)
            self.lines.append(
                f"{name} = fd.define_scalar({number_text(value.constant)}, dtype={value.dtype})"
            )
            return name
        if value.expr is not None:
            self.expr(value.expr)
            return self.names[value]
        if value.extent is None:
            what = "every scalar to be an input, a constant or computed"
            raise UnsupportedError(expected("translate", what, str(value)))
        return self.size(value.extent)

    # -- sizes

    def is_plain(self, extent: IntExpr) -> bool:
        """True if a size can be written without arithmetic."""
        known = extent in self.size_names or extent in self.sizes or extent in self.defining
        return known or isinstance(extent, Integer)

    def size(self, extent: IntExpr) -> str:
        """A size as an argument, after the lines needed to compute it."""
        if isinstance(extent, Integer):
            return str(extent.value)
        name = self.size_names.get(extent)
        if name is not None:
            return name
        scalar = self.defining.get(extent)
        if scalar is not None:
            return self.value(scalar)
        source = self.sizes.get(extent) or self.arithmetic(extent)
        name = self.size_names[extent] = self.fresh("c")
        self.lines.append(f"{name} = {source}")
        return name

    def arithmetic(self, extent: IntExpr) -> str:
        """The arithmetic for a size that no tensor has."""
        match extent:
            case Sum(terms=terms):
                total = ""
                for monomial, coefficient in sorted(terms, key=lambda term: term[1] < 0):
                    factors = [self.size(atom) for atom in monomial]
                    negative = coefficient < 0 and bool(total)
                    number = -coefficient if negative else coefficient
                    if number != 1 or not factors:
                        factors.append(str(number))
                    term = self._folded("mul", factors)
                    joint = "sub" if negative else "add"
                    total = self._folded(joint, [total, term]) if total else term
                return total
            case CeilDiv(a=a, b=b):
                raised = self._folded("add", [self.size(a), self.size(b - 1)])
                return f"fd.ops.div({raised}, {self.size(b)})"
            case Binary(a=a, b=b):
                return f"fd.ops.{_SIZE_OPS[type(extent)]}({self.size(a)}, {self.size(b)})"
            case _:
                what = "every size to be that of a tensor"
                raise UnsupportedError(expected("translate", what, str(extent)))

    @staticmethod
    def _folded(op: str, operands: Sequence[str]) -> str:
        folded = operands[0]
        for operand in operands[1:]:
            folded = f"fd.ops.{op}({folded}, {operand})"
        return folded

    def shape(self, extents: Sequence[IntExpr], infer: bool = False) -> str:
        """A list of sizes; with `infer`, a single one that needs arithmetic is -1."""
        computed = [extent for extent in extents if not self.is_plain(extent)]
        if infer and len(computed) == 1:
            entries = ["-1" if e is computed[0] else self.size(e) for e in extents]
        else:
            entries = [self.size(extent) for extent in extents]
        return f"[{', '.join(entries)}]"

    # -- lines

    def input(self, value: Val) -> None:
        """The definition of an input."""
        name = self.define(value)
        if isinstance(value, TensorView):
            self.lines.append(f"{name} = fd.define_tensor({_tensor_arguments(value)})")
        else:
            self.lines.append(f"{name} = fd.define_scalar(None, dtype={value.dtype})")

    def expr(self, expr: Expr) -> None:
        """Emits the line of an expression unless it is already there."""
        if expr.output in self.names:
            return
        for earlier in self.unseeded_before(expr):  # their order decides their numbers
            self.expr(earlier)
        call = self.call(expr)
        names = ", ".join(self.define(output) for output in expr.outputs)
        self.lines.append(f"{names} = fd.ops.{call}")

    def unseeded_before(self, expr: Expr) -> list[Expr]:
        """The random operations that get their numbers before this one, if it has no seed."""
        if not self.is_unseeded(expr):
            return []
        earlier = self.fusion.exprs[: self.fusion.exprs.index(expr)]
        return [each for each in earlier if self.is_unseeded(each)]

    def is_unseeded(self, expr: Expr) -> bool:
        """True for a random operation that takes its numbers from torch's generator."""
        seed = self.fusion.random_state[:1]
        return isinstance(expr, RandomOp) and bool(seed) and expr.inputs[:1] == seed

    def random_call(self, expr: RandomOp, output: TensorView) -> str:
        """Standard random numbers; seed and offset only if the definition has them."""
        shape = self.shape([axis.size for axis in output.axes])
        call = f"{expr.distribution}(0.0, 1.0, shape={shape}, "
        if not self.is_unseeded(expr):
            seed, offset = (self.value(operand) for operand in expr.inputs)
            call += f"rng_seed={seed}, rng_offset={offset}, "
        return f"{call}dtype={output.dtype})"

    def call(self, expr: Expr) -> str:
        """The call that makes an expression."""
        output = expr.output
        if isinstance(expr, RandomOp):
            assert isinstance(output, TensorView)
            return self.random_call(expr, output)
        if (joined := self.joined.get(expr)) is not None:
            tensors = ", ".join(map(self.value, joined.tensors))
            return f"cat([{tensors}], dim={joined.dim})"
        arguments = [self.value(operand) for operand in expr.inputs]
        if isinstance(expr, PointwiseOp):
            return _pointwise_call(expr, arguments)
        assert isinstance(output, TensorView)
        match expr:
            case ReductionOp(op=op):
                dtype = f", dtype={output.dtype}" if op in ("sum", "prod") else ""
                return f"{op}({arguments[0]}, dims={_reduced(output)}{dtype})"
            case WelfordOp() if len(arguments) == 1:
                return f"welford({arguments[0]}, dims={_reduced(output)})"
            case ScanOp(op=op, dim=dim):
                direction = ", reverse=True" if expr.is_reversed else ""
                return f"{op}({arguments[0]}, dim={dim}{direction})"
            case FullOp():
                shape = self.shape([axis.size for axis in output.axes])
                return f"full(shape={shape}, fill_value={arguments[0]}, dtype={output.dtype})"
            case IotaOp():
                length = self.size(output.axes[0].size)
                return f"iota({length}, {', '.join(arguments)}, dtype={output.dtype})"
            case WindowOp():
                return self.windows.call(expr, arguments, output)
            case GatherOp():
                return _gather_call(expr, arguments)
            case IndexedWrite():
                return _write_call(expr, arguments)
            case LibraryOp():
                named = [*zip(expr.names, arguments, strict=True)]
                named += [(name, repr(option)) for name, option in expr.options]
                texts = [text if n.startswith("arg") else f"{n}={text}" for n, text in named]
                return f"{expr.op}({', '.join(texts)})"
            case _:
                return self.shape_call(expr, arguments[0], output)

    def shape_call(self, expr: Expr, argument: str, output: TensorView) -> str:
        """The call for an operation that only changes the shape."""
        match expr:
            case BroadcastOp(flags=flags):
                return f"broadcast({argument}, is_broadcast_dim={list(flags)})"
            case SqueezeOp(flags=flags):
                source = expr.tensor_inputs[0]
                dims = [dim for dim, flag in enumerate(flags) if flag]
                is_expanded = any(source.axes[dim].is_expanded for dim in dims)
                extra = ", squeeze_expanded=True" if is_expanded else ""
                return f"squeeze({argument}, dims={dims}{extra})"
            case PermuteOp(dims=dims):
                return f"permute({argument}, dims={list(dims)})"
            case ExpandOp():
                pairs = zip(expr.tensor_inputs[0].axes, output.axes, strict=True)
                sizes = ["-1" if a.size is b.size else self.size(b.size) for a, b in pairs]
                return f"expand({argument}, shape=[{', '.join(sizes)}])"
            case ReshapeOp():
                shape = self.shape([axis.size for axis in output.axes], infer=True)
                return f"reshape({argument}, new_shape={shape})"
            case _:
                what = "an expression of a definition"
                raise UnsupportedError(expected("translate", what, str(expr)))


_SIZE_OPS: dict[type[Binary], str] = {
    FloorDiv: "div",
    Mod: "mod",
    Min: "minimum",
    Max: "maximum",
}


def _gather_call(expr: GatherOp, arguments: Sequence[str]) -> str:
    index, output = expr.tensor_inputs[1], expr.tensor_outputs[0]
    name = expr.op
    if name == "embedding_fwd":
        return f"{name}({arguments[1]}, {arguments[0]})"
    if name in ("gather", "take_along_axis"):
        pairs = zip(output.axes, index.axes, strict=True)
        name = "gather" if all(a.size is b.size for a, b in pairs) else "take_along_axis"
    return f"{name}({', '.join(arguments)}, dim={expr.dim})"


def _write_call(expr: IndexedWrite, arguments: Sequence[str]) -> str:
    rank = len(expr.base_axes)
    is_aligned = expr.op.startswith("scatter") and len(expr.index_axes) == rank
    name = "scatter" if is_aligned else "index_put"
    how = "" if expr.how == "set" else f", how={expr.how!r}"
    op = "" if expr.op == name else f", op={expr.op!r}"
    return f"{name}({', '.join(arguments)}, dim={expr.dim}{how}{op})"


def _reduced(output: TensorView) -> list[int]:
    axes = output.domain.root_or_logical
    return [dim for dim, axis in enumerate(axes) if axis.is_reduction]


def stride_order_of(tensor: TensorView) -> list[int] | None:
    """rank-1 for the outermost axis in memory, 0 for the innermost; None for row-major order."""
    allocation = tensor.domain.allocation
    if allocation is None or allocation == tensor.axes:
        return None
    rank = len(allocation)
    position: Callable[[IterDomain], int] = allocation.index
    return [rank - 1 - position(axis) for axis in tensor.axes]


def _tensor_arguments(tensor: TensorView) -> str:
    shape = []
    for axis in tensor.axes:
        shape.append(axis.size.value if isinstance(axis.size, Integer) else -1)
    order = stride_order_of(tensor)
    extra = "" if order is None else f", stride_order={order}"
    return (
        f"shape={shape}, contiguity={list(tensor.domain.contiguity)}, dtype={tensor.dtype}, "
        f"is_cpu={tensor.is_cpu_scalar}{extra}"
    )


def _pointwise_call(expr: PointwiseOp, arguments: Sequence[str]) -> str:
    output = expr.output
    if expr.op in ("set", "cast"):
        order = stride_order_of(output) if isinstance(output, TensorView) else None
        if order is not None:
            return f"stride_order({arguments[0]}, stride_order={order})"
        return f"cast({arguments[0]}, dtype={output.dtype})"
    return f"{expr.op}({', '.join(arguments)})"
