"""A hand-written kernel: define what to compute, and call it.

A FusionDefinition lists operations on tensors whose sizes are open (-1).  The first call schedules
and compiles it; later calls, with the same or other sizes, only run it.
"""

import torch
import torch.nn.functional as F

from pyfuser import FusionDefinition

with FusionDefinition() as fd:
    x = fd.define_tensor(shape=[-1, -1], contiguity=True)
    bias = fd.define_tensor(shape=[-1], contiguity=True)
    shifted = fd.ops.add(x, fd.ops.broadcast(bias, [True, False]))
    exponentials = fd.ops.exp(fd.ops.sub(shifted, fd.ops.max(shifted, 1, keepdim=True)))
    total = fd.ops.sum(exponentials, 1, keepdim=True)
    fd.add_output(fd.ops.div(exponentials, total))

for rows, columns in ((256, 1024), (31, 77)):
    x, bias = torch.randn(rows, columns), torch.randn(columns)
    (y,) = fd.execute([x, bias])
    torch.testing.assert_close(y, F.softmax(x + bias, 1))
    print(f"{rows}x{columns}: bias and softmax in one kernel, equal to torch's")

print(fd)  # the definition, as the Python that rebuilds it
