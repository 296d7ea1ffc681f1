"""Text -> the tensors that a small transformer hands to the parts that fuse.

The text is the project's own documents, as bytes; the weights are random, from a fixed seed.  The
model is run once in plain torch, so every part is measured on the activations that it would see.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

from . import parts
from .parts import Outputs, Part

BATCH, TOKENS, WIDTH, HEADS, HIDDEN = 8, 512, 512, 8, 2048
CLASSES = 256
Case = tuple[Part, list[torch.Tensor]]


def text(folder: Path) -> torch.Tensor:
    """The bytes of the project's documents [BATCH, TOKENS + 1], repeated where they are too few."""
    files = [*sorted(folder.glob("*.md")), *sorted((folder / "docs").glob("*.md"))]
    data = b"".join(path.read_bytes() for path in files)
    wanted = BATCH * (TOKENS + 1)
    data *= -(-wanted // len(data))
    return torch.frombuffer(bytearray(data[:wanted]), dtype=torch.uint8).view(BATCH, -1).long()


@torch.no_grad()
def cases(data: torch.Tensor) -> list[Case]:
    """The parts in the order in which the model meets them, each with its inputs."""
    torch.manual_seed(0)
    found: list[Case] = []

    def run(part: Part, *inputs: torch.Tensor) -> Outputs:
        found.append((part, list(inputs)))
        result = part.reference(*inputs)
        return result if isinstance(result, tuple) else (result,)

    tokens, targets = data[:, :-1], data[:, 1:].reshape(-1).contiguous()
    x = F.embedding(tokens, torch.randn(CLASSES, WIDTH)).view(-1, WIDTH)
    weight, bias = torch.rand(WIDTH) + 0.5, torch.randn(WIDTH) * 0.1

    (normal,) = run(parts.RMS_NORM, x, weight)
    query, key, value = _linear(normal, 3 * WIDTH).view(BATCH, TOKENS, 3, HEADS, -1).unbind(2)
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key)
    mask = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    (attention,) = run(parts.MASKED_SOFTMAX, scores, mask)
    mixed = torch.einsum("bhqk,bkhd->bqhd", attention, value).reshape(-1, WIDTH)

    _, normal = run(parts.RESIDUAL_LAYER_NORM, _linear(mixed, WIDTH), x, weight, bias)
    hidden, hidden_bias = _linear(normal, HIDDEN), torch.randn(HIDDEN) * 0.1
    run(parts.BIAS_GELU_TANH, hidden, hidden_bias)
    run(parts.BIAS_GELU_ERF, hidden, hidden_bias)
    (gated,) = run(parts.SWIGLU, hidden, _linear(normal, HIDDEN))
    run(parts.LOG_SOFTMAX_LOSS, _linear(gated, CLASSES), targets)
    return found


def _linear(x: torch.Tensor, features: int) -> torch.Tensor:
    return x @ (torch.randn(x.shape[-1], features) / x.shape[-1] ** 0.5)
