"""The softmax over rows that docs/tour.md follows: `make show FILE=docs/examples/softmax.py`."""

import torch

from pyfuser import FusionDefinition

with FusionDefinition() as fd:
    x = fd.define_tensor(shape=[-1, -1], contiguity=True)
    shifted = fd.ops.sub(x, fd.ops.max(x, 1, keepdim=True))
    exponentials = fd.ops.exp(shifted)
    total = fd.ops.sum(exponentials, 1, keepdim=True)
    fd.add_output(fd.ops.div(exponentials, total))

(y,) = fd.execute([torch.randn(256, 1024)])
print("rows sum to", y.sum(1).mean().item())
