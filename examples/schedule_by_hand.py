"""A hand-written schedule: define how the loops run, in GPU terms.

What is computed and how it is computed are separate: split and merge make loops, parallelize
decides what runs them (a task of the grid, unrolled code, vector lanes), and inline_at decides how
many loops temporaries share with their readers.  On a CPU the grid is tasks on cores, and block_x
is vector lanes.
"""

import torch

from pyfuser import FusionDefinition, ParallelType

with FusionDefinition() as fd:
    x = fd.define_tensor(shape=[-1, -1], contiguity=True)
    y = fd.define_tensor(shape=[-1, -1], contiguity=True)
    doubled = fd.ops.mul(y, 2.0)
    result = fd.ops.add(x, doubled)
    fd.add_output(result)

    result.merge(0, 1)  # [rows * columns]
    result.split(0, 128)  # [rows * columns / 128, 128]
    result.split(0, 4)  # [rows * columns / 128 / 4, 4, 128]
    fd.sched.transform_like(result)
    fd.sched.inline_at(result, pos=1)
    result.axis(0).parallelize(ParallelType.grid_x)
    result.axis(1).parallelize(ParallelType.unroll)
    result.axis(2).parallelize(ParallelType.block_x)
    fd.sched.parallelize_like(result)

x, y = torch.randn(100, 300), torch.randn(100, 300)
(z,) = fd.manual_execute([x, y])
torch.testing.assert_close(z, x + y * 2.0)
print("as scheduled, equal to torch's; see it: pyfuser show examples/schedule_by_hand.py")
