"""`fd.ops`: the operations of the interface, acting on the active fusion.

Each function is a builder of `pyfuser.ops.builders` under the interface's name and with its
argument names; the functions of the op table are made from its rows.  All return a tensor if an
operand is one, otherwise a scalar.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..dtypes import DataType
from ..errors import ArgumentTypeError, DefinitionError, expected
from ..ir.vals import PythonNumber, Scalar, TensorView, Val
from ..ops import builders
from ..ops.pointwise import require_dtype
from ..ops.table import OPS, REDUCTIONS, SCANS
from .arguments import with_plain_arguments
from .guard import fusion_to_define

Dims = int | Sequence[int] | None
Shape = Sequence[int | Scalar]


def cast(arg: Val | PythonNumber, dtype: DataType) -> Val:
    """The operand converted to `dtype`."""
    return builders.cast(fusion_to_define("cast").graph, arg, dtype)


def broadcast(arg: Val, is_broadcast_dim: Sequence[bool]) -> TensorView:
    """New axes of size 1 where `is_broadcast_dim` is True."""
    return builders.broadcast(fusion_to_define("broadcast").graph, arg, is_broadcast_dim)


def broadcast_in_dim(arg: Val, shape: Shape, broadcast_dims: Sequence[int]) -> TensorView:
    """A tensor of this shape, with dimension i of `arg` at `broadcast_dims[i]`."""
    graph = fusion_to_define("broadcast_in_dim").graph
    return builders.broadcast_in_dim(graph, arg, shape, broadcast_dims)


def expand(arg: Val, shape: Shape) -> TensorView:
    """Axes of size 1 repeated to this shape; -1 keeps a size."""
    return builders.expand(fusion_to_define("expand").graph, arg, shape)


def permute(arg: Val, dims: Sequence[int]) -> TensorView:
    """Dimension i of the result is dimension `dims[i]`."""
    return builders.permute(fusion_to_define("permute").graph, arg, dims)


def squeeze(arg: Val, dims: Sequence[int], squeeze_expanded: bool = False) -> TensorView:
    """The tensor without these dimensions of size 1."""
    return builders.squeeze(fusion_to_define("squeeze").graph, arg, dims, squeeze_expanded)


def reshape(arg: Val, new_shape: Shape) -> TensorView:
    """The same elements under another shape; one size may be -1."""
    return builders.reshape(fusion_to_define("reshape").graph, arg, new_shape)


def full(shape: Shape, fill_value: Val | PythonNumber, dtype: DataType) -> TensorView:
    """A tensor filled with one value."""
    require_dtype("full", dtype)
    return builders.full(fusion_to_define("full").graph, shape, fill_value, dtype)


def iota(
    length: int | Scalar,
    start: Val | PythonNumber | None = None,
    step: Val | PythonNumber | None = None,
    dtype: DataType = DataType.Int,
) -> TensorView:
    """start, start + step, ..., `length` of them."""
    require_dtype("iota", dtype)
    return builders.iota(fusion_to_define("iota").graph, length, start, step, dtype)


def size(arg: Val, dim: int) -> Scalar:
    """The size of a dimension."""
    return builders.size(fusion_to_define("size").graph, arg, dim)


def shape(arg: Val) -> list[Scalar]:
    """The sizes of all dimensions."""
    return builders.shape(fusion_to_define("shape").graph, arg)


def stride_order(arg: Val, stride_order: Sequence[int]) -> TensorView:
    """A copy laid out in this order: rank-1 is the outermost dimension, 0 the innermost."""
    return builders.stride_order(fusion_to_define("stride_order").graph, arg, stride_order)


def slice(
    arg: Val,
    start_indices: Shape,
    end_indices: Shape,
    strides: Shape | None = None,
    manual_normalization: bool = False,
) -> TensorView:
    """arg[start:end:stride] along each dimension; bounds are clamped in any case.

    A negative start, or an end before the start, is an error if both are numbers.
    """
    graph = fusion_to_define("slice").graph
    _check_bounds(start_indices, end_indices)
    return builders.slice(graph, arg, start_indices, end_indices, strides)


def _check_bounds(starts: Shape, ends: Shape) -> None:
    """Raises nvFuser's errors for numbers.

    Torch's rules, by which negative bounds count from the end, are the builder's.  Bounds that are
    only known when the fusion runs are clamped.
    """
    known = [[e.constant if isinstance(e, Scalar) else e for e in each] for each in (starts, ends)]
    if any(isinstance(start, int) and start < 0 for start in known[0]):
        hint = "Slice operation start_indices must be greater than or equal to 0."
        raise DefinitionError(expected("slice", "no negative start", list(starts), hint))
    for start, end in zip(*known, strict=False):
        if isinstance(start, int) and isinstance(end, int) and end < start:
            what = f"an end of at least {start}"
            hint = "Slice operation end_indices must be greater than or equal to start_indices."
            raise DefinitionError(expected("slice", what, end, hint))


def pad(arg: Val, pad_widths: Shape, value: Val | PythonNumber | None = None) -> TensorView:
    """`value` (0) around the tensor; pairs of widths from the last dimension on."""
    return builders.pad(fusion_to_define("pad").graph, arg, pad_widths, value)


def cat(tensors: Sequence[Val], dim: int = 0, manual_padding: bool = False) -> TensorView:
    """The tensors side by side along a dimension."""
    return builders.cat(fusion_to_define("cat").graph, tensors, dim)


def flip(arg: Val, dims: Sequence[int]) -> TensorView:
    """The tensor with its elements in the opposite order along these dimensions."""
    return builders.flip(fusion_to_define("flip").graph, arg, dims)


def slice_scatter(
    arg: Val,
    src: Val,
    dim: int = 0,
    start: int | Scalar | None = None,
    end: int | Scalar | None = None,
    step: int = 1,
) -> TensorView:
    """`arg` with arg[start:end] along a dimension replaced by `src`."""
    graph = fusion_to_define("slice_scatter").graph
    return builders.slice_scatter(graph, arg, src, dim, start, end, step)


def index(arg: Val, index: Val | Sequence[Val], dim: int | Sequence[int]) -> TensorView:
    """The slices of a dimension selected by an index of any rank; negatives count from the end.

    With several indices, the points of the dimensions from `dim` on, or of those that it lists.
    """
    return builders.index(fusion_to_define("index").graph, arg, index, dim)


def index_select(arg: Val, index: Val, dim: int) -> TensorView:
    """The slices of a dimension selected by an index."""
    return builders.index_select(fusion_to_define("index_select").graph, arg, index, dim)


def select(arg: Val, index: Val | int, dim: int) -> TensorView:
    """One slice of a dimension, without the dimension."""
    return builders.select(fusion_to_define("select").graph, arg, index, dim)


def gather(arg: Val, index: Val, dim: int) -> TensorView:
    """The elements of a dimension selected by an index of the same rank."""
    return builders.gather(fusion_to_define("gather").graph, arg, index, dim)


def scatter(
    arg: Val, index: Val, src: Val | PythonNumber, dim: int, how: str = "set"
) -> TensorView:
    """`arg` with the elements of `src` at the positions of a dimension that the index says.

    With `how`, the name of a reduction, they are combined with the elements that are there.
    """
    return builders.scatter(fusion_to_define("scatter").graph, arg, index, src, dim, how)


def take_along_axis(arg: Val, index: Val, dim: int) -> TensorView:
    """`gather`, with operands that broadcast along the other dimensions."""
    return builders.take_along_axis(fusion_to_define("take_along_axis").graph, arg, index, dim)


def embedding_fwd(
    input: Val,
    weight: Val,
    padding_idx: Val | int | None = None,
    max_norm: Val | PythonNumber | None = None,
    norm_type: Val | PythonNumber | None = None,
    scale_grad_by_freq: Val | bool | None = None,
    sparse: Val | bool | None = None,
) -> TensorView:
    """The rows of `weight` selected by `input`, scaled down to `max_norm`; no gradients."""
    graph = fusion_to_define("embedding_fwd").graph
    return builders.embedding_fwd(graph, input, weight, padding_idx, max_norm, norm_type)


def triu(arg: Val, diagonal: Val | int = 0) -> TensorView:
    """The tensor with 0 below a diagonal of its last two dimensions."""
    return builders.triu(fusion_to_define("triu").graph, arg, diagonal)


def matmul(arg1: Val, arg2: Val) -> TensorView:
    """The matrix product, with torch's rules for vectors and batches."""
    return builders.matmul(fusion_to_define("matmul").graph, arg1, arg2)


