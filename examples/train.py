"""Training with torch.compile: name the backend, and nothing else changes.

The forward and the backward pass are compiled at the first step.  `backend="pyfuser"` needs no
import.
"""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """A gated MLP between a norm and a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gate, self.up = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, width] -> the same shape."""
        normal = self.norm(x)
        return x + self.down(F.silu(self.gate(normal)) * self.up(normal))


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), Block(64), Block(64), nn.Linear(64, 4))
compiled = torch.compile(model, backend="pyfuser")
optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)

inputs = torch.randn(512, 16)
targets = (inputs[:, :4] + inputs[:, 4:8].square()).argmax(1)
losses = []
for step in range(60):
    optimiser.zero_grad()
    loss = F.cross_entropy(compiled(inputs), targets)
    loss.backward()
    optimiser.step()
    losses.append(loss.item())
    if step % 20 == 0:
        print(f"step {step:3}: loss {losses[-1]:.3f}")

print(f"loss after {len(losses)} steps: {losses[-1]:.3f}")
torch.testing.assert_close(compiled(inputs), model(inputs), rtol=1e-4, atol=1e-4)
assert losses[-1] < 0.8 * losses[0]
