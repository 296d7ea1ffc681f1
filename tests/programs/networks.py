"""Random networks of images: a seed -> a module, its input, and whether its sizes are symbols.

Convolutions, norms, activations and pooling, with residual connections, concatenations and changes
of layout between them.  Each layer reads one of the last three results, and some read another one
too.  What the last layers make is returned in one of several forms.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_SIZES = ((4, 16, 16), (2, 20, 24), (3, 17, 19), (8, 12, 12), (2, 32, 32), (2, 8, 8))
_CHANNELS = (4, 8, 16, 24)

# Of one tensor: the result has its sizes.
_CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "hardswish": F.hardswish,
    "gate": lambda x: x * torch.sigmoid(x.mean((2, 3), keepdim=True)),
    "centre": lambda x: x - x.mean(1, keepdim=True),
    "ramp": lambda x: x * torch.arange(x.shape[3], dtype=x.dtype),
    "layer norm": lambda x: F.layer_norm(x.permute(0, 2, 3, 1), x.shape[1:2]).permute(0, 3, 1, 2),
    "first channel": lambda x: torch.cat([x[:, :1] * 2, x[:, 1:]], 1),
    "columns": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "rows": lambda x: x.reshape(x.shape[0], -1).clamp(max=3).reshape(x.shape),
    "flip": lambda x: x.flip(3),
    "copy": lambda x: x.detach() + x.clone(),
    "max pool": lambda x: F.max_pool2d(x, 3, 1, 1),
    "mean pool": lambda x: F.avg_pool2d(x, 3, 1, 1),
}
_LAYERS: dict[str, Callable[[int, int], nn.Module]] = {
    "convolution": lambda given, made: nn.Conv2d(given, made, 3, padding=1),
    "without bias": lambda given, made: nn.Conv2d(given, made, 3, padding=1, bias=False),
    "point": lambda given, made: nn.Conv2d(given, made, 1),
    "depthwise": lambda given, _: nn.Conv2d(given, given, 3, padding=1, groups=given),
    "transposed": lambda given, made: nn.ConvTranspose2d(given, made, 3, padding=1),
    "block": lambda given, made: nn.Sequential(
        nn.Conv2d(given, made, 3, padding=1, bias=False), nn.BatchNorm2d(made), nn.ReLU()
    ),
    "batch norm": lambda given, _: nn.BatchNorm2d(given),
    "plain batch norm": lambda given, _: nn.BatchNorm2d(given, affine=False),
    "instance norm": lambda given, _: nn.InstanceNorm2d(given, affine=True),
    "group norm": lambda given, _: nn.GroupNorm(2 if given % 2 == 0 else 1, given),
}
_JOINS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "cat": lambda x, y: torch.cat([x, y], 1),
}
_RESULTS: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, ...]]] = {
    "last": lambda x, _: (x,),
    "two": lambda x, y: (x, y * 1.5),
    "means": lambda x, _: (x.mean((2, 3)),),
    "flat": lambda x, _: (x.flatten(1), x),
    "transposed": lambda x, _: (x.transpose(1, 3), x.sum(1)),
    "sums": lambda x, _: (x.sum(), F.relu(x)),
}


@dataclass(frozen=True, slots=True)
class _Step:
    """One layer: what it does, and the numbers of the results that it reads."""

    name: str
    read: int
    other: int


class Network(nn.Module):
    """The network of a seed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.layers = nn.ModuleDict()
        self.steps: list[_Step] = []
        channels = [draw.choice((3, 8, 16, 20, 32))]
        self.shape = (*(size := draw.choice(_SIZES))[:1], channels[0], *size[1:])
        for number in range(draw.randint(2, 9)):
            self._draw_step(draw, number, channels)
        self.result = draw.choice(list(_RESULTS))
        self.is_channels_last = draw.random() < 0.15
        self.has_symbols = draw.random() < 0.2

    def _draw_step(self, draw: random.Random, number: int, channels: list[int]) -> None:
        read = draw.randrange(max(0, len(channels) - 3), len(channels))
        given = channels[read]
        kind = draw.choice((_LAYERS, _LAYERS, _CHANGES, _JOINS))
        name, other = draw.choice(list(kind)), read
        made = given if draw.random() < 0.5 else draw.choice(_CHANNELS)
        if name in _LAYERS:
            layer = _LAYERS[name](given, made)
            self.layers[str(number)] = layer
            made = layer(torch.zeros(2, given, 4, 4)).shape[1]
        elif name in _JOINS:
            alike = [n for n, count in enumerate(channels) if name == "cat" or count == given]
            other = draw.choice(alike)
            made = given + channels[other] if name == "cat" else given
        else:
            made = given
        self.steps.append(_Step(name, read, other))
        channels.append(made)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Images -> results."""
        found = [x]
        for number, step in enumerate(self.steps):
            read = found[step.read]
            if step.name in _LAYERS:
                found.append(self.layers[str(number)](read))
            elif step.name in _JOINS:
                found.append(_JOINS[step.name](read, found[step.other]))
            else:
                found.append(_CHANGES[step.name](read))
        return _RESULTS[self.result](found[-1], found[len(found) // 2])

    def images(self) -> Tensor:
        """An input."""
        images = torch.randn(self.shape)
        return (
            images.contiguous(memory_format=torch.channels_last)
            if self.is_channels_last
            else images
        )

    def __repr__(self) -> str:
        steps = ", ".join(f"{step.name} {step.read} {step.other}" for step in self.steps)
        return f"{list(self.shape)}: {steps} -> {self.result}"
