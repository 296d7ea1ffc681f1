"""Attention of a single query, as when a language model writes token by token, as plain operations.

Such an attention reads each key and value once, so memory limits it, as it limits products of one
row (products.py): kernels reach its bandwidth in every dtype, and torch's attention, made for
blocks of queries, doesn't.  All others stay whole.

    scores = sum over width of q * k, times the scale, plus the mask; result = softmax(scores) @ v
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx.experimental.symbolic_shapes import statically_known_true

from .widening import widened

aten = torch.ops.aten


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor] | Any:
    """(result [B, H, 1, width], log of the sum of exponentials [B, H, 1] in the wide dtype).

    Several heads of the query may share one of keys and values: H is a multiple of theirs.
    """
    batch, heads, rows, width = query.shape
    shared = key.shape[1]
    if not all(isinstance(n, int) for n in (rows, width)) or rows != 1 or dropout_p or is_causal:
        return NotImplemented
    if statically_known_true(heads == shared):
        each = (shared, 1)
    elif isinstance(heads, int) and isinstance(shared, int):
        each = (shared, heads // shared)
    else:
        return NotImplemented
    factor = 1 / math.sqrt(width) if scale is None else scale
    scores = (widened(query).view(batch, *each, 1, width) * key.unsqueeze(2)).sum(-1) * factor
    if attn_mask is not None:
        scores = scores + _mask_of_groups(attn_mask, each)
    highest = scores.amax(-1, keepdim=True)
    highest = torch.where(highest == -math.inf, 0.0, highest)  # all are masked
    weights = (scores - highest).exp()
    total = weights.sum(-1, keepdim=True)
    has_keys = total != 0
    sums = (weights.unsqueeze(-1) * value.unsqueeze(2)).sum(-2)
    result = sums / torch.where(has_keys, total, 1.0)
    logarithm = torch.where(has_keys, total.log() + highest, 0.0)
    return (
        result.to(query.dtype).reshape(batch, heads, 1, value.shape[-1]),
        logarithm.reshape(batch, 1, heads).transpose(1, 2),
    )


def _mask_of_groups(mask: torch.Tensor, each: tuple[int, int]) -> torch.Tensor:
    """A mask of one row for [B, shared, heads of each, length]."""
    if mask.dim() == 2:
        return mask
    row = mask.squeeze(2)
    return row.unsqueeze(1) if row.shape[1] == 1 else row.view(row.shape[0], *each, row.shape[2])


DECOMPOSITIONS: dict[OpOverload, Callable[..., Any]] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
}
