"""A hand-written schedule: tasks over the grid, four unrolled rows, 128 lanes."""

import torch

from pyfuser import FusionDefinition, ParallelType

with FusionDefinition() as fd:
    tv0 = fd.define_tensor(shape=[-1, -1], contiguity=True)
    tv1 = fd.define_tensor(shape=[-1, -1], contiguity=True)
    tv2 = fd.ops.add(tv1, 2.0)
    tv3 = fd.ops.add(tv0, tv2)
    fd.add_output(tv3)

    tv3.merge(0, 1)  # [i0 * i1]
    tv3.split(0, 128)  # [i0 * i1 / 128, 128]
    tv3.split(0, 4)  # [i0 * i1 / 128 / 4, 4, 128]
    fd.sched.transform_like(tv3)
    fd.sched.inline_at(tv3, pos=1)
    tv3.axis(0).parallelize(ParallelType.grid_x)
    tv3.axis(1).parallelize(ParallelType.unroll)
    tv3.axis(2).parallelize(ParallelType.block_x)
    fd.sched.parallelize_like(tv3)

x, y = torch.randn(100, 300), torch.randn(100, 300)
(z,) = fd.manual_execute([x, y])
print("equal to torch:", torch.equal(z, x + (y + 2.0)))
