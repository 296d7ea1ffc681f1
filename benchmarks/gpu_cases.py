"""Forward passes that are measured on GPUs only: with torch.compile, from the reference.

Together with cases.py and gradients.py these are the kinds of fusions that nvFuser is measured by.
Inputs that aren't numbers of the measured dtype (indices, masks) are made of tensors of their own.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .cases import Case, Factory

CHANNELS = 64  # of batch norm: rows are images times channels
HEAD = 64  # elements of an attention head
KEPT = 0.9  # of dropout


def indices(count: int, limit: int, make: Factory) -> torch.Tensor:
    """Numbers below `limit`, in no order that a cache would like."""
    return torch.arange(count, device=make(1).device) * 7919 % limit


def angles(rows: int, make: Factory) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of each position, for both halves of a head."""
    like = make(1)
    position = torch.arange(rows, device=like.device, dtype=torch.float32)
    speed = 10000 ** (-torch.arange(HEAD // 2, device=like.device) / (HEAD // 2))
    angle = (position[:, None] * speed).repeat(1, 2)[:, None]
    return angle.cos().to(like.dtype), angle.sin().to(like.dtype)


def rotated(x: torch.Tensor) -> torch.Tensor:
    """The halves of each head exchanged, the new first one negated."""
    return torch.cat((-x[..., HEAD // 2 :], x[..., : HEAD // 2]), -1)


def _matrix(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    return [make(rows, columns)]


def _images(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    x = make(max(rows // CHANNELS, 1), CHANNELS, columns)
    return [x, make(CHANNELS).float(), make(CHANNELS).float()]


def _batch_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, None, None, weight, bias, training=True)


def _residual(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    return [make(rows, columns), make(rows, columns), make(columns), make(columns)]


def _dropout_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    total = residual + F.dropout(x, 1 - KEPT)
    return F.layer_norm(total, total.shape[1:], weight, bias, 1e-5)


def _logits(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    return [make(rows, columns), indices(rows, columns, make)]


def _heads(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    return [make(rows, max(columns // HEAD, 1), HEAD), *angles(rows, make)]


def _rope(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    return x * cosine + rotated(x) * sine


def _tokens(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    return [make(rows, columns), indices(rows, rows, make), make(rows, columns)]


GPU_CASES = (
    Case("transpose", _matrix, None, lambda x: (x * 2).t().contiguous()),
    Case("batch norm", _images, None, _batch_norm),
    Case("dropout + layer norm", _residual, None, _dropout_norm, is_random=True),
    Case("cross entropy", _logits, None, lambda x, target: F.cross_entropy(x, target)),
    Case("RoPE", _heads, None, _rope),
    Case(
        "embedding + position",
        _tokens,
        None,
        lambda table, index, position: F.embedding(index, table) + position,
    ),
)
