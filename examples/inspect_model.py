"""Inspecting a model: which of its operations became kernels, and why the others didn't.

`explain` runs the model once, forward and backward, and reports for every graph which regions were
fused, by which scheduler, how many bytes of temporaries never reach memory, and what was left to
torch.
"""

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import nn

import pyfuser


class Attention(nn.Module):
    """Causal attention with the softmax written out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, length, width] -> the same shape."""
        normal = self.norm(x)
        scores = self.query(normal) @ self.key(normal).transpose(1, 2) / x.shape[-1] ** 0.5
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        shares = F.softmax(scores.masked_fill(hidden, float("-inf")), -1)
        return x + shares @ self.value(normal)


report = pyfuser.explain(Attention(64), torch.randn(4, 32, 64, requires_grad=True))
Console(width=120).print(report)
assert report.kernel_count > 0
