"""The eager evaluator: computes a fusion with torch, one expression at a time.

It is the oracle of the tests (with `dtype_override=torch.float64`, in higher precision) and the
fallback if a kernel can't be compiled.  The meaning of an op is its row of the op table; dtype,
layout, aliases and hidden outputs of the results are the same as the executor's.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch

from ..dtypes import COMPLEX, FLOATING, REDUCED_FLOATING, DataType, to_torch
from ..errors import InternalError, UnsupportedError, expected
from ..ir.domains import IterDomain
from ..ir.exprs import (
    VIEWS,
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
from ..ir.fusion import Fusion
from ..ir.scalars import ONE
from ..ir.strides import inverse
from ..ir.vals import Scalar, TensorView, Val
from ..ir.windows import Window
from .binding import Binding, Input, bind, bind_extents, convert_number
from .checking import check_index, check_op, check_shorter, may_refuse
from .library_ops import LIBRARY_OPS
from .metadata import device_of, filled_in, is_cpu_scalar
from .pointwise import resolve_expr
from .random_numbers import random
from .random_state import with_random_state
from .table import OPS, REDUCTIONS, SCANS


def evaluate(
    fusion: Fusion,
    inputs: Sequence[Input],
    dtype_override: torch.dtype | None = None,
    keep_rounding: bool = False,
    views: bool = False,
    updates: bool = True,
) -> list[torch.Tensor]:
    """The outputs of the fusion for these inputs, computed by torch.

    With `dtype_override` every floating tensor is computed and returned in that dtype (scalars are
    still those of the definition, rounded to the dtypes in which it uses them), and `keep_rounding`
    still rounds where the definition casts to Half or BFloat16.  Outputs that alias an input update
    it and, if hidden, aren't returned; without `updates` they are ordinary tensors.  With `views`,
    an output that is a view of an input shares its memory.  Raises InputError for wrong inputs.
    """
    inputs = with_random_state(fusion, inputs)
    binding = bind(fusion, inputs)
    with torch.no_grad():
        evaluator = Evaluator(fusion, inputs, binding, dtype_override, keep_rounding)
        for expr in fusion.live_exprs():
            evaluator.run(expr)
        return evaluator.results(inputs, views) if updates else evaluator.computed(inputs)


def raise_refused(fusion: Fusion, inputs: Sequence[Input]) -> None:
    """Raises torch's error for these inputs, if there is one.

    Computes only the operands of expressions that may refuse.
    """
    exprs = fusion.live_exprs()
    needed: set[Val] = set()
    for expr in reversed(exprs):
        if may_refuse(expr) or not needed.isdisjoint(expr.outputs):
            needed.update((*expr.inputs, *expr.outputs))
    evaluator = Evaluator(fusion, inputs, bind(fusion, inputs), None, False)
    with torch.no_grad():
        for expr in exprs:
            if not needed.isdisjoint(expr.outputs):
                evaluator.run(expr)


class Evaluator:
    """The values of one evaluation, computed expression by expression."""

    def __init__(
        self,
        fusion: Fusion,
        inputs: Sequence[Input],
        binding: Binding,
        dtype_override: torch.dtype | None,
        keep_rounding: bool,
    ) -> None:
        self.fusion, self.binding = fusion, binding
        self.dtype_override, self.keep_rounding = dtype_override, keep_rounding
        self.values: dict[Val, torch.Tensor] = {}
        self.device = device_of(inputs)
        for value, given in zip(fusion.inputs, inputs, strict=True):
            if isinstance(given, torch.Tensor):
                self.give(value, given)

    def give(self, value: Val, given: torch.Tensor) -> None:
        """Sets the tensor of an input."""
        plain = given.detach().resolve_conj().resolve_neg()
        if is_cpu_scalar(plain) and self.device != plain.device:
            plain = filled_in(plain, self.device)
        self.values[value] = plain.to(self.torch_dtype(value.dtype))

    def torch_dtype(self, dtype: DataType) -> torch.dtype:
        """The torch dtype that values of `dtype` have in this evaluation."""
        if self.dtype_override is not None and dtype in FLOATING:
            return self.dtype_override
        try:
            return to_torch(dtype)
        except KeyError:
            raise UnsupportedError(expected("evaluate", "a dtype of torch", dtype)) from None

    def sizes(self, tensor: TensorView) -> list[int]:
        """The shape of a tensor."""
        return [self.binding.size(axis.size) for axis in tensor.axes]

    def operand(self, value: Val, dtype: DataType) -> torch.Tensor:
        """A value as a tensor of `dtype`; scalars as 0-dim tensors."""
        if isinstance(value, Scalar) and value not in self.values:
            number = convert_number(self.binding.scalar(value), dtype)
            made = torch.tensor(number, dtype=self.torch_dtype(dtype), device="cpu")
            return made if self.device == made.device else filled_in(made, self.device)
        return self.values[value].to(self.torch_dtype(dtype))

    def run(self, expr: Expr) -> None:
        """Computes the outputs of one expression."""
        if isinstance(expr.output, Scalar):
            return  # binding computed it
        results: tuple[torch.Tensor, ...]
        match expr:
            case WelfordOp():
                results = self.welford(expr)
            case LibraryOp():
                results = self.library(expr)
            case _:
                results = (self.compute(expr),)
        for output, result in zip(expr.outputs, results, strict=True):
            self.values[output] = result.to(self.torch_dtype(output.dtype))

    def compute(self, expr: Expr) -> torch.Tensor:
        """The value of an expression with one output."""
        output = expr.output
        assert isinstance(output, TensorView)
        match expr:
            case PointwiseOp():
                return self.pointwise(expr)
            case ReductionOp(op=op):
                return REDUCTIONS[op].reference(self.values[expr.inputs[0]], reduced_dims(output))
            case ScanOp():
                return self.scan(expr, output)
            case FullOp():
                return self.operand(expr.inputs[0], output.dtype).expand(self.sizes(output))
            case IotaOp():
                start, step = (self.operand(value, output.dtype) for value in expr.inputs)
                count = torch.arange(self.sizes(output)[0], device=self.device)
                return start + step * count.to(self.torch_dtype(output.dtype))
            case RandomOp():
                return self.random(expr, output)
            case WindowOp():
                return self.window(expr, output)
            case GatherOp():
                return self.gathered(expr)
            case IndexedWrite():
                return self.scattered(expr)
            case _:
                return self.reshaped(expr, self.values[expr.inputs[0]], output)

    def pointwise(self, expr: PointwiseOp) -> torch.Tensor:
        """One row of the op table."""
        output = expr.output
        if OPS[expr.op].is_copy:
            return self.values[expr.inputs[0]]
        resolution = resolve_expr(expr)
        operands = [
            self.operand(value, dtype)
            for value, dtype in zip(expr.inputs, resolution.compute, strict=True)
        ]
        if expr.op != "cast":
            check_op(OPS[expr.op], operands, resolution)
            return OPS[expr.op].reference(*operands)
        is_dropped = operands[0].is_complex() and output.dtype not in (*COMPLEX, DataType.Bool)
        source = operands[0].real if is_dropped else operands[0]
        if self.keep_rounding and output.dtype in REDUCED_FLOATING:
            return source.to(to_torch(output.dtype))
        return source

    def scan(self, expr: ScanOp, output: TensorView) -> torch.Tensor:
        """A scan, rounded where the definition has half precision."""
        source, dims = self.values[expr.inputs[0]], [expr.dim] * expr.is_reversed
        made = SCANS[expr.op].reference(source.flip(dims), expr.dim).flip(dims)
        is_rounded = self.keep_rounding and output.dtype in REDUCED_FLOATING
        return made.to(to_torch(output.dtype)) if is_rounded else made

    def library(self, expr: LibraryOp) -> tuple[torch.Tensor, ...]:
        """The results of a library operation, rounded where the definition has half precision."""
        inputs = {
            name: self.binding.scalar(value) if isinstance(value, Scalar) else self.values[value]
            for name, value in zip(expr.names, expr.inputs, strict=True)
        }
        results = LIBRARY_OPS[expr.op].reference(**inputs, **dict(expr.options))
        made = results if isinstance(results, tuple) else (results,)
        if not self.keep_rounding:
            return made
        return tuple(
            result.to(to_torch(output.dtype)) if output.dtype in REDUCED_FLOATING else result
            for result, output in zip(made, expr.outputs, strict=True)
        )

    def random(self, expr: RandomOp, output: TensorView) -> torch.Tensor:
        """The numbers of the definition's dtype, also if it is overridden."""
        seed, offset = (self.operand(value, DataType.Int) for value in expr.inputs)
        sizes = self.sizes(output)
        index = torch.arange(math.prod(sizes), device=self.device).reshape(sizes)
        return random(expr.distribution, seed, offset, index, output.dtype)

    def window(self, expr: WindowOp, output: TensorView) -> torch.Tensor:
        """The fill, with the source copied into its windows."""
        sizes = self.sizes(output)
        source = self.operand(expr.inputs[0], output.dtype)
        places = []
        for dim, window in enumerate(expr.windows):
            first, last, start, step = self.bounds(window, sizes[dim])
            every = 1 if window is None else self.binding.size(window.every)
            places.append(slice(first, last, every))
            if source.dim() and window is not None:
                count = len(range(first, last, every))
                end = start + step * max(count - 1, 0)
                part = slice(min(start, end), max(start, end) + (count > 0), abs(step))
                source = source[(slice(None),) * dim + (part,)]
                source = _flipped(source, dim) if step < 0 else source
            elif source.dim() and output.axes[dim].is_broadcast and sizes[dim] == 1:
                source = source.narrow(
                    dim, 0, min(source.shape[dim], 1)
                )  # may be expanded, to 0 too
        if len(expr.inputs) == 1:
            return source
        made = self.operand(expr.inputs[1], output.dtype).expand(sizes).clone()
        if source.numel():
            made[tuple(places)] = source
        return made

    def bounds(self, window: Window | None, size: int) -> tuple[int, int, int, int]:
        """(first, one past the last element of the output, first of the source, step)."""
        if window is None:
            return 0, size, 0, 1
        first = min(max(self.binding.size(window.left), 0), size)
        last = max(min(self.binding.size(window.stop), size), first)
        step = self.binding.size(window.step)
        if last == first:
            return first, last, 0, step
        before = first if window.every is ONE else 0
        return first, last, self.binding.size(window.offset) + step * before, step

    def gathered(self, expr: GatherOp) -> torch.Tensor:
        """The source's elements selected by the index."""
        source, index = (self.values[value] for value in expr.inputs)
        sizes = self.sizes(expr.tensor_outputs[0])
        if not index.is_meta:
            index = check_index(expr, index, self.sizes(expr.tensor_inputs[0])[expr.dim])
        places: list[torch.Tensor] = []
        for dim, axis in enumerate(expr.source_axes):
            shape = [1] * len(sizes)
            if axis is None:
                for size, position in zip(index.shape, expr.index_axes, strict=True):
                    shape[position] = size
                order = sorted(range(index.dim()), key=expr.index_axes.__getitem__)
                places.append(index.long().permute(order).reshape(shape))
            else:
                shape[axis] = 1 if source.shape[dim] == 1 else sizes[axis]
                places.append(torch.arange(shape[axis], device=self.device).reshape(shape))
        return source[tuple(places)].expand(sizes)

    def scattered(self, expr: IndexedWrite) -> torch.Tensor:
        """The base with the values written, or combined, in their order."""
        base, index, value = (self.values[operand] for operand in expr.inputs)
        made, sizes = base.clone(memory_format=torch.contiguous_format), list(value.shape)
        if not index.is_meta:
            index = check_index(expr, index, base.shape[expr.dim])
            check_shorter(expr, base.shape, sizes)
        place = torch.zeros((), dtype=torch.int64, device=self.device)
        for dim, axis in enumerate(expr.base_axes):
            shape = [1] * len(sizes)
            if axis is None:
                for size, position in zip(index.shape, expr.index_axes, strict=True):
                    shape[position] = size
                along = index.long().reshape(shape)
            else:
                shape[axis] = sizes[axis]
                along = torch.arange(sizes[axis], device=self.device).reshape(shape)
            place = place + along * made.stride(dim)
        places, values = place.expand(sizes).flatten(), value.flatten()
        # One axis, in whose order torch writes: the last of several values stays.
        flat = made.view(-1)
        if expr.how == "set":
            flat.scatter_(0, places, values)
        else:
            how = {"max": "amax", "min": "amin"}.get(expr.how, expr.how)
            flat.scatter_reduce_(0, places, values, how)
        return made

    def reshaped(self, expr: Expr, source: torch.Tensor, output: TensorView) -> torch.Tensor:
        """A view of the input in the output's shape."""
        match expr:
            case BroadcastOp(flags=flags):
                for dim, flag in enumerate(flags):
                    source = source.unsqueeze(dim) if flag else source
                return source
            case SqueezeOp(flags=flags):
                return _squeezed(source, [dim for dim, flag in enumerate(flags) if flag])
            case PermuteOp(dims=dims):
                return source.permute(dims)
            case ExpandOp():
                return source.expand(self.sizes(output))
            case ReshapeOp():
                return source.reshape(self.sizes(output))
            case _:
                raise InternalError(expected("evaluate", "a known expression", expr.name))

    def _is_view(self, output: TensorView) -> bool:
        """True if only views lead from an input to the output, which has no order of its own."""
        if output.domain.allocation is not None:
            return False
        value: Val = output
        while isinstance(value.expr, VIEWS):
            value = value.expr.inputs[0]
        return value is not output and value in self.fusion.inputs

    def welford(self, expr: WelfordOp) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(mean, squared deviations, count), accumulated in float64."""
        first = expr.outputs[0]
        assert isinstance(first, TensorView)
        dims = reduced_dims(first)
        mean = self.values[expr.inputs[0]].double()
        if len(expr.inputs) == 3:
            squares, count = (self.values[value].double() for value in expr.inputs[1:])
        else:
            squares, count = torch.zeros_like(mean), torch.ones_like(mean)
        total = count.sum(dims, keepdim=True)
        joined = (mean * count).sum(dims, keepdim=True) / total
        spread = (squares + count * (mean - joined) ** 2).sum(dims)
        return joined.squeeze(dims), spread, total.squeeze(dims)

    def results(self, inputs: Sequence[Input], views: bool = False) -> list[torch.Tensor]:
        """The outputs in their layouts, after the aliased inputs have been updated.

        With `views` an output that is only a view of an input shares its memory.
        """
        given = dict(zip(self.fusion.inputs, inputs, strict=True))
        made = self._made(inputs, views)
        for output, target in self.fusion.aliases.items():
            updated = given[target]
            assert isinstance(updated, torch.Tensor)
            updated.detach().copy_(made[output])
            made[output] = updated
        hidden = self.fusion.hidden_outputs
        return [made[output] for output in self.fusion.outputs if output not in hidden]

    def computed(self, inputs: Sequence[Input]) -> list[torch.Tensor]:
        """All outputs in their layouts; no input is updated."""
        made = self._made(inputs, views=False)
        return [made[output] for output in self.fusion.outputs]

    def _made(self, inputs: Sequence[Input], views: bool) -> dict[Val, torch.Tensor]:
        """The outputs in their layouts, each with its own memory except for views."""
        given = dict(zip(self.fusion.inputs, inputs, strict=True))
        owned = {_storage(t) for t in inputs if isinstance(t, torch.Tensor)}
        made: dict[Val, torch.Tensor] = {}
        for output in dict.fromkeys(self.fusion.outputs):
            source = given.get(output)
            if isinstance(source, torch.Tensor) and output not in self.fusion.aliases:
                made[output] = source
                continue
            assert isinstance(output, TensorView)
            value = self.values[output]
            if output.has_expanded_axis:
                # A tensor stored by another segment has one element along an expanded axis.
                value = value.expand(self.sizes(output))
            if views and output not in self.fusion.aliases and self._is_view(output):
                made[output] = value
                continue
            made[output] = with_layout(output, value, owned)
            owned.add(_storage(made[output]))
        return made


def reduced_dims(output: TensorView) -> tuple[int, ...]:
    """The dimensions of its input that a reduction's output doesn't have."""
    axes: Sequence[IterDomain] = output.domain.root_or_logical
    return tuple(dim for dim, axis in enumerate(axes) if axis.is_reduction)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _flipped(source: torch.Tensor, dim: int) -> torch.Tensor:
    """The elements in the opposite order; torch's own flip doesn't have all dtypes."""
    if source.dtype is not torch.uint64:
        return source.flip(dim)
    return source.view(torch.int64).flip(dim).view(torch.uint64)


def _squeezed(source: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """The first element along these dimensions; zeros if an expanded one has none.

    Nothing depends on the zeros: a sum multiplies them by the number of elements.
    """
    if any(source.shape[dim] == 0 for dim in dims):
        return source.new_zeros([n for dim, n in enumerate(source.shape) if dim not in dims])
    for dim in reversed(dims):
        source = source.select(dim, 0)
    return source


def with_layout(
    tensor: TensorView, value: torch.Tensor, taken: Collection[int] = ()
) -> torch.Tensor:
    """The value with the strides of an output: dense in the order of its allocation domain.

    A value that already has them is copied only if its storage is one of `taken`.  The result isn't
    a view to autograd, which refuses in-place changes to a view that a compiled graph returns.
    """
    order = tensor.domain.memory_order
    dense = value.permute(order).contiguous()
    if _storage(dense) in taken:
        dense = dense.clone()
    made = dense.permute(inverse(order))
    place = (made.untyped_storage(), made.storage_offset(), made.shape, made.stride())
    return made.new_empty(0).set_(*place)


__all__ = ["Evaluator", "bind_extents", "evaluate", "reduced_dims", "with_layout"]
