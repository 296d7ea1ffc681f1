"""Dynamic shapes: batch and length change at every call, and nothing is recompiled.

Sizes are arguments of the kernels.  With `dynamic=True` the first call compiles everything; with
torch's default the second call does, when it sees another shape.
"""

import torch
import torch.nn.functional as F
from torch import nn

import pyfuser


class Pool(nn.Module):
    """Weights the positions of a sequence by a softmax over its length."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.score = nn.LayerNorm(width), nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, length, width] -> [batch, width]."""
        normal = F.gelu(self.norm(x))
        return (torch.softmax(self.score(normal), 1) * normal).sum(1)


torch.manual_seed(0)
model = Pool(48)
compiled = torch.compile(model, backend="pyfuser", dynamic=True)

counts = []
with torch.no_grad():
    for number in range(20):
        x = torch.randn(2 + number % 5, 7 + 3 * number, 48)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
        counts.append(pyfuser.compiled_kernel_count())

print(f"kernels after the first call: {counts[0]}, after {len(counts)} shapes: {counts[-1]}")
assert counts[0] == counts[-1] > 0
