"""Blocks of well-known models, small and in plain torch, with the inputs that they take.

`BLOCKS` is the list that test_models.py runs through the backend.  A block is built from a seed and
is a module whose call gives one float tensor.  Widths are small and no power of two more often than
not; sizes of batch and length are the caller's, so that shapes can change.  Every block computes in
its parameters' dtype, so its copy in float64 is the exact answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Block:
    """How to build one block, and its inputs for a batch and a length (or an image's side)."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int, int], tuple[Tensor, ...]]
    breaks_graph: bool = False


class Gpt2Block(nn.Module):
    """Pre-norm attention and MLP with tanh GELU; the attention is written out or torch's own."""

    def __init__(self, width: int = 48, heads: int = 4, explicit: bool = True) -> None:
        super().__init__()
        self.heads, self.explicit = heads, explicit
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, width] -> the same shape."""
        batch, length, width = x.shape
        parts = self.attend(self.norm1(x)).split(width, dim=2)
        query, key, value = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts
        )
        if self.explicit:
            scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
            hidden = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            mixed = F.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1) @ value
        else:
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class RmsNorm(nn.Module):
    """Llama's norm: the root mean square is taken in float32 at least."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] -> the same shape and dtype."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


def _rotated(x: Tensor) -> Tensor:
    """RoPE: the two halves of the last axis rotated by an angle that grows with the position."""
    half = x.shape[-1] // 2
    places = torch.arange(x.shape[-2], device=x.device, dtype=torch.float32)
    frequencies = 10000.0 ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = torch.outer(places, frequencies)
    cosine, sine = (
        torch.cat([each, each], -1).to(x.dtype) for each in (angles.cos(), angles.sin())
    )
    rotated = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * cosine + rotated * sine


