"""Functions that are measured as a torch user writes them, through torch.compile.

Together with cases.py these are the kinds of fusions that nvFuser is measured by; gradients.py has
their backward passes for GPUs.  Inputs that aren't numbers of the measured dtype (indices, masks)
are made of tensors of their own.
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


def _matrices(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    return [make(rows, columns), make(rows, columns)]


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


def _matrix_and_column(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    return [make(rows, columns), make(rows, 1)]


def _long_chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Thirty operations."""
    for _ in range(6):
        x = torch.tanh(x * 0.5 + y) * 1.1 - y.abs()
    return x


def _masked(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    """Every row has places that aren't masked."""
    return [make(rows, columns), make(rows, columns) > 1.0]


def _masked_log_softmax(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(x.masked_fill(mask, -1e4), 1)


def _images_last(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    """Images whose channels are next to each other in memory."""
    x = make(max(rows // CHANNELS, 1), 1, columns, CHANNELS).permute(0, 3, 1, 2)
    return [x, make(CHANNELS).float(), make(CHANNELS).float()]


def _feature_maps(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    return [make(max(rows // CHANNELS, 1), CHANNELS, columns), make(CHANNELS), make(CHANNELS)]


def _instance_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.instance_norm(x, weight=weight, bias=bias)


def _group_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.group_norm(x, CHANNELS // 8, weight, bias)


def _scores(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    """Scores of 4 heads, and a mask that they share."""
    queries = max(rows // 4, 1)
    return [make(4, queries, columns), make(queries, columns)]


def _attention_softmax(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return F.dropout(torch.softmax(scores * HEAD**-0.5 + mask, -1), 1 - KEPT)


def _tokens_and_norm(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    return [make(rows, columns), indices(rows, rows, make), make(columns), make(columns)]


def _embedding_norm(
    table: torch.Tensor, index: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    return F.layer_norm(F.embedding(index, table), weight.shape, weight, bias)


def _adamw(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    return [make(rows, columns), make(rows, columns), make(rows, columns), make(rows, columns)]


def _adamw_step(
    weight: torch.Tensor, gradient: torch.Tensor, mean: torch.Tensor, square: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """The hundredth step; the squares are made positive here, so that inputs are any numbers."""
    mean = torch.lerp(mean, gradient, 0.1)
    square = 0.999 * square.abs() + 0.001 * gradient * gradient
    step = mean / (1 - 0.9**100) / ((square / (1 - 0.999**100)).sqrt() + 1e-8)
    return weight * (1 - 1e-5) - 1e-3 * step, mean, square


def _segments(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Reductions along both axes in turn: no kernel can compute two of them."""
    for _ in range(3):
        x = torch.softmax(x, 1) * y
        x = (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt()
    return F.gelu(x)


def _cube(rows: int, columns: int, make: Factory) -> list[torch.Tensor]:
    return [make(max(rows // 16, 1), 16, columns)]


TORCH_CASES = (
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
    Case("broadcast add (outer)", _matrix_and_column, None, torch.add),
    Case("long chain", _matrices, None, _long_chain),
    Case("norm of rows", _matrix, None, lambda x: (x * x).sum(1).sqrt() + 1),
    Case("mean of scaled rows", _matrix, None, lambda x: (x * 2 + 1).relu().mean(0) * 3),
    Case("masked log-softmax", _masked, None, _masked_log_softmax),
    Case("batch norm, channels last", _images_last, None, _batch_norm),
    Case("instance norm", _feature_maps, None, _instance_norm),
    Case("group norm", _feature_maps, None, _group_norm),
    Case("group norm + SiLU", _feature_maps, None, lambda x, *of: F.silu(_group_norm(x, *of))),
    Case("attention softmax", _scores, None, _attention_softmax, is_random=True),
    Case("embedding + layer norm", _tokens_and_norm, None, _embedding_norm),
    Case("cat", _matrices, None, lambda x, y: torch.cat((x * 2, torch.sigmoid(y), x - y), 1)),
    Case("AdamW step", _adamw, None, _adamw_step),
    Case("many segments", _matrices, None, _segments),
    Case("transpose (1, 2)", _cube, None, lambda x: (x + 1).transpose(1, 2).contiguous()),
    Case("transpose (0, 2)", _cube, None, lambda x: (x + 1).transpose(0, 2).contiguous()),
)
