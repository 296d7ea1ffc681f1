"""Library builders: the operations that torch computes as a whole (library_ops.py).

Each makes one `LibraryOp`, whose results have fresh axes: where the sizes are those of an operand,
they have the same symbols.  Dtypes are torch's; a half-precision result isn't widened.  Sizes that
must be equal are recorded in `fusion.equal_extents`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..dtypes import COMPLEX, DataType, is_integer
from ..errors import ArgumentTypeError, DefinitionError, expected
from ..ir.domains import IterDomain
from ..ir.exprs import LibraryOp, Option
from ..ir.fusion import Fusion
from ..ir.scalars import ONE, IntExpr
from ..ir.vals import TensorView, Val
from .pointwise import (
    Argument,
    as_tensor,
    as_val,
    joined_axis,
    new_tensor,
    require_at_most,
    require_equal,
    size_of_scalar,
)
from .shape_builders import new_axis, wrapped_dim

Sizes = Sequence[IntExpr]


def library_op(
    fusion: Fusion,
    op: str,
    inputs: dict[str, Val | None],
    results: Sequence[tuple[Sizes, DataType]],
    **options: Option,
) -> tuple[TensorView, ...]:
    """Appends an operation with inputs by name (None is left out) and results' sizes and dtypes."""
    given = {name: value for name, value in inputs.items() if value is not None}
    outputs = tuple(
        new_tensor(fusion, [new_axis(fusion, size) for size in sizes], dtype)
        for sizes, dtype in results
    )
    named = tuple(options.items())
    fusion.add_expr(LibraryOp(tuple(given.values()), outputs, op, tuple(given), named))
    return outputs


def sizes_of(axes: Sequence[IterDomain]) -> list[IntExpr]:
    """The sizes of axes, as readers see them."""
    return [axis.size for axis in axes]


def library_dim(op: str, dim: int, tensor: TensorView) -> int:
    """A dimension in [0, rank); a tensor of rank 0 counts as one of rank 1."""
    rank = max(tensor.ndim, 1)
    return wrapped_dim(op, dim, rank)


def _require_numbers(op: str, tensor: TensorView) -> None:
    if tensor.dtype is DataType.Bool:
        raise DefinitionError(expected(op, "numbers", tensor.dtype))


# -- products


def _operands(fusion: Fusion, op: str, *operands: Val) -> list[TensorView]:
    """Tensors of one dtype, with at least one dimension."""
    tensors = [as_tensor(fusion, operand, op) for operand in operands]
    for tensor in tensors:
        _require_numbers(op, tensor)
        if not tensor.ndim:
            raise DefinitionError(expected(op, "operands of at least one dimension", "rank 0"))
        if tensor.dtype is not tensors[0].dtype:
            got = f"{tensors[0].dtype} and {tensor.dtype}"
            raise DefinitionError(expected(op, "operands of one dtype", got))
    return tensors


def matmul(fusion: Fusion, arg1: Val, arg2: Val) -> TensorView:
    """[..., m, k] @ [..., k, n] -> [..., m, n], with torch's rules for rank 1 and for batches."""
    a, b = _operands(fusion, "matmul", arg1, arg2)
    require_equal(fusion, "matmul", a.axes[-1].size, b.axes[max(b.ndim - 2, 0)].size)
    batch_a, batch_b = a.axes[:-2], b.axes[:-2]
    rank = max(len(batch_a), len(batch_b))
    sizes: list[IntExpr] = []
    for place in range(-rank, 0):
        column = [axes[place] for axes in (batch_a, batch_b) if -place <= len(axes)]
        sizes.append(joined_axis(fusion, "matmul", column).size)
    sizes += sizes_of(a.axes[-2:-1]) + (sizes_of(b.axes[-1:]) if b.ndim > 1 else [])
    return library_op(fusion, "matmul", {"arg1": a, "arg2": b}, [(sizes, a.dtype)])[0]


def linear(fusion: Fusion, arg1: Val, arg2: Val, bias: Val | None = None) -> TensorView:
    """[..., k] and [n, k] -> [..., n]: arg1 @ arg2.T + bias; [k] instead of [n, k] drops n."""
    a, weight = _operands(fusion, "linear", arg1, arg2)
    if weight.ndim > 2:
        raise DefinitionError(expected("linear", "a weight of rank 1 or 2", weight.ndim))
    require_equal(fusion, "linear", a.axes[-1].size, weight.axes[-1].size)
    if bias is not None:
        _check_bias(fusion, weight, bias)
    sizes = sizes_of(a.axes[:-1]) + sizes_of(weight.axes[:-1])
    inputs = {"arg1": a, "arg2": weight, "bias": bias}
    return library_op(fusion, "linear", inputs, [(sizes, a.dtype)])[0]


