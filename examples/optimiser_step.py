"""An optimiser step as a few kernels: compile `optimizer.step`.

With `foreach=True` the step is written with foreach ops over lists of tensors. When compiled, the
arithmetic of all parameters fuses, and parameters and state are updated in place.
"""

import copy

import torch
from torch import nn

import pyfuser

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
reference = copy.deepcopy(model)


def optimiser_of(module: nn.Module) -> torch.optim.Optimizer:
    """AdamW over all parameters of the module."""
    return torch.optim.AdamW(module.parameters(), lr=1e-3, weight_decay=0.1, foreach=True)


optimiser, other = optimiser_of(model), optimiser_of(reference)
step = torch.compile(optimiser.step, backend="pyfuser")

for _ in range(5):
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        ours.grad = torch.randn_like(ours)
        theirs.grad = ours.grad.clone()
    step()
    other.step()

for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
print(f"five steps equal to eager's, {pyfuser.compiled_kernel_count()} kernels compiled")
