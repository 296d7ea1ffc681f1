"""Library operations: what torch computes as a whole, one row for each.

A row of LIBRARY_OPS belongs to a `LibraryOp` of the same name: its reference takes the expression's
arguments by their names.  The builders (library_builders.py) give the results axes and dtypes; the
evaluator calls the reference; plans call it too, unless torch can write the result into memory of
the runtime (plans/library_operations.py).  Invariant: a reference returns the dtypes that the
builder gives its outputs, for operands of the dtypes that the builder accepts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..errors import InputError, UnsupportedError, expected
from ..ir.exprs import LibraryOp
from ..ir.scalars import IntExpr
from ..ir.vals import TensorView
from . import attention_dropout

aten = torch.ops.aten

Results = torch.Tensor | tuple[torch.Tensor, ...]


def _no_sums(expr: LibraryOp) -> list[IntExpr]:
    return []


@dataclass(frozen=True, slots=True)
class LibraryRow:
    """One operation: the function that computes it, and what validation needs to know.

    `sums` are the sizes whose product is how many elements are added up for one of the result.
    """

    name: str
    reference: Callable[..., Results]
    sums: Callable[[LibraryOp], list[IntExpr]] = _no_sums
    is_repeatable: bool = True


def _last_size(expr: LibraryOp) -> list[IntExpr]:
    """The innermost size of the first operand."""
    return [expr.tensor_inputs[0].axes[-1].size]


def _size_of_attention(expr: LibraryOp) -> list[IntExpr]:
    """The size of a head, and the number of keys."""
    key = expr.argument("key")
    assert isinstance(key, TensorView)
    return [key.axes[-1].size, key.axes[-2].size]


# -- products


def matmul(arg1: torch.Tensor, arg2: torch.Tensor) -> torch.Tensor:
    """torch.matmul."""
    return torch.matmul(arg1, arg2)


def linear(
    arg1: torch.Tensor, arg2: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """arg1 @ arg2.T + bias."""
    return torch.nn.functional.linear(arg1, arg2, bias)


# -- orders


def argsort(arg: torch.Tensor, dim: int, descending: bool, stable: bool) -> torch.Tensor:
    """torch.argsort."""
    return torch.argsort(arg, dim=dim, descending=descending, stable=stable)


def topk(arg: torch.Tensor, k: int, dim: int, largest: bool, sorted: bool) -> Results:
    """(values, indices) of torch.topk."""
    values, indices = torch.topk(arg, k, dim, largest, sorted)
    return values, indices


# -- attention


def sdpfa_fwd(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    scale: float | None = None,
    bias: torch.Tensor | None = None,
) -> Results:
    """(output, logsumexp, seed, offset) of torch's flash attention for the device.

    The last two are the state of the random numbers of the dropout; 0 on the CPU without one.
    """
    if query.is_cuda:
        if bias is not None:
            what = "no bias or mask on CUDA: torch's flash attention has none"
            raise UnsupportedError(expected("sdpfa_fwd", what, "one"))
        attend = aten._scaled_dot_product_flash_attention.default
        output, sums, *_, state, offset, _ = attend(
            query, key, value, dropout_p, is_causal, scale=scale
        )
        return output, sums, state.view(torch.int64), offset.new_zeros((), dtype=torch.int64)
    state = torch.zeros(2, dtype=torch.int64, device=query.device)
    query, key, value = map(_dense_rows, (query, key, value))
    if not query.numel() or not key.numel():  # torch divides by the sizes
        sums = query.new_full(query.shape[:3], -math.inf, dtype=_sum_dtype(query))
        return torch.zeros_like(query), sums, state, state.new_zeros(())
    if dropout_p:
        operands = query, key, value
        made = attention_dropout.forward(*operands, dropout_p, is_causal, scale, bias)
        return *made, state.new_zeros(())
    output, sums = aten._scaled_dot_product_flash_attention_for_cpu.default(
        query,
        key,
        value,
        0.0,
        is_causal,
        attn_mask=None if bias is None else _dense_rows(bias),
        scale=scale,
    )
    return output, sums, state, state.new_zeros(())


def sdpfa_bwd(
    grad_output: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    logsumexp: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    philox_seed: torch.Tensor,
    philox_offset: torch.Tensor,
    scale: float | None = None,
) -> Results:
    """The gradients of query, key and value."""
    if not query.numel() or not key.numel():
        return torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
    operands = (*map(_dense_rows, (grad_output, query, key, value, output)), logsumexp)
    gradients: tuple[torch.Tensor, ...]
    if query.is_cuda:
        lengths = (None, None, query.shape[2], key.shape[2])
        gradients = aten._scaled_dot_product_flash_attention_backward.default(
            *operands, *lengths, dropout_p, is_causal, philox_seed.view(torch.uint64),
            philox_offset.view(torch.uint64), scale=scale,
        )  # fmt: skip
    elif dropout_p:
        state = dropout_p, is_causal, philox_seed, scale
        gradients = attention_dropout.backward(
            grad_output, query, key, value, output, logsumexp, *state
        )
    else:
        gradients = aten._scaled_dot_product_flash_attention_for_cpu_backward.default(
            *operands, 0.0, is_causal, scale=scale
        )
    return gradients


def _dense_rows(operand: torch.Tensor) -> torch.Tensor:
    """The tensor with consecutive elements in its last dimension, which torch's kernels assume."""
    return operand if operand.stride(-1) == 1 else operand.contiguous()


def _sum_dtype(query: torch.Tensor) -> torch.dtype:
    return torch.float64 if query.dtype is torch.float64 else torch.float32


# -- products of groups


def grouped_mm(mat1: torch.Tensor, mat2: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """A product for each group, which ends at its offset along the dimension that groups share.

    [m, k] @ [k, n] has groups of k: the result is [g, m, n].  [g, m, k] @ [k, n] has groups of n,
    [m, k] @ [g, k, n] of m: the result is [m, n], 0 after the last group.
    """
    ends = offsets.tolist()
    match mat1.dim(), mat2.dim():
        case 2, 2:
            shared = mat1.shape[1]
        case 3, 2:
            shared = mat2.shape[1]
        case _:
            shared = mat1.shape[0]
    if [0, *ends] != sorted([0, *ends]) or (ends and ends[-1] > shared):
        what = f"offsets that rise from 0 to at most {shared}"
        raise InputError(expected("grouped_mm", what, ends))
    spans = [slice(first, last) for first, last in zip([0, *ends], ends, strict=False)]
    rows, columns = mat1.shape[-2], mat2.shape[-1]
    if mat1.dim() == mat2.dim() == 2:
        made = mat1.new_zeros(len(ends), rows, columns)
        for number, span in enumerate(spans):
            made[number] = mat1[:, span] @ mat2[span]
        return made
    made = mat1.new_zeros(rows, columns)
    for number, span in enumerate(spans):
        if mat1.dim() == 3:
            made[:, span] = mat1[number] @ mat2[:, span]
        else:
            made[span] = mat1[span] @ mat2[number]
    return made


_ROWS = (
    LibraryRow("matmul", matmul, _last_size),
    LibraryRow("linear", linear, _last_size),
    LibraryRow("argsort", argsort),
    LibraryRow("topk", topk),
    LibraryRow("sdpfa_fwd", sdpfa_fwd, _size_of_attention, is_repeatable=False),
    LibraryRow("sdpfa_bwd", sdpfa_bwd, _size_of_attention),
    LibraryRow("grouped_mm", grouped_mm, _last_size),
)

LIBRARY_OPS: dict[str, LibraryRow] = {row.name: row for row in _ROWS}