class LlamaBlock(nn.Module):
    """RMSNorm, grouped-query attention with RoPE, SwiGLU."""

    def __init__(self, width: int = 48, heads: int = 4, groups: int = 2, hidden: int = 80) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, groups * self.size, bias=False)
        self.value = nn.Linear(width, groups * self.size, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, width] -> the same shape."""
        batch, length, width = x.shape
        normal = self.norm1(x)

        def split(part: Tensor, heads: int) -> Tensor:
            return part.view(batch, length, heads, self.size).transpose(1, 2)

        query = _rotated(split(self.query(normal), self.heads))
        key = _rotated(split(self.key(normal), self.groups))
        value = split(self.value(normal), self.groups)
        repeats = self.heads // self.groups
        key, value = (
            part[:, :, None]
            .expand(batch, self.groups, repeats, length, self.size)
            .reshape(batch, self.heads, length, self.size)
            for part in (key, value)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).reshape(batch, length, width))
        normal = self.norm2(x)
        return x + self.down(F.silu(self.gate(normal)) * self.up(normal))


class BertBlock(nn.Module):
    """Embeddings, post-norm attention under a padding mask, erf GELU, a loss without padding."""

    def __init__(self, words: int = 101, width: int = 48, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(64, width)
        self.norm0, self.norm1, self.norm2 = (nn.LayerNorm(width, eps=1e-12) for _ in range(3))
        self.query, self.key, self.value, self.project = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.decode = nn.Linear(width, words)

    def forward(self, tokens: Tensor, present: Tensor) -> Tensor:
        """Tokens and a mask, both [batch, length] -> the loss, a tensor without axes."""
        batch, length = tokens.shape
        places = torch.arange(length, device=tokens.device)
        x = self.norm0(self.words(tokens) + self.places(places))
        query, key, value = (
            part(x).view(batch, length, self.heads, -1).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        scores = scores + (1.0 - present[:, None, None, :].to(scores.dtype)) * -1e4
        mixed = (F.softmax(scores, dim=-1) @ value).transpose(1, 2).reshape(x.shape)
        x = self.norm1(x + self.project(mixed))
        x = self.norm2(x + self.down(F.gelu(self.up(x))))
        targets = tokens.masked_fill(present == 0, -100).reshape(-1)
        return F.cross_entropy(self.decode(x).view(-1, self.words.num_embeddings), targets)


class VitBlock(nn.Module):
    """Patches by convolution, a class token, positions, one encoder layer, a head."""

    def __init__(self, width: int = 48, heads: int = 4, patch: int = 4, most: int = 64) -> None:
        super().__init__()
        self.heads = heads
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.places = nn.Parameter(torch.randn(1, most + 1, width) * 0.02)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.head = nn.Linear(width, 10)

    def forward(self, image: Tensor) -> Tensor:
        """[batch, 3, side, side] -> scores [batch, 10]."""
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1)
        x = x + self.places[:, : x.shape[1]]
        batch, length, width = x.shape
        parts = self.attend(self.norm1(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, length, width))
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return self.head(self.norm3(x)[:, 0])


class ResNetBlock(nn.Module):
    """A stem with max pooling, a residual block that halves the image, average pooling, a head."""

    def __init__(self, channels: int = 12) -> None:
        super().__init__()
        wide = 2 * channels
        self.stem = nn.Conv2d(3, channels, 3, 1, 1, bias=False)
        self.conv1 = nn.Conv2d(channels, wide, 3, 2, 1, bias=False)
        self.conv2 = nn.Conv2d(wide, wide, 3, 1, 1, bias=False)
        self.shortcut = nn.Conv2d(channels, wide, 1, 2, bias=False)
        self.norm0 = nn.BatchNorm2d(channels)
        self.norm1, self.norm2, self.norm3 = (nn.BatchNorm2d(wide) for _ in range(3))
        self.head = nn.Linear(wide, 10)

    def forward(self, image: Tensor) -> Tensor:
        """[batch, 3, side, side] -> scores [batch, 10]; the running statistics move on."""
        x = F.max_pool2d(F.relu(self.norm0(self.stem(image))), 3, 2, 1)
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)) + self.norm3(self.shortcut(x)))
        return self.head(F.adaptive_avg_pool2d(y, 1).flatten(1))


class LstmCells(nn.Module):
    """One LSTM cell, written out and run for four steps."""

    def __init__(self, width: int = 40) -> None:
        super().__init__()
        self.input, self.hidden = nn.Linear(width, 4 * width), nn.Linear(width, 4 * width)

    def forward(self, x: Tensor, hidden: Tensor, cell: Tensor) -> Tensor:
        """Steps [4, batch, width] and two states [batch, width] -> both states side by side."""
        for step in x.unbind(0):
            gates = self.input(step) + self.hidden(hidden)
            enter, forget, candidate, leave = gates.chunk(4, 1)
            cell = forget.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
            hidden = leave.sigmoid() * cell.tanh()
        return torch.cat([hidden, cell], 1)


class UNetBlock(nn.Module):
    """Group norm, SiLU and a time embedding, down and up again with a skip connection."""

    def __init__(self, channels: int = 12) -> None:
        super().__init__()
        self.channels = channels
        self.enter = nn.Conv2d(3, channels, 3, 1, 1)
        self.norm1, self.norm2 = (nn.GroupNorm(4, channels) for _ in range(2))
        self.norm3 = nn.GroupNorm(4, 2 * channels)
        self.down = nn.Conv2d(channels, channels, 3, 2, 1)
        self.middle = nn.Conv2d(channels, channels, 3, 1, 1)
        self.leave = nn.Conv2d(2 * channels, 3, 3, 1, 1)
        self.time = nn.Linear(channels, 2 * channels)

    def forward(self, image: Tensor, time: Tensor) -> Tensor:
        """Images [batch, 3, side, side] and times [batch] -> images."""
        half = self.channels // 2
        frequencies = torch.exp(torch.arange(half, device=image.device) * (-math.log(1e4) / half))
        angles = time[:, None] * frequencies.to(time.dtype)
        scale, shift = self.time(torch.cat([angles.sin(), angles.cos()], -1)).chunk(2, 1)
        skip = self.enter(image)
        x = self.down(F.silu(self.norm1(skip)))
        x = self.norm2(x) * (1 + scale[:, :, None, None]) + shift[:, :, None, None]
        x = x + self.middle(F.silu(x))
        x = F.interpolate(x, scale_factor=2.0, mode="nearest")
        return self.leave(F.silu(self.norm3(torch.cat([x, skip], 1))))


class MixtureOfExperts(nn.Module):
    """Top-2 routing over four gated experts.

    `gathered` gives each expert its own tokens (their number is data, so the graph breaks there);
    otherwise every expert sees every token, and the routing weights select.
    """

    def __init__(self, width: int = 24, experts: int = 4, gathered: bool = False) -> None:
        super().__init__()
        self.gathered, self.experts = gathered, experts
        self.router = nn.Linear(width, experts, bias=False)
        scale = width**-0.5
        self.gate = nn.Parameter(torch.randn(experts, width, 2 * width) * scale)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * width) * scale)
        self.down = nn.Parameter(torch.randn(experts, 2 * width, width) * scale)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, width] -> the same shape."""
        tokens = x.reshape(-1, x.shape[-1])
        weights, chosen = F.softmax(self.router(tokens), -1).topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        mixed = self._gathered if self.gathered else self._dense
        return x + mixed(tokens, weights, chosen).view(x.shape)

    def _dense(self, tokens: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        full = torch.zeros(tokens.shape[0], self.experts, dtype=tokens.dtype, device=tokens.device)
        full = full.scatter(1, chosen, weights)
        gate = torch.einsum("tw,ewh->eth", tokens, self.gate)
        hidden = F.silu(gate) * torch.einsum("tw,ewh->eth", tokens, self.up)
        return torch.einsum("eth,ehw,te->tw", hidden, self.down, full)

    def _gathered(self, tokens: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        result = torch.zeros_like(tokens)
        for expert in range(self.experts):
            rows, slots = torch.where(chosen == expert)
            own = tokens[rows]
            hidden = F.silu(own @ self.gate[expert]) * (own @ self.up[expert])
            share = (hidden @ self.down[expert]) * weights[rows, slots, None]
            result = result.index_add(0, rows, share)
        return result


def _sequence(width: int) -> Callable[[int, int], tuple[Tensor, ...]]:
    return lambda batch, length: (torch.randn(batch, length, width),)


def _image(batch: int, side: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 3, 2 * side, 2 * side),)


def _bert_inputs(batch: int, length: int) -> tuple[Tensor, ...]:
    lengths = torch.randint(length // 2, length + 1, (batch, 1))
    return torch.randint(0, 101, (batch, length)), (torch.arange(length) < lengths).long()


def _lstm_inputs(batch: int, length: int) -> tuple[Tensor, ...]:
    rows = batch * length
    return torch.randn(4, rows, 40), torch.randn(rows, 40), torch.randn(rows, 40)


def _unet_inputs(batch: int, side: int) -> tuple[Tensor, ...]:
    return *_image(batch, side), torch.rand(batch) * 10


BLOCKS = (
    Block("gpt2", Gpt2Block, _sequence(48)),
    Block("gpt2_sdpa", lambda: Gpt2Block(explicit=False), _sequence(48)),
    Block("llama", LlamaBlock, _sequence(48)),
    Block("bert", BertBlock, _bert_inputs),
    Block("vit", VitBlock, _image),
    Block("resnet", ResNetBlock, _image),
    Block("lstm", LstmCells, _lstm_inputs),
    Block("unet", UNetBlock, _unet_inputs),
    Block("moe", MixtureOfExperts, _sequence(24)),
    Block("moe_gathered", lambda: MixtureOfExperts(gathered=True), _sequence(24), True),
)