def linear(arg1: Val, arg2: Val, bias: Val | None = None) -> TensorView:
    """arg1 @ arg2.T + bias."""
    return builders.linear(fusion_to_define("linear").graph, arg1, arg2, bias)


def argsort(arg: Val, dim: int, descending: bool = False, stable: bool = False) -> TensorView:
    """The indices that sort the tensor along a dimension."""
    return builders.argsort(fusion_to_define("argsort").graph, arg, dim, descending, stable)


def topk(
    arg: Val, k: Val | int, dim: int = -1, largest: bool = True, sorted: bool = False
) -> tuple[TensorView, TensorView]:
    """(values, indices) of the k largest or smallest elements along a dimension."""
    return builders.topk(fusion_to_define("topk").graph, arg, k, dim, largest, sorted)


def uniform(
    minval: Val | PythonNumber,
    maxval: Val | PythonNumber,
    shape: Shape,
    *,
    rng_seed: Val | int | None = None,
    rng_offset: Val | int | None = None,
    dtype: DataType = DataType.Float,
) -> TensorView:
    """Numbers in [minval, maxval); the same for the same seed and offset."""
    graph = fusion_to_define("uniform").graph
    return builders.uniform(graph, minval, maxval, shape, rng_seed, rng_offset, dtype)


def normal(
    mean: Val | PythonNumber,
    std: Val | PythonNumber,
    shape: Shape,
    *,
    rng_seed: Val | int | None = None,
    rng_offset: Val | int | None = None,
    dtype: DataType = DataType.Float,
) -> TensorView:
    """Normally distributed numbers; the same for the same seed and offset."""
    graph = fusion_to_define("normal").graph
    return builders.normal(graph, mean, std, shape, rng_seed, rng_offset, dtype)


