"""Attention builders: flash attention forward and backward, which torch computes as a whole.

Queries, keys and values are [batch, heads, length, head size].  Results are in memory in the order
in which torch writes them, so nothing copies them: the output in that of the query, gradients as
[batch, length, heads, head size].
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..dtypes import DataType, is_floating
from ..errors import DefinitionError, expected
from ..ir.domains import TensorDomain
from ..ir.exprs import PermuteOp
from ..ir.fusion import Fusion, broadcast_contiguity
from ..ir.vals import TensorView, Val
from .library_builders import library_op, sizes_of
from .pointwise import (
    Argument,
    as_tensor,
    as_val,
    cast_tensor,
    constant,
    pointwise,
    prepend_axes,
    require_equal,
)

_RANK = 4
_GRADIENT_ORDER = (0, 2, 1, 3)


def sdpfa_fwd(
    fusion: Fusion,
    query: Val,
    key: Val,
    value: Val,
    bias: Val | None = None,
    mask: Val | None = None,
    dropout_p: Argument | None = None,
    is_causal: Argument | None = None,
    scale: Argument | None = None,
) -> tuple[TensorView, TensorView, TensorView, TensorView]:
    """(output, logsumexp [b, h, l], seed [2], offset []): the last two are Int."""
    tensors = _operands(fusion, "sdpfa_fwd", query, key, value)
    inputs: dict[str, Val | None] = dict(zip(("query", "key", "value"), tensors, strict=True))
    inputs |= _numbers(fusion, "sdpfa_fwd", dropout_p, is_causal, scale)
    inputs["bias"] = _bias(fusion, tensors[0], bias, mask)
    sizes = sizes_of(tensors[0].axes)
    double = tensors[0].dtype is DataType.Double
    sums = DataType.Double if double else DataType.Float
    two = constant(fusion, 2, DataType.Int).extent
    assert two is not None
    results = [(sizes, tensors[0].dtype), (sizes[:3], sums), ([two], DataType.Int)]
    made = library_op(fusion, "sdpfa_fwd", inputs, [*results, ([], DataType.Int)])
    _lay_out(made[0], _memory_order(tensors[0]))
    output, logsumexp, seed, offset = made
    return output, logsumexp, seed, offset


def sdpfa_bwd(
    fusion: Fusion,
    grad_output: Val,
    query: Val,
    key: Val,
    value: Val,
    output: Val,
    logsumexp: Val,
    dropout_p: Argument | None,
    is_causal: Argument | None,
    philox_seed: Val,
    philox_offset: Val,
    scale: Argument | None = None,
) -> tuple[TensorView, TensorView, TensorView]:
    """The gradients of query, key and value."""
    op = "sdpfa_bwd"
    tensors = _operands(fusion, op, query, key, value)
    names = ("query", "key", "value")
    inputs: dict[str, Val | None] = {"grad_output": _like(fusion, op, grad_output, tensors[0])}
    inputs |= dict(zip(names, tensors, strict=True))
    inputs["output"] = _like(fusion, op, output, tensors[0])
    inputs["logsumexp"] = as_tensor(fusion, logsumexp, op)
    inputs |= _numbers(fusion, op, dropout_p, is_causal, scale)
    inputs["philox_seed"] = as_tensor(fusion, philox_seed, op)
    inputs["philox_offset"] = as_tensor(fusion, philox_offset, op)
    results = [(sizes_of(tensor.axes), tensor.dtype) for tensor in tensors]
    made = library_op(fusion, op, inputs, results)
    for gradient in made:
        _lay_out(gradient, _GRADIENT_ORDER)
    dq, dk, dv = made
    return dq, dk, dv


def _operands(fusion: Fusion, op: str, *operands: Val) -> list[TensorView]:
    """Query, key and value of one floating dtype, and of sizes that fit."""
    tensors = [as_tensor(fusion, operand, op) for operand in operands]
    query, key, value = tensors
    for tensor in tensors:
        if tensor.ndim != _RANK:
            raise DefinitionError(expected(op, f"tensors of rank {_RANK}", f"rank {tensor.ndim}"))
        if tensor.dtype is not query.dtype or not is_floating(tensor.dtype):
            got = f"{query.dtype} and {tensor.dtype}"
            raise DefinitionError(expected(op, "tensors of one floating dtype", got))
    for dim in range(_RANK):
        require_equal(fusion, op, key.axes[dim].size, value.axes[dim].size)
        if dim != _RANK - 2:
            require_equal(fusion, op, query.axes[dim].size, key.axes[dim].size)
    return tensors


def _like(fusion: Fusion, op: str, operand: Val, query: TensorView) -> TensorView:
    """A tensor of the dtype and the sizes of the query."""
    tensor = as_tensor(fusion, operand, op)
    if (tensor.ndim, tensor.dtype) != (query.ndim, query.dtype):
        got = f"rank {tensor.ndim} of {tensor.dtype}"
        raise DefinitionError(expected(op, f"rank {query.ndim} of {query.dtype}", got))
    for own, other in zip(tensor.axes, query.axes, strict=True):
        require_equal(fusion, op, own.size, other.size)
    return tensor


def _numbers(
    fusion: Fusion,
    op: str,
    dropout_p: Argument | None,
    is_causal: Argument | None,
    scale: Argument | None,
) -> dict[str, Val | None]:
    """The scalar arguments; without a scale, torch takes one over the root of the head size."""
    given = {
        "dropout_p": 0.0 if dropout_p is None else dropout_p,
        "is_causal": False if is_causal is None else is_causal,
        "scale": scale,
    }
    found: dict[str, Val | None] = {
        name: as_val(fusion, number, op) for name, number in given.items() if number is not None
    }
    for name, number in found.items():
        if isinstance(number, TensorView):
            raise DefinitionError(expected(op, f"a number as {name}", "a tensor"))
    return found


def _bias(
    fusion: Fusion, query: TensorView, bias: Val | None, mask: Val | None
) -> TensorView | None:
    """What is added to the scores: the bias, and -inf where the mask is False."""
    made = None if bias is None else as_tensor(fusion, bias, "sdpfa_fwd")
    if mask is not None:
        kept = as_tensor(fusion, mask, "sdpfa_fwd")
        if kept.dtype is not DataType.Bool:
            raise DefinitionError(expected("sdpfa_fwd", "a mask of Bool", kept.dtype))
        scores = 0.0 if made is None else made
        masked = pointwise(fusion, "where", kept, scores, -math.inf)
        made = as_tensor(fusion, masked, "sdpfa_fwd")
    if made is None:
        return None
    if made.ndim > _RANK:
        raise DefinitionError(expected("sdpfa_fwd", f"a bias of rank {_RANK}", made.ndim))
    if made.dtype is not query.dtype:
        made = cast_tensor(fusion, made, query.dtype)
    return prepend_axes(fusion, made, _RANK)


def _memory_order(tensor: TensorView) -> tuple[int, ...]:
    """The dimensions of a tensor, outermost in memory first, as far as its definition shows."""
    if tensor.domain.allocation is None and isinstance(tensor.expr, PermuteOp):
        source = tensor.expr.tensor_inputs[0]
        return tuple(tensor.expr.dims.index(dim) for dim in _memory_order(source))
    return tuple(tensor.domain.memory_order)


def _lay_out(tensor: TensorView, order: Sequence[int]) -> None:
    """Gives a result an order in memory."""
    axes = tensor.axes
    allocation = [axes[dim] for dim in order]
    if allocation != axes and order[-1] == _RANK - 1:
        tensor.domain = TensorDomain(axes, broadcast_contiguity(allocation), allocation=allocation)
