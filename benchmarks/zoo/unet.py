"""A UNet as in diffusion models: group norm, SiLU, skips, attention where the image is small.

Predicts noise from a noisy image [batch, channels, height, width] and the time step [batch].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from .vision import Scored

GROUPS = 8


class Block(nn.Module):
    """Two convolutions after group norms, shifted by the time embedding, with a shortcut."""

    def __init__(self, inputs: int, outputs: int, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(GROUPS, inputs), nn.GroupNorm(GROUPS, outputs)])
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(width, outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """[batch, inputs, height, width] -> [batch, outputs, height, width]."""
        hidden = self.first(functional.silu(self.norms[0](x)))
        hidden = hidden + self.time(functional.silu(time))[:, :, None, None]
        return self.second(functional.silu(self.norms[1](hidden))) + self.shortcut(x)


class Attention(nn.Module):
    """Self-attention over the positions of an image."""

    def __init__(self, channels: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(GROUPS, channels)
        self.parts = nn.Conv2d(channels, 3 * channels, 1)
        self.output = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, channels, height, width] -> the same shape, with x added."""
        parts = self.parts(self.norm(x)).unflatten(1, (3, self.heads, -1)).flatten(4)
        query, key, value = parts.transpose(-1, -2).unbind(1)
        found = functional.scaled_dot_product_attention(query, key, value)
        return x + self.output(found.transpose(-1, -2).reshape(x.shape))


class UNet(nn.Module):
    """Down to a quarter of the side and up again, with skip connections at each level."""

    def __init__(self, channels: int = 3, width: int = 32) -> None:
        super().__init__()
        self.width = width
        embedded = 4 * width
        self.time = nn.Sequential(
            nn.Linear(width, embedded), nn.SiLU(), nn.Linear(embedded, embedded)
        )
        widths = [width, 2 * width, 4 * width]
        self.stem = nn.Conv2d(channels, width, 3, padding=1)
        self.down = nn.ModuleList(
            Block(narrow, wide, embedded)
            for narrow, wide in zip([width, *widths], widths, strict=False)
        )
        self.shrink = nn.ModuleList(nn.Conv2d(w, w, 3, stride=2, padding=1) for w in widths[:-1])
        self.middle = Attention(widths[-1])
        self.up = nn.ModuleList(
            Block(below + beside, beside, embedded)
            for below, beside in zip(
                [widths[-1], *reversed(widths)], reversed(widths), strict=False
            )
        )
        self.norm = nn.GroupNorm(GROUPS, width)
        self.output = nn.Conv2d(width, channels, 3, padding=1)

    def forward(self, pixel_values: Tensor, steps: Tensor, labels: Tensor) -> Scored:
        """The mean square error of the predicted noise, and the noise."""
        time = self.time(self._waves(steps, pixel_values))
        x, skips = self.stem(pixel_values), []
        for level, block in enumerate(self.down):
            x = block(x, time)
            skips.append(x)
            if level < len(self.shrink):
                x = self.shrink[level](x)
        x = self.middle(x)
        for level, block in enumerate(self.up):
            x = block(torch.cat([x, skips.pop()], 1), time)
            if level < len(self.up) - 1:
                x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
        noise = self.output(functional.silu(self.norm(x)))
        return Scored(functional.mse_loss(noise, labels), noise)

    def _waves(self, steps: Tensor, like: Tensor) -> Tensor:
        half = self.width // 2
        rates = torch.arange(half, dtype=like.dtype) * (-math.log(10_000.0) / half)
        angles = steps[:, None] * rates.exp()
        return torch.cat([angles.sin(), angles.cos()], 1)


def noisy_images(batch: int = 4, side: int = 32) -> dict[str, Tensor]:
    """Images, time steps, and the noise to predict."""
    shape = (batch, 3, side, side)
    steps = torch.randint(0, 1000, (batch,))
    return {"pixel_values": torch.randn(shape), "steps": steps, "labels": torch.randn(shape)}
