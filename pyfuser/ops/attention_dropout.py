"""Attention with dropout on the CPU, where torch's flash attention has none.

The probabilities are in memory, and so is which of them are kept, drawn from a seed that torch's
generator gives.  The backward draws them again from the seed, and the probabilities follow from the
logarithms of the sums, as in flash attention: only these are kept between both.
"""

from __future__ import annotations

import math

import torch

_LARGEST_SEED = 2**62


def forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    bias: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(output, logsumexp, seed); the seed has the shape [2] of flash attention's."""
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = _scores(query.to(wide), key.to(wide), is_causal, scale)
    if bias is not None:
        scores = scores + bias
    seed = torch.randint(_LARGEST_SEED, ())
    sums = scores.logsumexp(-1)
    kept = _factors(scores, int(seed), dropout_p)
    output = (_probabilities(scores, sums) * kept) @ value.to(wide)
    return output.to(query.dtype), sums, torch.stack([seed, torch.zeros_like(seed)])


def backward(
    grad_output: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    logsumexp: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    seed: torch.Tensor,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of query, key and value."""
    wide = torch.promote_types(query.dtype, torch.float32)
    given, queries, keys, values = (each.to(wide) for each in (grad_output, query, key, value))
    scores = _scores(queries, keys, is_causal, scale)
    kept = _factors(scores, int(seed[0]), dropout_p)
    probabilities = _probabilities(scores, logsumexp)
    of_values = (probabilities * kept).mT @ given
    along = (given * output.to(wide)).sum(-1, keepdim=True)
    of_scores = probabilities * ((given @ values.mT) * kept - along) * _factor(query, scale)
    gradients = of_scores @ keys, of_scores.mT @ queries, of_values
    first, second, third = (gradient.to(query.dtype) for gradient in gradients)
    return first, second, third


def _factor(query: torch.Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


def _scores(
    query: torch.Tensor, key: torch.Tensor, is_causal: bool, scale: float | None
) -> torch.Tensor:
    scores = (query * _factor(query, scale)) @ key.mT
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    return scores


def _probabilities(scores: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    """Of rows in which nothing counts, and the sum is 0, they are all 0."""
    return (scores - sums.masked_fill(sums == -math.inf, 0.0).unsqueeze(-1)).exp()


def _factors(scores: torch.Tensor, seed: int, dropout_p: float) -> torch.Tensor:
    """0 for what is dropped, and for the rest what makes up for it."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(scores.shape, generator=generator, dtype=scores.dtype)
    return (drawn >= dropout_p) * (1 / (1 - dropout_p) if dropout_p < 1 else 0.0)