def _check_bias(fusion: Fusion, weight: TensorView, bias: Val) -> None:
    """A bias is [n], for a weight [n, k]."""
    tensor = as_tensor(fusion, bias, "linear")
    if weight.ndim != 2 or tensor.ndim != 1:
        got = f"rank {tensor.ndim} for a weight of rank {weight.ndim}"
        raise DefinitionError(expected("linear", "a bias [n] for a weight [n, k]", got))
    if tensor.dtype is not weight.dtype:
        raise DefinitionError(expected("linear", f"a bias of {weight.dtype}", tensor.dtype))
    require_equal(fusion, "linear", weight.axes[0].size, tensor.axes[0].size)


# -- orders


def _require_order(op: str, tensor: TensorView) -> None:
    if tensor.dtype in COMPLEX:
        raise DefinitionError(expected(op, "real numbers", tensor.dtype))


def argsort(
    fusion: Fusion, arg: Val, dim: int, descending: bool = False, stable: bool = False
) -> TensorView:
    """The indices that sort a tensor along `dim`, as Int."""
    tensor = as_tensor(fusion, arg, "argsort")
    _require_order("argsort", tensor)
    dim = library_dim("argsort", dim, tensor)
    results = [(sizes_of(tensor.axes), DataType.Int)]
    options = {"dim": dim, "descending": bool(descending), "stable": bool(stable)}
    return library_op(fusion, "argsort", {"arg": tensor}, results, **options)[0]


def topk(
    fusion: Fusion,
    arg: Val,
    k: Argument,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = False,
) -> tuple[TensorView, TensorView]:
    """(values, indices) of the k largest or smallest elements along `dim`; indices are Int."""
    tensor = as_tensor(fusion, arg, "topk")
    _require_order("topk", tensor)
    _require_numbers("topk", tensor)
    dim = library_dim("topk", dim, tensor)
    count = as_val(fusion, k, "topk")
    if isinstance(count, TensorView) or not is_integer(count.dtype):
        raise ArgumentTypeError(expected("topk", "an integer k", count))
    kept = size_of_scalar(fusion, "topk", count)
    sizes = sizes_of(tensor.axes)
    require_at_most(fusion, "topk", "a k", kept, sizes[dim] if sizes else ONE)
    if sizes:
        sizes[dim] = kept
    results = [(sizes, tensor.dtype), (sizes, DataType.Int)]
    options = {"dim": dim, "largest": bool(largest), "sorted": bool(sorted)}
    values, indices = library_op(fusion, "topk", {"arg": tensor, "k": count}, results, **options)
    return values, indices


# -- products of groups


def grouped_product(fusion: Fusion, mat1: Val, mat2: Val, offsets: Val) -> TensorView:
    """A product for each group, which ends at its offset; see `library_ops.grouped_mm`."""
    op = "grouped_mm"
    a, b = _operands(fusion, op, mat1, mat2)
    ends = as_tensor(fusion, offsets, op)
    if ends.ndim != 1 or ends.dtype not in (DataType.Int, DataType.Int32):
        got = f"rank {ends.ndim} of {ends.dtype}"
        raise DefinitionError(expected(op, "offsets of rank 1 and of Int or Int32", got))
    if sorted((a.ndim, b.ndim)) not in ([2, 2], [2, 3]):
        got = f"ranks {a.ndim} and {b.ndim}"
        raise DefinitionError(expected(op, "matrices, one of which may have groups", got))
    require_equal(fusion, op, a.axes[-1].size, b.axes[-2].size)
    groups = ends.axes[0].size
    for tensor in (a, b):
        if tensor.ndim == 3:
            require_equal(fusion, op, tensor.axes[0].size, groups)
    sizes = [a.axes[-2].size, b.axes[-1].size]
    sizes = [groups, *sizes] if a.ndim == b.ndim else sizes
    inputs: dict[str, Val | None] = {"mat1": a, "mat2": b, "offsets": ends}
    return library_op(fusion, op, inputs, [(sizes, a.dtype)])[0]
