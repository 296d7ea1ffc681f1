"""A small GPT on bytes: the model, the text that it learns, and how it generates text.

The text is the project's own documents and source; a byte is a token.  RMSNorm, rotary positions,
causal attention and SwiGLU, in plain torch: torch.compile decides what to fuse.  Positions are
angles, so the model reads texts of any length.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LAYERS, WIDTH, HEADS, HIDDEN, BYTES = 6, 192, 6, 512, 256


class Norm(nn.Module):
    """Root mean square norm with a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """[..., WIDTH] -> the same shape."""
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


def rotated(x: Tensor) -> Tensor:
    """[batch, heads, length, size]: pairs of the last axis rotated by position-dependent angles."""
    half = x.shape[-1] // 2
    frequencies = 10000.0 ** (-torch.arange(half, device=x.device) / half)
    angles = torch.arange(x.shape[-2], device=x.device)[:, None] * frequencies
    cosine, sine = angles.cos(), angles.sin()
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


class Layer(nn.Module):
    """Attention and a gated MLP, each after a norm and with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = Norm(), Norm()
        self.attend = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.project = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, WIDTH] -> the same shape."""
        batch, length, _ = x.shape
        parts = self.attend(self.norm1(x)).view(batch, length, 3, HEADS, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(rotated(query), rotated(key), value, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        normal = self.norm2(x)
        return x + self.down(F.silu(self.gate(normal)) * self.up(normal))


class Gpt(nn.Module):
    """Bytes -> for each position, scores of the next byte."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(BYTES, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = Norm()
        self.head = nn.Linear(WIDTH, BYTES, bias=False)
        # The embedding keeps its unit variance: the gradient of a norm grows with the inverse of
        # its input, and with small vectors some batches would amplify rounding errors 10,000 times.
        for each in self.modules():
            if isinstance(each, nn.Linear):
                nn.init.normal_(each.weight, std=0.02)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Tokens [batch, length] -> scores, or with targets the mean loss in nats per byte."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        scores = self.head(self.norm(x))
        if targets is None:
            return scores
        return F.cross_entropy(scores.view(-1, BYTES), targets.reshape(-1))


def text(folder: Path) -> Tensor:
    """The bytes of the project's documents and source, concatenated."""
    patterns = ("*.md", "docs/*.md", "pyfuser/**/*.py")
    files = [path for pattern in patterns for path in sorted(folder.glob(pattern))]
    data = b"\n".join(path.read_bytes() for path in files)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).long()


def batch(data: Tensor, number: int, size: int, length: int) -> tuple[Tensor, Tensor]:
    """The `number`-th batch: random positions of the text, and the bytes that follow."""
    generator = torch.Generator().manual_seed(number)
    starts = torch.randint(0, len(data) - length - 1, (size, 1), generator=generator)
    places = starts + torch.arange(length + 1)
    rows = data[places]
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


@torch.no_grad()
def write(call: Callable[[Tensor], Tensor], prompt: bytes, count: int, heat: float = 0.7) -> bytes:
    """`count` bytes after the prompt, each a run of the whole model over the growing text."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.tensor([list(prompt)])
    for _ in range(count):
        shares = torch.softmax(call(tokens)[:, -1] / heat, -1)
        tokens = torch.cat([tokens, torch.multinomial(shares, 1, generator=generator)], 1)
    return bytes(tokens[0].tolist())