def rand_like(x: Val) -> TensorView:
    """Numbers in [0, 1) with the tensor's shape and dtype."""
    return builders.rand_like(fusion_to_define("rand_like").graph, x)


def randn_like(x: Val) -> TensorView:
    """Standard normal numbers with the tensor's shape and dtype."""
    return builders.randn_like(fusion_to_define("randn_like").graph, x)


def var(
    arg: Val, dims: Sequence[int], correction: PythonNumber | Val = 1, keepdim: bool = False
) -> TensorView:
    """The variance over `dims`."""
    return builders.var(fusion_to_define("var").graph, arg, dims, correction, keepdim)


def var_mean(
    arg: Val, dims: Sequence[int], correction: PythonNumber | Val = 1, keepdim: bool = False
) -> tuple[TensorView, TensorView]:
    """(variance, mean) over `dims`."""
    return builders.var_mean(fusion_to_define("var_mean").graph, arg, dims, correction, keepdim)


def welford(arg: Val, dims: Sequence[int]) -> tuple[TensorView, TensorView, TensorView]:
    """(mean, sum of squared deviations, count) over `dims`."""
    return builders.welford(fusion_to_define("welford").graph, arg, dims)


# The interface's argument names, where they differ from the default for an op's arity.
_ARGUMENTS = {1: ("x",), 2: ("lhs", "rhs")}
_NAMED_ARGUMENTS = {
    "addcmul": ("a", "b", "c", "alpha"),
    "checked_class": ("x", "classes"),
    "checked_index": ("x", "size", "dim"),
    "checked_place": ("x", "size", "dim"),
    "checked_target": ("x", "classes", "ignored"),
    "clamp": ("x", "min", "max"),
    "complex": ("real", "imag"),
    "lerp": ("start", "end", "weight"),
    "threshold": ("x", "thr", "value"),
    "where": ("cond", "x", "y"),
}


