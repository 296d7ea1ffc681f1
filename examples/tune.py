"""Tuning: measures other schedules than the heuristics' choice, and keeps what is faster.

What is found is kept on disk, next to the compiled kernels: later compilations of the same fusion,
in any process on this machine, use it without measuring again.  `python -m pyfuser tune --show`
prints what is kept.
"""

import os
import tempfile

import torch
from torch import nn

import pyfuser

# Only for this example, which shouldn't change what your own programs run.
os.environ["PYFUSER_CACHE_DIR"] = tempfile.mkdtemp()

with pyfuser.FusionDefinition() as fd:
    x = fd.define_tensor(shape=[-1, -1], contiguity=True)
    exponentials = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, 1, keepdim=True)))
    fd.add_output(fd.ops.div(exponentials, fd.ops.sum(exponentials, 1, keepdim=True)))

x = torch.randn(512, 1024)
print(pyfuser.autotune(fd, [x], seconds=20.0))  # a line for each kernel
torch.testing.assert_close(fd.execute([x])[0], torch.softmax(x, 1))

# A model: its kernels are measured on tensors with the sizes of its own.
model = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
print(pyfuser.autotune(model, [torch.randn(512, 64)], seconds=20.0))
compiled = torch.compile(model, backend="pyfuser")  # uses what was found
compiled(torch.randn(512, 64)).sum().backward()

# The same while torch.compile compiles, for each of its graphs.
torch._dynamo.reset()
compiled = torch.compile(model, backend="pyfuser", options={"autotune": True})
compiled(torch.randn(512, 64))
