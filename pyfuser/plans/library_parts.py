"""Library parts and view parts of a program: the calls and views that a plan runs for a segment.

A row of the op table that is an ATen op, on operands of the dtypes it computes in, becomes a call
of the resolved overload, and so do casts and sums.  Expressions that only view memory differently
become views, and a library operation is written by library_operations.py.  If an expression has no
such call (rows that torch spells as several calls, reads at computed positions, values that may be
refused), nothing of the segment is written here, and the evaluator computes it.  Invariant: the
result is the evaluator's in dtypes and shapes, and in values except for the last digits, in which
torch's loops differ; outputs have the strides that a kernel gives them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch._ops import OpOverload

from ..analysis.costs import is_copy
from ..dtypes import COMPLEX, FLOATING, DataType, to_torch
from ..errors import InternalError, expected
from ..ir.exprs import (
    BroadcastOp,
    ExpandOp,
    Expr,
    FullOp,
    LibraryOp,
    PermuteOp,
    PointwiseOp,
    ReductionOp,
    ReshapeOp,
    ScanOp,
    SqueezeOp,
    WindowOp,
    is_shown_by_strides,
)
from ..ir.scalars import IntExpr
from ..ir.segmented import Segment
from ..ir.vals import Scalar, TensorView, Val
from ..ir.windows import Window
from ..ops.binding import convert_number
from ..ops.checking import may_refuse
from ..ops.evaluator import reduced_dims
from ..ops.op import Op
from ..ops.pointwise import resolve_expr
from ..ops.table import OPS, SCANS
from .library_calls import LibraryCalls, overload_into
from .library_operations import call_text, is_widened, write_into, writes_into_memory
from .text import Sizes, tuple_text

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Call:
    """A call of `overload` with the operands, converted to `compute`, which returns a `result`.

    `arguments` are the texts of the arguments after the operands; `dtype` is a requested dtype.
    """

    overload: OpOverload
    compute: tuple[DataType, ...]
    result: torch.dtype
    arguments: tuple[str, ...] = ()
    dtype: torch.dtype | None = None

    @property
    def gives_view(self) -> bool:
        """True if the result may share memory with an operand."""
        return any(given.alias_info is not None for given in self.overload._schema.returns)


def calls_of(segment: Segment) -> dict[Expr, Call | None] | None:
    """The call that computes each expression with a tensor.

    It is None for a view, a copy, a filled tensor and a library operation, which are written
    differently.  Returns None if an expression has no direct call.
    """
    found: dict[Expr, Call | None] = {}
    for expr in segment.exprs:
        if not expr.tensor_outputs:
            continue
        if _drops_expanded(expr):
            return None
        is_call = not (is_shown(expr) or isinstance(expr, FullOp | LibraryOp))
        found[expr] = _call(expr) if is_call else None
        if found[expr] is None and is_call:
            return None
    return found


def _drops_expanded(expr: Expr) -> bool:
    """True for a squeeze of an expanded axis, which may have no element that a view could show."""
    if not isinstance(expr, SqueezeOp):
        return False
    (source,) = expr.tensor_inputs
    return any(axis.is_expanded for axis, flag in zip(source.axes, expr.flags, strict=True) if flag)


def is_shown(expr: Expr | None) -> bool:
    """True if the elements of the output are those of the input, unchanged."""
    return is_shown_by_strides(expr) or is_copy(expr)


def shown_from(tensor: TensorView, inputs: Collection[Val]) -> list[Expr] | None:
    """The expressions that make a tensor a view of one of the inputs, in order.

    None if it is computed.
    """
    found: list[Expr] = []
    value: Val = tensor
    while value not in inputs:
        expr = value.expr
        if expr is None or not is_shown(expr):
            return None
        found.append(expr)
        value = expr.inputs[0]
    return found[::-1]


def shown_text(expr: Expr, source: str, size: Callable[[IntExpr], str]) -> str:
    """The text of the view `expr` of a source; `size` gives the text of a size."""
    output = expr.tensor_outputs[0]
    match expr:
        case BroadcastOp(flags=flags):
            return source + "".join(f".unsqueeze({d})" for d, flag in enumerate(flags) if flag)
        case SqueezeOp(flags=flags):
            dropped = [d for d, flag in enumerate(flags) if flag]
            return source + "".join(f".select({d}, 0)" for d in reversed(dropped))
        case PermuteOp(dims=dims):
            return f"{source}.permute({tuple_text([str(d) for d in dims])})"
        case ExpandOp():
            return f"{source}.expand({tuple_text([size(axis.size) for axis in output.axes])})"
        case ReshapeOp():
            return f"{source}.reshape({tuple_text([size(axis.size) for axis in output.axes])})"
        case WindowOp(windows=windows):
            return f"{source}[{', '.join(_slice_text(window, size) for window in windows)}]"
        case PointwiseOp():
            return source
    raise InternalError(expected("plan", "an expression that shows its input", expr.name))


def _slice_text(window: Window | None, size: Callable[[IntExpr], str]) -> str:
    """The text of the part of an axis that a window without a fill shows."""
    if window is None:
        return ":"
    end = window.offset + window.step * window.stop
    return f"{size(window.offset)}:{size(end)}:{size(window.step)}"


def _call(expr: Expr) -> Call | None:
    """The call that computes an expression; None if there is none."""
    output = expr.output
    if not isinstance(output, TensorView) or may_refuse(expr):
        return None
    # An expanded tensor has one shape where it is stored and another where it is read.
    if any(axis.size is not axis.extent for axis in output.axes):
        return None
    match expr:
        case PointwiseOp(op="cast"):
            return _cast(expr.inputs[0].dtype, output.dtype)
        case PointwiseOp():
            compute = tuple(resolve_expr(expr).compute)
            overload = overload_of(OPS[expr.op], compute[-1])
            if overload is not None:
                return Call(overload, compute, _result(overload, compute))
        case ReductionOp(op="sum") if dims := reduced_dims(output):
            dtype = to_torch(expr.inputs[0].dtype)
            compute, places = (expr.inputs[0].dtype,), (str(list(dims)),)
            return Call(aten.sum.dim_IntList, compute, dtype, places, dtype)
        case ScanOp(op=op, dim=dim, is_reversed=False) if aten_name := SCANS[op].aten:
            dtype, scan = to_torch(output.dtype), getattr(aten, aten_name).default
            return Call(scan, (output.dtype,), dtype, (str(dim),), dtype)
    return None


def _cast(source: DataType, target: DataType) -> Call:
    dtype = to_torch(target)
    if source in COMPLEX and target not in (*COMPLEX, DataType.Bool):
        return Call(aten.real.default, (source,), dtype)
    return Call(aten._to_copy.default, (source,), dtype, dtype=dtype)


def _result(overload: OpOverload, compute: tuple[DataType, ...]) -> torch.dtype:
    """The dtype of a call's result."""
    operands = [torch.empty((), dtype=to_torch(dtype), device="meta") for dtype in compute]
    dtype: torch.dtype = overload(*operands).dtype
    return dtype