def _pointwise(name: str) -> Callable[..., Val]:
    names = _NAMED_ARGUMENTS.get(name) or _ARGUMENTS[OPS[name].arity]

    def function(*operands: Val | PythonNumber, **named: Val | PythonNumber) -> Val:
        if named:
            missing = [n for n in names[len(operands) :] if n not in named]
            if missing or len(named) + len(operands) != len(names):
                raise ArgumentTypeError(expected(name, f"operands {names}", sorted(named)))
            operands += tuple(named[n] for n in names[len(operands) :])
        if len(operands) != len(names):
            raise ArgumentTypeError(expected(name, f"operands {names}", len(operands)))
        return builders.pointwise(fusion_to_define(name).graph, name, *operands)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{name}({', '.join(names)}): {OPS[name].doc}."
    return function


def _reduction(name: str) -> Callable[..., TensorView]:
    def function(
        arg: Val,
        dims: Dims = None,
        keepdim: bool = False,
        dtype: DataType = DataType.Null,
        *,
        dim: int | None = None,
    ) -> TensorView:
        over = dims if dim is None else dim
        if isinstance(over, (DataType, torch.dtype)):  # the form (arg, dtype)
            over, dtype = None, over  # checked next
        require_dtype(name, dtype)
        graph = fusion_to_define(name).graph
        return builders.reduce(graph, name, arg, over, keepdim, dtype)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{REDUCTIONS[name].doc} over `dims` (all by default)."
    return function


def _scan(name: str) -> Callable[..., TensorView]:
    def function(
        arg: Val, dim: int, init: Val | PythonNumber | None = None, *, reverse: bool = False
    ) -> TensorView:
        graph = fusion_to_define(name).graph
        made: TensorView = builders.BUILDERS[name](graph, arg, dim, init, reverse)
        return made

    function.__name__ = function.__qualname__ = name
    doc = f"The {SCANS[name].doc}, of each element, those before it along `dim`, and `init`;"
    function.__doc__ = f"{doc} with `reverse`, of those after it."
    return function


def _built(name: str) -> Callable[..., Any]:
    """A builder that has the interface's argument names."""
    builder = builders.BUILDERS[name]

    def function(*operands: Any, **named: Any) -> Any:
        return builder(fusion_to_define(name).graph, *operands, **named)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = builder.__doc__
    signature = inspect.signature(builder)
    parameters = list(signature.parameters.values())[1:]
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return function


_BUILT = (
    "grouped_mm", "index_put", "scaled_mm", "sdpfa_bwd", "sdpfa_fwd",
    *builders.DEVICE_ONLY,
)  # fmt: skip

_SHAPED = (
    cast, broadcast, broadcast_in_dim, expand, permute, squeeze, reshape, full, iota, size, shape,
    stride_order, slice, flip, pad, cat, slice_scatter, index, index_select, select, gather,
    scatter, take_along_axis, embedding_fwd, matmul, linear, argsort, topk, triu, uniform, normal,
    rand_like, randn_like, var, var_mean, welford,
)  # fmt: skip

_MADE: tuple[Callable[..., Any], ...] = (
    *(_pointwise(name) for name in OPS if name != "cast"),
    *(_reduction(name) for name in REDUCTIONS),
    *(_scan(name) for name in SCANS),
    *(_built(name) for name in _BUILT),
    *_SHAPED,
)

FUNCTIONS = {function.__name__: with_plain_arguments(function) for function in _MADE}
globals().update(FUNCTIONS)


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, FUNCTIONS, 3)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return expected("ops", "the name of an operation", repr(name), f"{hint}`pyfuser ops` lists all")


def __getattr__(name: str) -> Callable[..., Any]:
    """Raises AttributeError, with names that are near; the functions are attributes."""
    raise AttributeError(_unknown(name))


def __dir__() -> list[str]:
    return sorted(FUNCTIONS)