@functools.cache
def overload_of(op: Op, dtype: DataType) -> OpOverload | None:
    """The ATen overload equal to a row for operands computed in a dtype, or None."""
    name = op.aten if dtype in (*FLOATING, *COMPLEX) else None
    if name is None:
        name = getattr(op.reference, "__name__", "")
        if getattr(torch, name, None) is not op.reference:
            return None
    packet = getattr(aten, name)
    for each in packet.overloads():
        overload: OpOverload = getattr(packet, each)
        given = [a for a in overload._schema.arguments if not a.has_default_value()]
        returned = overload._schema.returns
        if any(a.is_out or a.kwarg_only for a in given) or len(given) != op.arity:
            continue
        if all(str(value.type) == "Tensor" for value in (*given, *returned)):
            return overload
    return None


class PlanValues(Protocol):
    """The values of a program in a plan: the interface of the plan writer to a part."""

    @property
    def sizes(self) -> Sizes:
        """The texts of sizes."""

    @property
    def device(self) -> torch.device:
        """The device of the program's tensors."""

    def allocate(self, tensor: TensorView) -> str:
        """Allocates the runtime's memory for a tensor; returns its name."""

    def put(self, tensor: TensorView, text: str) -> str:
        """Assigns an expression to a tensor's name, which it returns."""

    def has(self, tensor: TensorView) -> bool:
        """True if a tensor exists."""

    def drop(self, tensors: Sequence[TensorView]) -> None:
        """Deletes tensors that are no longer read."""

    def plain_tensor(self, value: Val) -> str:
        """An expression for a tensor, as torch sees it."""

    def scalar(self, scalar: Scalar) -> str:
        """The text of a number."""

    def strides(self, tensor: TensorView) -> str:
        """The strides of a tensor, if it is stored whole."""

    def is_stored_whole(self, tensor: TensorView) -> bool:
        """False if memory has one element along an axis that has more."""


class TorchPart:
    """Writes one segment, as views or as library calls."""

    def __init__(self, values: PlanValues, library: LibraryCalls, segment: Segment) -> None:
        self.values, self.library, self.segment = values, library, segment

    def write_views(self, gives_views: bool) -> bool:
        """Writes outputs that are views of an input, or have no elements.

        Without `gives_views` each gets its own memory.  Returns False if they can't be written.
        """
        outputs = self.segment.outputs
        if not all(self.values.is_stored_whole(tensor) for tensor in outputs):
            return False
        for tensor in outputs:
            exprs = shown_from(tensor, self.segment.inputs)
            if exprs is None:  # without elements: there is nothing to compute
                self.values.allocate(tensor)
                continue
            text = self.values.plain_tensor(exprs[0].inputs[0] if exprs else tensor)
            for expr in exprs:
                text = shown_text(expr, text, self.values.sizes.text)
            has_order = tensor.domain.allocation is not None
            if has_order or not gives_views or any(map(is_copy, exprs)):
                self._copy(tensor, text)
            else:
                self.values.put(tensor, text)
        return True

    def write_calls(self) -> bool:
        """Writes one call of torch after the other; False if an expression has none."""
        calls = calls_of(self.segment)
        if calls is None or not all(map(self.values.is_stored_whole, self.segment.outputs)):
            return False
        between = []
        for expr, call in calls.items():
            tensors = expr.tensor_outputs
            inside = [t for t in tensors if t not in self.segment.outputs]
            # Another part's output costs nothing to repeat.
            if len(inside) == len(tensors) and all(map(self.values.has, tensors)):
                continue
            between += inside
            if call is not None:
                self._write_call(tensors[0], expr, call)
            elif isinstance(expr, LibraryOp):
                self._write_operation(expr)
            elif inside:
                self.values.put(tensors[0], self._shown(expr))
            else:
                self._copy(tensors[0], self._shown(expr))
        self.values.drop(between)
        return True

    def _shown(self, expr: Expr) -> str:
        """The text of a view, or of a number that is expanded."""
        size, output = self.values.sizes.text, expr.tensor_outputs[0]
        if isinstance(expr, FullOp):
            assert isinstance(expr.inputs[0], Scalar)
            number = self._number(expr.inputs[0], output.dtype)
            return f"{number}.expand({tuple_text([size(axis.size) for axis in output.axes])})"
        return shown_text(expr, self.values.plain_tensor(expr.inputs[0]), size)

    def _write_operation(self, expr: LibraryOp) -> None:
        """A library operation; its results have the strides of their tensors."""
        library, tensors = self.library, expr.tensor_outputs
        texts = {
            name: self.values.scalar(value)
            if isinstance(value, Scalar)
            else self.values.plain_tensor(value)
            for name, value in zip(expr.names, expr.inputs, strict=True)
        }
        widened = is_widened(expr, self.values.device)
        if writes_into_memory(expr) and not widened:
            write_into(library, expr, texts, [self.values.allocate(t) for t in tensors])
            return
        text = call_text(library, expr, texts, widened)
        if len(tensors) == 1:
            names = [self.values.put(tensors[0], text)]
        else:
            results = f"results_of_t{tensors[0].name}"
            library.writer.line(f"{results} = {text}")
            names = [self.values.put(t, f"{results}[{n}]") for n, t in enumerate(tensors)]
            library.writer.line(f"del {results}")
        for name, tensor in zip(names, tensors, strict=True):
            if tensor.axes:
                library.require_strides(name, self.values.strides(tensor))

    def _copy(self, tensor: TensorView, text: str) -> None:
        """Copies the value of an expression into its own memory."""
        self.library.writer.line(f"{self.values.allocate(tensor)}.copy_({text})")

    def _write_call(self, tensor: TensorView, expr: Expr, call: Call) -> None:
        library, dtype = self.library, to_torch(tensor.dtype)
        arguments = [*map(self._operand, expr.inputs, call.compute), *call.arguments]
        if call.dtype is not None:
            arguments.append(f"dtype={library.writer.dtype(call.dtype)}")
        text = f"{library.function(call.overload)}({', '.join(arguments)})"
        into = overload_into(call.overload) if call.result is dtype else None
        if into is not None:
            library.call_into(self.values.allocate(tensor), into, arguments)
        elif call.gives_view:
            self._copy(tensor, text)
        else:
            same = "" if call.result is dtype else f".to({library.writer.dtype(dtype)})"
            name = self.values.put(tensor, text + same)
            if len(tensor.axes) >= 2:
                library.require_strides(name, self.values.strides(tensor))

    def _operand(self, value: Val, dtype: DataType) -> str:
        """An expression for an operand as a tensor of a dtype; numbers have no dimensions."""
        kind = to_torch(dtype)
        if isinstance(value, Scalar):
            return self._number(value, dtype)
        text = self.values.plain_tensor(value)
        return text if value.dtype is dtype else f"{text}.to({self.library.writer.dtype(kind)})"

    def _number(self, value: Scalar, dtype: DataType) -> str:
        """A number as a tensor; a constant is made once, with the plan."""
        writer, kind, device = self.library.writer, to_torch(dtype), self.values.device
        if value.constant is not None:
            number = torch.tensor(convert_number(value.constant, dtype), dtype=kind, device=device)
            return writer.constant(f"f_number{value.name}_{dtype.name}", number)
        convert = writer.constant("convert_number", convert_number)
        target = writer.constant(f"dtype_{dtype.name}", dtype)
        number_text = f"{convert}({self.values.scalar(value)}, {target})"
        where = f"dtype={writer.dtype(kind)}, device={writer.constant('device', device)}"
        return f"{self.library.function(aten.full.default)}((), {number_text}, {where})"
